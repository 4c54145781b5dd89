"""Findings of ``bmq cluster doctor``: from facts that were gathered to faults, each with its remedy.  No I/O.

| area | found when |
|---|---|
| store | it does not answer; it is full or nearly so; keys of members or topics cannot be read |
| store's servers | one does not answer, has no leader, lags, is a learner, or is of another version or too old |
| clocks | a server's or a member's is seconds from this machine's |
| root | it does not answer; it is another cluster's, or another root of this one; nothing can be written or deleted |
| storage | fewer live nodes than a topic wants copies |
| members | none, or none of a role; no leader; several versions or users; one drains, is not ready, or serves not all |
| leases | a member's is not renewed |
| cleaning | damage stops the cleaning of a compacted partition, or its last round failed |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bmq.controller.store_upkeep import NEARLY_FULL
from bmq.core.config import ROLES
from bmq.meta.cluster.member import Member
from bmq.meta.maintenance import AFTER_ROOM, MAKE_ROOM, LeaseLeft, StoreMember, StoreStatus

NAMES_MAX = 5
BEHIND_MOST = 1_000
"""Entries of etcd's log that a server may lag: a second of a busy cluster."""
CLOCK_S = 5.0
"""Seconds of difference that are ignored: a clock is read in whole seconds, and a response may take some time."""
LEASE_LEAST = 1 / 3
"""Part of a lease that must be left: it is renewed each third, so below this two renewals were missed."""
VERSION_MIN = (3, 5, 8)
"""The oldest etcd that is supported, see ``meta.etcd.store``."""


UNCLEANABLE_MAX = 20
"""Compacted partitions that are named."""
_CLEANING = {
    "damaged": "`bmq segment verify TOPIC PARTITION` prints the damage; runbook BmqUncleanable has more",
    "failed": (
        "read the owner's log, 'cannot compact the log': make room if a disk, a quota or a draft is full; a round"
        " follows by itself"
    ),
}


class Diagnosis(NamedTuple):
    """A fault, and what to do about it."""

    area: str
    subject: str
    what: str
    remedy: str


class Health(NamedTuple):
    """A response of ``/readyz``: ``status`` 0 if there was none, then ``message`` is the reason.

    ``clock_ahead_s``: seconds that its clock is ahead of this machine's; None if the response does not show it.
    """

    status: int
    message: str
    clock_ahead_s: float | None = None


def check_store(url: str, status: StoreStatus) -> list[Diagnosis]:
    """Return a finding if etcd's database is full or nearly full."""
    if status.is_full:
        return [Diagnosis("store", url, status.trouble, f"{MAKE_ROOM}; {AFTER_ROOM}")]
    if status.quota_bytes > 0 and status.bytes >= NEARLY_FULL * status.quota_bytes:
        what = f"its database has {status.bytes} bytes of {status.quota_bytes}, {status.bytes_in_use} in use"
        return [Diagnosis("store", url, what, MAKE_ROOM)]
    return []


def check_servers(url: str, servers: Sequence[StoreMember]) -> list[Diagnosis]:
    """Return the faults of the store's servers, one by one."""
    findings = []
    for each in servers:
        if each.error:
            remedy = "start it, or take it out of --meta; the store needs a majority of its members"
            findings.append(Diagnosis("store", each.address, f"it does not answer: {each.error}", remedy))
            continue
        if not each.has_leader:
            remedy = "a majority of the members must be up and reach each other (etcdctl endpoint status --cluster)"
            findings.append(Diagnosis("store", each.address, "it has no leader", remedy))
        if each.is_learner:
            remedy = "promote it (etcdctl member promote), or take it out of --meta: a learner serves no clients"
            findings.append(Diagnosis("store", each.address, "it is a learner", remedy))
        if each.behind > BEHIND_MOST:
            remedy = "check its disk (etcd_disk_wal_fsync_duration_seconds) and its network"
            findings.append(Diagnosis("store", each.address, f"it has {each.behind} entries to apply", remedy))
        if _version(each.version) < VERSION_MIN:
            needed = ".".join(map(str, VERSION_MIN))
            remedy = f"upgrade it to {needed} or later"
            findings.append(Diagnosis("store", each.address, f"it is etcd {each.version}", remedy))
    versions = sorted({".".join(each.version.split(".")[:2]) for each in servers if each.version})
    if len(versions) > 1:
        findings.append(Diagnosis("store", url, f"servers of versions {', '.join(versions)}", "finish etcd's upgrade"))
    return findings


def check_clock(area: str, subject: str, ahead_s: float | None) -> list[Diagnosis]:
    """Return a finding for a clock that is too far from this machine's."""
    if ahead_s is None or abs(ahead_s) <= CLOCK_S:
        return []
    what = f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    remedy = "run an NTP client (chrony) on both: timestamps of records, retention by time and logs go by the clock"
    return [Diagnosis(area, subject, what, remedy)]


def check_lease(name: str, left: LeaseLeft) -> list[Diagnosis]:
    """Return a finding for a member that does not renew its lease."""
    if left.left_s >= left.granted_s * LEASE_LEAST:
        return []
    what = f"its lease of {left.granted_s:g} s ends in {max(left.left_s, 0):g} s: it is not renewed"
    remedy = "the process is suspended, or does not reach the store; its partitions move when the lease ends"
    return [Diagnosis("members", name, what, remedy)]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text)[:3])


