"""The cluster's ACLs in the metadata store: their records, a watched view, and the writes of any proxy.

An ACL is a key, ``/<cluster>/acls/<uuid>``, with JSON::

    {"format": 1, "resource": "TOPIC", "pattern": "PREFIXED", "name": "orders", "principal": "User:alice",
     "host": "*", "operation": "READ", "permission": "ALLOW"}

The uuid is computed from the ACL itself, so that an ACL has one key: to make it twice, or by two proxies at once, is to
make it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.security.principal import has_outer_space
from bmq.meta.kv import Changes, Commit, Compare, Delete, Entry, KeyValue, KvError, Put, Write
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.security.compared_write import wait_shown

T = TypeVar("T")
FORMAT = 1
ACLS_MAX = 100_000
"""ACLs of a cluster: some 100 MB in each proxy."""
TEXT_MAX = 2_000
"""Characters of an ACL's resource name, principal or host: a client's certificate may have a long name."""
CHANGED_MAX = 10_000
"""ACLs that one request creates, or deletes: Kafka's ``QuorumController.MAX_RECORDS_PER_USER_OP``."""
WRITES_A_COMMIT = 20
"""ACLs of one commit: with the longest texts, escaped in JSON, they fit into one of the store's."""
ATTEMPTS = 8
"""Tries of one call to the store, about 6 s in all."""
RETRY_S = Backoff(0.05, 2.0)
MATCHED_A_TURN = 2_000
"""ACLs that a filter is compared with in a turn of the loop, at 2 us each."""
_NAMESPACE = uuid.UUID("8c1ba1b6-6b0f-5d3c-9f5d-3c8f3f1d2a77")


def acls_prefix(cluster: str) -> str:
    return f"/{cluster}/acls/"


def acl_key(cluster: str, acl: Acl) -> str:
    """Return the key of an ACL."""
    return f"{acls_prefix(cluster)}{uuid.uuid5(_NAMESPACE, json.dumps(acl))}"


