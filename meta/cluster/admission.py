"""Checks of other processes' claims, against the view and, where that is behind, the store.

The cluster's secret shows that a process belongs to the cluster, not which member it is.  So a process believes nothing
that it can check: the connecting process must be a member, and a coordinator's ownership number must be the
controller's.  A store that cannot be reached is no reason to refuse (rule 7): then a claim beyond the view is believed,
since the view may be behind.

A member without support of a feature's level in force is refused: it would misread the records of other members.

A refused process tries again for as long as it lives, so its refusal is logged once, and again after ``AGAIN_S``.

A process that is refused because its key is gone receives the store's revision of this finding: it may be cut off from
the store, and not have noticed (``meta.cluster.unregistered``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Hashable

from bmq.core.aio.lru import LruCache
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.features import unsupported
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.member import Unregistered
from bmq.core.rpc.server import ANYBODY, Admission
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.assignment import decode_shards
from bmq.meta.cluster.keys import member_key, shards_key
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.view import ClusterView, ShardOwner
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.shard_kinds import SHARD_KINDS, ShardId

_log = logging.getLogger(__name__)
AGAIN_S = 600.0
"""Pause in seconds before a warning about the same member, for the same reason, is logged again."""
SUBJECTS_MAX = 1024
"""Pairs of a member and a reason whose warnings are remembered; of more, the oldest are forgotten."""


class _Warnings:
    """Warnings that were logged: a subject is due once, and again after ``AGAIN_S``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at: LruCache[Hashable, float] = LruCache(SUBJECTS_MAX)

    def is_due(self, subject: Hashable) -> bool:
        """Return whether a warning about the subject is to be logged now; it counts as logged then."""
        now = self._clock.monotonic()
        logged_at = self._logged_at.get(subject)
        if logged_at is not None and now - logged_at < AGAIN_S:
            return False
        self._logged_at.put(subject, now)
        return True


class MemberAdmission:
    """Checks of processes that say Hello: ``admit`` for ``InternalEndpoint``."""

    def __init__(self, kv: KeyValue, cluster: str, view: ClusterView, clock: Clock) -> None:
        self._kv = kv
        self._cluster = cluster
        self._view = view
        self._warnings = _Warnings(clock)

    def admit(self, incarnation: str) -> Admission | Awaitable[Admission]:
        """Return the admission of a process: from the view if it is a member there, else read from the store."""
        member = self._view.members.get(incarnation)
        return self._admission(member) if member is not None else self._look_up(incarnation)

    def _admission(self, member: Member) -> Admission:
        """Return the admission of a registered member, by the levels of features that the view shows."""
        gaps = unsupported(self._view.levels.levels, member.ranges)
        if not gaps:
            return Admission(roles=member.roles)
        text = "; ".join(gap.text(member.incarnation) for gap in gaps)
        if self._warnings.is_due((member.incarnation, text)):
            _log.warning(
                "a member is refused, it does not support a feature's level",
                extra=fields(member=member.incarnation, error=text),
            )
        return Admission(refusal=text)

    async def _look_up(self, incarnation: str) -> Admission:
        """Read the member's key: a process connects as soon as it has registered, and the view may be behind."""
        refusal = Admission(refusal=f"{incarnation} is not a member of the cluster")
        if not incarnation or "/" in incarnation:
            return refusal
        revision = self._view.revision  # before the store is read, so that the key is absent there or later
        try:
            entry = await self._kv.get(member_key(self._cluster, incarnation))
            if entry is None:
                return refusal._replace(unregistered=Unregistered(revision, self._roles_to_give()))
            return self._admission(decode_member(entry.value))
        except KvError as error:
            if self._warnings.is_due((incarnation, "unchecked")):
                _log.warning(
                    "a process is admitted unchecked, the metadata store does not answer",
                    extra=fields(member=incarnation, error=error),
                )
            return ANYBODY
        except FormatError as error:
            return Admission(refusal=f"{incarnation} is not a member that this version can read: {error}")

    def _roles_to_give(self) -> frozenset[str]:
        """Return the roles of the members that another one's work may be assigned to."""
        able = [
            member.roles
            for member in self._view.members.values()
            if not (member.is_starting or member.is_draining) and member.supports(self._view.levels.levels)
        ]
        return frozenset().union(*able)


class ShardOwnership:
    """Checks of shards' ownership numbers: ``check`` for ``broker.shard_log_api``."""

    def __init__(self, kv: KeyValue, cluster: str, view: ClusterView, catalog: Catalog) -> None:
        self._kv = kv
        self._cluster = cluster
        self._view = view
        self._catalog = catalog

    async def check(self, key: PartitionKey, ownership: int, caller: str) -> None:
        """Check that the shard whose log is partition ``key`` is ``caller``'s under number ``ownership``.

        Raises RequestError NOT_COORDINATOR if it is not, INVALID_REQUEST if the partition is not one of coordinators'
        logs.  An ownership that cannot be checked is accepted.
        """
        refusal = None
        for shard in self._shards_of(key):
            refusal = await self._refusal(shard, ShardOwner(caller, ownership))
            if refusal is None:
                return
        raise refusal or RequestError(ErrorCode.INVALID_REQUEST, f"{key} is not a partition of coordinators' logs")

    def _shards_of(self, key: PartitionKey) -> list[ShardId]:
        """Return the shards that the partition may be the log of.

        A partition of another topic has none.  A topic that the catalog does not show yet may be the topic of every
        kind whose topic is not shown.
        """
        topics = {kind: self._catalog.topics.get(kind.topic) for kind in SHARD_KINDS}
        found = [kind for kind, topic in topics.items() if topic is not None and topic.topic_id == key.topic_id]
        if not found and self._catalog.by_id(key.topic_id) is None:
            found = [kind for kind, topic in topics.items() if topic is None]
        return [ShardId(kind, key.partition) for kind in found]

    async def _refusal(self, shard: ShardId, claimed: ShardOwner) -> RequestError | None:
        """Return why the shard is not the claimed owner's; None if it is, or if that cannot be checked."""
        known = self._view.shard(shard)
        if known is None or known.number < claimed.number:
            known = await self._look_up(shard)
        if known is None or known == claimed:
            return None
        return RequestError(
            ErrorCode.NOT_COORDINATOR,
            f"{shard} is of {known.incarnation or 'nobody'} under ownership {known.number}, not of"
            f" {claimed.incarnation} under {claimed.number}",
        )

    async def _look_up(self, shard: ShardId) -> ShardOwner | None:
        """Return the owner in the store, "" under 0 if it has none; None if the store cannot be read."""
        try:
            entry = await self._kv.get(shards_key(self._cluster, shard.kind))
            shards = decode_shards(entry.value) if entry is not None else {}
        except (KvError, FormatError) as error:
            _log.warning(
                "a shard's ownership is accepted unchecked",
                extra=fields(topic=shard.kind.topic, shard=shard.number, error=error),
            )
            return None
        return shards.get(shard.number, ShardOwner("", 0))