def check_unreadable(url: str, unreadable: Mapping[str, str]) -> list[Diagnosis]:
    """Return a finding for the keys that cannot be read, with the first of them."""
    if not unreadable:
        return []
    key, why = min(unreadable.items())
    more = f", and {len(unreadable) - 1} more keys" if len(unreadable) > 1 else ""
    remedy = "a later version may have written it: finish the upgrade; else restore the key from a backup of the store"
    return [Diagnosis("store", url, f"{key}{more} cannot be read: {why}", remedy)]


def check_copies(url: str, live: int, copies: Mapping[str, int]) -> list[Diagnosis]:
    """Return a finding for topics that want more copies than there are live nodes; ``copies`` by topic."""
    short = sorted(name for name, wanted in copies.items() if wanted > live)
    if not short:
        return []
    what = f"{live} live nodes, and {_some(short)} want {max(copies[name] for name in short)} copies at most"
    remedy = "start datanodes (hdfs dfsadmin -report shows those that are dead), or create topics with fewer copies"
    return [Diagnosis("storage", url, what, remedy)]


def check_members(members: Sequence[Member], leader: str | None) -> list[Diagnosis]:
    """Return the faults of the processes that the store has as members."""
    if not members:
        return [Diagnosis("members", "-", "no process is registered", "start the servers: `bmq serve --meta ...`")]
    findings = []
    staying = [member for member in members if not member.is_draining]
    for role in ROLES:
        if not any(member.has(role) for member in staying):
            remedy = f"start a process with this role: `bmq serve --roles {role} ...`"
            findings.append(Diagnosis("members", role, "no process that stays has this role", remedy))
    if leader is None:
        remedy = "an election takes seconds: run this again; if it stays so, read the log of the controllers"
        findings.append(Diagnosis("members", "controller", "no controller leads", remedy))
    versions = sorted({member.version for member in members if member.version})
    if len(versions) > 1:
        what = f"processes of {len(versions)} versions: {', '.join(versions)}"
        findings.append(Diagnosis("members", "-", what, "finish the upgrade"))
    users = sorted({member.hdfs_user for member in members if member.hdfs_user})
    if len(users) > 1:
        what = f"processes of {len(users)} HDFS users: {', '.join(users)}"
        remedy = "end those of all users but one: each process fences and deletes the files of others"
        findings.append(Diagnosis("members", "-", what, remedy))
    for member in members:
        if member.is_draining:
            remedy = "it ends by itself; if it does not, read its log, and end it with SIGTERM"
            findings.append(Diagnosis("members", member.incarnation, "it is draining", remedy))
    return findings


def check_health(name: str, url: str, health: Health) -> list[Diagnosis]:
    """Return the faults that a process itself reports, and its clock's."""
    findings = _check_state(name, url, health)
    return findings + check_clock("members", name, health.clock_ahead_s)


def _check_state(name: str, url: str, health: Health) -> list[Diagnosis]:
    if health.status == 0:
        remedy = (
            "is it there, and its HTTP address reachable from this machine? `http` and `http_tls` set it, --http URL"
            " names another; BMQ_HTTP_CA is the file of the authorities that sign certificates"
        )
        return [Diagnosis("members", name, f"{url} does not answer: {health.message}", remedy)]
    if health.status != 200:
        remedy = "clients are sent to other processes meanwhile; mend the cause, its log has more"
        return [Diagnosis("members", name, f"it is not ready: {health.message}", remedy)]
    if health.message:
        remedy = "all else is served; `bmq cluster status` and its log have more, docs/operations.md the remedies"
        return [Diagnosis("members", name, f"a part is not served: {health.message}", remedy)]
    return []


def check_cleaning(uncleanable: int, found: Mapping[tuple[str, int], tuple[str, str]]) -> list[Diagnosis]:
    """Return a finding for each partition in ``found``, and a finding for further uncleanable partitions.

    ``found``: reason and text by topic and partition.  ``uncleanable``: the number of partitions in members' metrics.
    """
    shown = sorted(found.items())[:UNCLEANABLE_MAX]
    findings = [
        Diagnosis("cleaning", f"{topic}-{partition}", f"it is not cleaned: {reason}: {why}", _CLEANING[reason])
        for (topic, partition), (reason, why) in shown
    ]
    if (rest := max(uncleanable, len(found)) - len(shown)) > 0:
        what = f"{rest}{' more' if shown else ''} compacted logs are damaged, or their last round failed"
        findings.append(Diagnosis("cleaning", "-", what, "`bmq topic describe` of compacted topics names them"))
    return findings


def check_metrics(name: str, why: str) -> list[Diagnosis]:
    """Return a finding for a member whose metrics or topics cannot be read."""
    what = f"the cleaning of compacted logs is not known: {why}"
    return [Diagnosis("cleaning", name, what, "run this again; if it stays so, read the log of the process")]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"topics {', '.join(names[:NAMES_MAX])}{more}"