def encode_acl(acl: Acl) -> bytes:
    """Return the record of an ACL."""
    record = {
        "format": FORMAT,
        "resource": acl.resource_type.name,
        "pattern": acl.pattern_type.name,
        "name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return json.dumps(record).encode()


def decode_acl(entry: Entry) -> Acl:
    """Return the ACL of a record.  Raises FormatError if it is not one."""
    try:
        raw: Mapping[str, Any] = json.loads(entry.value)
        if raw["format"] != FORMAT:
            raise FormatError(f"{entry.key} is of format {raw['format']}: this version reads {FORMAT}")
        acl = Acl(
            ResourceType[raw["resource"]],
            PatternType[raw["pattern"]],
            raw["name"],
            raw["principal"],
            raw["host"],
            AclOperation[raw["operation"]],
            AclPermission[raw["permission"]],
        )
        if not all(isinstance(text, str) for text in (acl.name, acl.principal, acl.host)):
            raise TypeError("texts are expected")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is not an ACL: {entry.value[:80]!r}") from error
    if reason := wrong_acl(acl):
        raise FormatError(f"{entry.key}: {reason}")
    return acl


def wrong_acl(acl: Acl) -> str:
    """Return what is wrong with an ACL; "" if it may be made (``AclControlManager.validateNewAcl``)."""
    if acl.resource_type <= ResourceType.ANY:
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation <= AclOperation.ANY:
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (AclPermission.DENY, AclPermission.ALLOW):
        return f"Invalid permissionType {acl.permission.name}"
    if not acl.name:
        return "Resource name should not be empty"
    if not acl.host:
        return "Host should not be empty"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal[:200]}` (no colon is present separating the principal type"
            " from the principal name)"
        )
    if has_outer_space(acl.principal):
        return f"The principal `{acl.principal[:200]}` has white space at an end: no client has this name"
    if max(len(acl.name), len(acl.principal), len(acl.host)) > TEXT_MAX:
        return f"Resource name, principal or host is longer than {TEXT_MAX} characters"
    return ""


class AclStore:
    """The view of all ACLs of the cluster, and the writer of changes.  ``index`` has what the view shows."""

    def __init__(self, kv: KeyValue, cluster: str, on_failed: Callable[[str], None] = no_op) -> None:
        """Create a store.  ``on_failed`` is called with the reason if the view stops: the process should end."""
        self.index = AclIndex()
        self._kv = kv
        self._cluster = cluster
        self._acls: dict[str, Acl] = {}
        self._subscribers = Subscribers[[]]()
        self._watcher = PrefixWatcher(kv, acls_prefix(cluster), self._apply, what="ACLs", on_failed=on_failed)

    def __repr__(self) -> str:
        return f"<AclStore {len(self._acls)} ACLs, seen={self._watcher.seen}>"

    def __len__(self) -> int:
        return len(self._acls)

    @property
    def is_loaded(self) -> bool:
        """True once ``index`` has had all ACLs of the cluster: from the end of ``start`` on."""
        return self._watcher.has_started

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The keys that this version cannot read, with the reasons."""
        return self._watcher.unreadable

    def subscribe(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` after each change of the ACLs.  Return a function that unsubscribes it."""
        return self._subscribers.add(call)

    async def start(self) -> None:
        """Start following.  Returns when the view is complete.  Raises KvError if the store does not answer."""
        await self._watcher.start()

    async def close(self) -> None:
        """Stop following.  Idempotent."""
        await self._watcher.close()

    def _apply(self, changes: Changes) -> None:
        for event in changes:
            acl = None
            if event.entry is not None:
                try:
                    acl = decode_acl(event.entry)
                    if acl_key(self._cluster, acl) != event.key:
                        raise FormatError(f"{event.key} has the ACL of another key")
                except FormatError as error:
                    self._watcher.keep(event.key, str(error))
                    continue
            before = self._acls.pop(event.key, None)
            if before is not None:
                self.index.remove(before)
            if acl is not None:
                self._acls[event.key] = acl
                self.index.add(acl)
        self._subscribers.notify()

    # ---------------------------------------------------------------------------------------------------------- reading

    async def find(self, chosen: AclFilter) -> list[Acl]:
        """Return the ACLs that the filter chooses."""
        found = await map_in_turns(
            lambda acl: acl if chosen.matches(acl) else None, list(self._acls.values()), MATCHED_A_TURN
        )
        return [acl for acl in found if acl is not None]

    # ---------------------------------------------------------------------------------------------------------- writing

    async def create(self, acls: Iterable[Acl]) -> None:
        """Make ACLs.  Existing ACLs are left as they are.

        Returns once this process's view shows them.  They must be right (``wrong_acl``).  Raises RequestError if there
        would be too many, or if the store does not answer; some may then have been made.
        """
        wanted = {acl_key(self._cluster, acl): acl for acl in acls}
        new = sum(1 for key in wanted if key not in self._acls)
        if new > CHANGED_MAX:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{new} ACLs in one request, more than {CHANGED_MAX}")
        if len(self._acls) + new > ACLS_MAX:
            raise RequestError(ErrorCode.POLICY_VIOLATION, f"the cluster would have more than {ACLS_MAX} ACLs")
        revision = 0
        # Those that the view shows, too: another proxy may have deleted them a moment ago.
        for part in _parts([Put(key, encode_acl(acl)) for key, acl in wanted.items()]):
            revision = max(revision, await self._create_some(part))
        await wait_shown(self._watcher, revision)

    async def _create_some(self, puts: Sequence[Put]) -> int:
        """Write those of the records that do not exist.  Return a revision that shows all of them."""
        shown_at = 0
        while puts:
            done = await self._commit([Compare(put.key, 0) for put in puts], puts)
            if done.succeeded:
                return max(shown_at, done.revision)
            shown_at = max(shown_at, *(entry.revision for entry in done.current.values() if entry is not None))
            puts = [put for put in puts if done.current[put.key] is None]
        return shown_at

    async def delete(self, chosen: AclFilter) -> list[Acl]:
        """Delete the ACLs that the filter chooses, and return them.

        Returns once this process's view has none of them.  Raises RequestError if they are too many for one request, or
        if the store does not answer; some may then have been deleted.
        """
        found: list[Acl] = []
        compares: list[Compare] = []
        for entry, acl in await _patiently(self._read_all):
            if chosen.matches(acl):
                found.append(acl)
                compares.append(Compare(entry.key, entry.revision))
        if len(found) > CHANGED_MAX:
            text = f"Cannot remove more than {CHANGED_MAX} acls in a single delete operation."
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        revision = 0
        for part in _parts(compares):
            revision = max(revision, await self._delete_some(part))
        await wait_shown(self._watcher, revision)
        return found

    async def _read_all(self) -> list[tuple[Entry, Acl]]:
        """Return all ACLs as the store has them now: another proxy may have made some that the view does not show."""
        found = []
        turns = Turns(MATCHED_A_TURN)
        async for entry in self._kv.list(acls_prefix(self._cluster)):
            if turns.is_over():
                await next_turn()
            acl = self._acls.get(entry.key) if self._watcher.revision_of(entry.key) == entry.revision else None
            with contextlib.suppress(FormatError):  # what cannot be read is logged by the view, and is left alone
                found.append((entry, acl or decode_acl(entry)))
        return found

    async def _delete_some(self, compares: Sequence[Compare]) -> int:
        """Delete those of the records that have these revisions.  Return a revision that shows it.

        0: others have deleted them.
        """
        while compares:
            done = await self._commit(compares, [Delete(each.key) for each in compares])
            if done.succeeded:
                return done.revision
            compares = [each for each in compares if _is_as(done.current[each.key], each)]
        return 0

    async def _commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        """Commit, again and again if the store does not answer: done already, it is refused by its compares."""
        return await _patiently(lambda: self._kv.commit(compares, writes))


def _is_as(entry: Entry | None, compare: Compare) -> bool:
    return entry is not None and entry.revision == compare.revision


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``call``, which may be repeated.  Raises RequestError REQUEST_TIMED_OUT after ATTEMPTS."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await call()
        except KvError:
            await asyncio.sleep(RETRY_S.pause(attempt))
    try:
        return await call()
    except KvError as error:
        text = "the metadata store does not answer: whether this was done is not known, it may be done again"
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{text} ({error})") from error


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield as many at a time as fit into a commit."""
    for at in range(0, len(items), WRITES_A_COMMIT):
        yield items[at : at + WRITES_A_COMMIT]
