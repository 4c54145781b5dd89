"""The leader's upkeep of etcd: it compacts the history, and reports the database's size and trouble.

etcd keeps every revision of every key until it is compacted.  A segment's registration is one revision and some 800
bytes of history, so a busy cluster fills etcd's default quota of 2 GB in days, and etcd then refuses every write.
Kubernetes' apiserver compacts for the same reason (``apiserver/pkg/storage/etcd3/compact.go``), and so does the leader
here.  It compacts up to the revision of an hour ago: no watch of this cluster needs older revisions.

A compaction is one of the whole etcd: other users' keys lose their history too.  ``etcd_history_ms`` = 0 leaves it to
others.  It is never done without need: not before etcd has made ``REVISIONS_MIN`` revisions since the last one.

Samples show which revision was the one of an hour ago.  They are kept in the store as well, so that the hour does not
begin again when the leader changes.
"""

from __future__ import annotations

import asyncio
import json
import logging

from bmq.controller.kv_commit import Guard
from bmq.core.clock import Clock
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields
from bmq.meta.kv import KeyValue, KvError, Put
from bmq.meta.maintenance import Maintained, StoreStatus

_log = logging.getLogger(__name__)

FORMAT = 1
LOOK_S = 30.0
"""Time between two checks of the store, and two samples."""
SAVE_S = 600.0
"""Time between two writes of the samples to the store: 144 revisions a day."""
REVISIONS_MIN = 1_000
"""Least number of revisions that a compaction removes: less than a megabyte."""
FULL_KEEP_MS = 300_000
"""Time that history is kept at most while the database is full: five times what a quiet watch may be behind."""
NEARLY_FULL = 0.8
"""Part of the quota from which on an operator is warned."""


def history_key(cluster: str) -> str:
    """Return the key under which the samples are kept."""
    return f"/{cluster}/history"


class RevisionHistory:
    """Samples of the store's revision, oldest first, which give the revision to compact.  Pure; wall time in ms.

    Wall clocks differ and jump: that makes a compaction early or late, never wrong, since a watch whose revisions are
    compacted lists again.
    """

    def __init__(self, keep_ms: int) -> None:
        """``keep_ms``: how much history is kept; 0 keeps all."""
        self._keep_ms = keep_ms
        self._samples: list[tuple[int, int]] = []
        self.compacted = 0
        """The revision of the last compaction."""

    def __repr__(self) -> str:
        return f"<History samples={len(self._samples)} compacted={self.compacted}>"

    def note(self, now_ms: int, revision: int) -> None:
        """Add a sample: the store has this revision now.

        Samples from the future, by a clock that went back, count as of now.
        """
        self._samples = [(min(at_ms, now_ms), at) for at_ms, at in self._samples if at <= revision]
        self._samples.append((now_ms, revision))
        past = [number for number, (at_ms, _) in enumerate(self._samples) if at_ms <= now_ms - self._keep_ms]
        del self._samples[: past[-1] if past else 0]  # of the samples that are old enough only the newest is needed

    def due(self, now_ms: int, *, is_full: bool) -> int:
        """Return the revision up to which to compact now; 0 for none.  ``is_full``: the database is full."""
        if not self._keep_ms:
            return 0
        keep_ms = min(self._keep_ms, FULL_KEEP_MS) if is_full else self._keep_ms
        old = max((revision for at_ms, revision in self._samples if at_ms <= now_ms - keep_ms), default=0)
        least = 1 if is_full else REVISIONS_MIN
        return old if old - self.compacted >= least else 0

    def encode(self) -> bytes:
        """Return the samples as JSON, to be kept in the store."""
        samples = [list(each) for each in self._samples]
        return json.dumps({"format": FORMAT, "compacted": self.compacted, "samples": samples}).encode()

    def decode(self, data: bytes, now_ms: int) -> None:
        """Take over an earlier leader's samples.  If they cannot be read, sampling begins again, which does no harm."""
        try:
            raw = json.loads(data)
            if raw["format"] == FORMAT:
                samples = [(int(at_ms), int(revision)) for at_ms, revision in raw["samples"]]
                self._samples = sorted((min(at_ms, now_ms), revision) for at_ms, revision in samples)
                self.compacted = int(raw["compacted"])
        except (ValueError, KeyError, TypeError) as error:
            _log.warning(
                "the kept samples of the store's history cannot be read, sampling begins again",
                extra=fields(error=error),
            )


