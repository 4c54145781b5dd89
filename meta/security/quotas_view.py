"""The cluster's client quotas: a watched view, in every proxy, and the writes of whoever alters them.

Reading costs no call.  A change is compared with the quotas on which it was decided.  If the store's quotas differ, it
is decided again on these, so that two administrators do not undo each other's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.errors import FormatError
from bmq.core.security.principal import USER_TYPE
from bmq.meta.kv import Changes, Compare, Delete, Entry, KeyValue, KvUnknown, Put, Write
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.security.client_quotas import (
    ENTITIES_MAX,
    IP,
    Entity,
    Holder,
    InvalidQuota,
    Values,
    canonical_ip,
    changed,
    decode_quotas,
    encode_quotas,
    entity_of,
    find_client_quota,
    find_ip_quota,
    find_user_bound,
    has_client_quota,
    quotas_key,
    quotas_prefix,
)
from bmq.meta.settled_commit import commit_settled

ENTITIES_A_COMMIT = 100
"""Entities of a request that are written together; a larger request is written in parts."""
ATTEMPTS = 10
"""Times that a change is decided again because another writer was first."""
_USER_PREFIX = f"{USER_TYPE}:"


class QuotasView:
    """The quotas as the store has them.  ``start`` returns when the view is complete; it follows until ``close``."""

    def __init__(self, kv: KeyValue, cluster: str, on_failed: Callable[[str], None] = no_op) -> None:
        """``on_failed``: see ``meta.prefix_watch``."""
        self._kv = kv
        self._cluster = cluster
        self._entities: dict[Entity, dict[str, float]] = {}
        self._of_kind: dict[str, dict[Entity, float]] = {}
        self._subscribers = Subscribers[[]]()
        self._watcher = PrefixWatcher(
            kv, quotas_prefix(cluster), self._apply, what="client quotas", on_failed=on_failed
        )

    def __repr__(self) -> str:
        return f"<QuotasView entities={len(self._entities)} seen={self._watcher.seen}>"

    async def start(self) -> None:
        """Start following.  Raises KvError if the store does not answer for long."""
        await self._watcher.start()

    async def close(self) -> None:
        """Stop following.  Idempotent."""
        await self._watcher.close()

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Keys that this version cannot read, with the reasons: their former values stay in force."""
        return self._watcher.unreadable

    @property
    def entities(self) -> Mapping[Entity, Values]:
        """All entities with quotas, in no order."""
        return self._entities

    def has(self, kind: str) -> bool:
        """Return whether any entity has a quota of this kind."""
        return kind in self._of_kind

    def find(self, kind: str, user: str, client_id: str) -> tuple[Holder, float] | None:
        """Return the quota of a request, and who it counts for; None if there is none."""
        values = self._of_kind.get(kind)
        return None if values is None else find_client_quota(values.get, user, client_id)

    def is_limited(self, kind: str, holder: Holder) -> bool:
        """Return whether any quota of this kind counts for a holder."""
        values = self._of_kind.get(kind)
        return values is not None and has_client_quota(values.get, holder)

    def find_ip(self, kind: str, ip: str) -> float | None:
        """Return the quota of an address; None if there is none."""
        values = self._of_kind.get(kind)
        return None if values is None else find_ip_quota(values.get, ip)

    def find_bound(self, kind: str, principal: str) -> int | None:
        """Return how many things of a kind (``BOUND_KEYS``) a principal, as ``User:alice``, may own.

        None: any number.
        """
        values = self._of_kind.get(kind)
        if values is None or not principal.startswith(_USER_PREFIX):
            return None
        return find_user_bound(values.get, principal.removeprefix(_USER_PREFIX))

    def subscribe(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` after every change.  Return a function that unsubscribes it."""
        return self._subscribers.add(call)

    async def alter(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Write changes, where None removes a value, and wait until this view shows them.

        Raises KvError if the store does not answer, or others write the same entities without end; FormatError if it
        has a record of a later version; InvalidQuota if there would be too many entities.
        """
        news = sum(1 for entity in changes if entity not in self._entities)
        if news and len(self._entities) + news > ENTITIES_MAX:
            raise InvalidQuota(f"a cluster has quotas of at most {ENTITIES_MAX} entities")
        rest, revision = iter(changes.items()), 0
        while some := dict(islice(rest, ENTITIES_A_COMMIT)):
            revision = max(revision, await self._write(some))
        await self._watcher.wait_revision(revision)

    async def _write(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> int:
        """Return the revision that shows the changes."""
        known: dict[Entity, tuple[int, Values]] = {}
        by_key = {quotas_key(self._cluster, entity): entity for entity in changes}
        for key, entity in by_key.items():
            values: Values = self._entities.get(entity, {})
            known[entity] = self._watcher.revision_of(key), values
            if changed(values, changes[entity]) == values:  # by the view, which may be behind another proxy's change
                known[entity] = _as_stored(entity, await self._kv.get(key))
        for _ in range(ATTEMPTS):
            compares: list[Compare] = []
            writes: list[Write] = []
            for key, entity in by_key.items():
                revision, values = known[entity]
                after = changed(values, changes[entity])
                if after != values:
                    compares.append(Compare(key, revision))
                    writes.append(Put(key, encode_quotas(after)) if after else Delete(key))
            if not writes:
                return max(revision for revision, _ in known.values())
            done, _ = await commit_settled(self._kv, compares, writes)
            if done.succeeded:
                return done.revision
            for key, entry in done.current.items():
                known[by_key[key]] = _as_stored(by_key[key], entry)
        raise KvUnknown("others write the same quotas all the time")

    def _apply(self, changes: Changes) -> None:
        for event in changes:
            try:
                entity = entity_of(self._cluster, event.key)
                values = decode_quotas(entity, event.entry) if event.entry is not None else {}
            except FormatError as error:
                if event.entry is not None:
                    self._watcher.keep(event.key, str(error))
                continue
            if values:
                self._entities[entity] = values
            else:
                self._entities.pop(entity, None)
        self._of_kind = _by_kind(self._entities.items())
        self._subscribers.notify()


def _as_stored(entity: Entity, entry: Entry | None) -> tuple[int, Values]:
    """Return the revision and the values of an entity's record.  Raises FormatError."""
    return (0, {}) if entry is None else (entry.revision, decode_quotas(entity, entry))


def _by_kind(entities: Iterable[tuple[Entity, Values]]) -> dict[str, dict[Entity, float]]:
    of_kind: dict[str, dict[Entity, float]] = {}
    for entity, values in entities:
        looked_up = ((IP, canonical_ip(entity[0][1])),) if entity[0][0] == IP and entity[0][1] else entity
        for kind, value in values.items():
            of_kind.setdefault(kind, {})[looked_up] = value
    return of_kind