class StoreUpkeep:
    """Upkeep of the store by the leader of one term."""

    def __init__(
        self, kv: KeyValue, store: Maintained, cluster: str, clock: Clock, keep_ms: int, *, guard: Guard
    ) -> None:
        """``keep_ms``: how much history is kept; 0: all.  ``guard``: see ``Guard``."""
        self.status: StoreStatus | None = None
        """The store's status at the last check; None before the first."""
        self.history = RevisionHistory(keep_ms)
        self._kv = kv
        self._store = store
        self._key = history_key(cluster)
        self._clock = clock
        self._guard = guard
        self._saved_at = float("-inf")
        self._is_nearly_full = False

    def __repr__(self) -> str:
        return f"<StoreUpkeep {self.status} {self.history!r}>"

    async def run(self) -> None:
        """Check the store every ``LOOK_S``, until cancelled.  Failures are logged, and do not end it."""
        has_begun = False
        while True:
            try:
                if not has_begun:
                    await self._begin()
                    has_begun = True
                await self.look()
            except (KvError, RequestError) as error:
                _log.info("could not check the metadata store's history, trying again later", extra=fields(error=error))
            await asyncio.sleep(LOOK_S)

    async def _begin(self) -> None:
        entry = await self._kv.get(self._key)
        if entry is not None:
            self.history.decode(entry.value, self._clock.now_ms())

    async def look(self) -> None:
        """Check once how full the store is, and compact if that is due.  Raises KvError, RequestError."""
        before, self.status = self.status, await self._store.status()
        self._log_status(before is not None and before.is_full, self.status)
        now_ms = self._clock.now_ms()
        self.history.note(now_ms, await self._store.revision())
        due = self.history.due(now_ms, is_full=self.status.is_full)
        if due:
            self._guard()  # only the leader compacts
            await self._store.compact(due)
            self.history.compacted = due
            _log.info("compacted the metadata store's history", extra=fields(revision=due))
        if not self.status.is_full and self._clock.monotonic() - self._saved_at >= SAVE_S:
            await self._kv.commit(self._guard(), [Put(self._key, self.history.encode())])
            self._saved_at = self._clock.monotonic()

    def _log_status(self, was_full: bool, status: StoreStatus) -> None:
        if status.is_full and not was_full:
            _log.error(
                "etcd's database is full (%d bytes, %d in use): nothing is written to it; produces that need a new"
                " segment wait, topics cannot be changed, no process can join. Free room (etcdctl defrag, after a"
                " compaction), raise --quota-backend-bytes, then etcdctl alarm disarm: all goes on by itself then",
                status.bytes,
                status.bytes_in_use,
            )
        elif was_full and not status.is_full:
            _log.warning("etcd's database takes writes again")
        is_nearly_full = status.quota_bytes > 0 and status.bytes >= NEARLY_FULL * status.quota_bytes
        if is_nearly_full and not self._is_nearly_full:
            _log.warning(
                "etcd's database has %d bytes of %d, %d in use: past its quota it takes no writes; defragment it"
                " (etcdctl defrag), or raise --quota-backend-bytes",
                status.bytes,
                status.quota_bytes,
                status.bytes_in_use,
            )
        self._is_nearly_full = is_nearly_full


def maintained(kv: KeyValue) -> Maintained | None:
    """Return the store as one that needs upkeep; None if it needs none."""
    return kv if isinstance(kv, Maintained) else None
