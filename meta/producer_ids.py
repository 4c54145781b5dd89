"""Producer ids for idempotent producers: issued once in the life of a cluster, from blocks (Kafka's KIP-730).

An id is ``rebuild count << 48 | n``, below 2**62: positive, and leaving the bit above to ids that coordinators create
for themselves.  The rebuild count is the number of times that the metadata store was rebuilt from storage.  A rebuilt
counter starts again, so without the count it could issue an id whose sequence numbers are in some log.  In the record
it is the field ``incarnation``.

The record under ``producer-ids`` has the start of the next block.  A block belongs to the process whose commit moves
the record.  An unknown outcome, a crash or a stop wastes the rest of a block, and no id is ever issued twice.
"""

from __future__ import annotations

import asyncio
import json
import logging

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.kv import Compare, Entry, KeyValue, KvUnknown, Put

_log = logging.getLogger(__name__)

FORMAT = 1
BLOCK = 1_000
"""Ids of one commit, as in Kafka.  A producer takes one at its start."""
AHEAD = BLOCK // 4
"""Number of ids below which the next block is fetched, so that no producer waits for the store."""
ATTEMPTS = 10
"""Tries for a block before the client has to retry: other processes take blocks too, and the store may be slow."""
RETRY_S = 0.05

NUMBER_BITS = 48
REBUILD_COUNT_MAX = (1 << 14) - 1


def producer_ids_key(cluster: str) -> str:
    return f"/{cluster}/producer-ids"


class ProducerIds:
    """The issuer of one process.  ``rebuild_count`` is that of ``cluster.json``, set before ``next``."""

    def __init__(self, kv: KeyValue, cluster: str, *, rebuild_count: int = 0) -> None:
        self._kv = kv
        self._key = producer_ids_key(cluster)
        self.rebuild_count = rebuild_count
        self._ready: list[range] = []
        self._fetching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"ProducerIds(left={sum(map(len, self._ready))}, fetching={self._fetching is not None})"

    async def next(self) -> int:
        """Return an id that was never issued before, and never will be again.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS, which every client retries, if the store gives no block (as
        Kafka's RPCProducerIdManager).
        """
        while True:
            taken = self._take()
            if sum(map(len, self._ready)) < AHEAD:
                self._fetch_ahead()
            if taken is not None:
                return taken
            assert self._fetching is not None, "an empty store of ids is being filled"
            await asyncio.wait([self._fetching])  # not cancelled with this call: others wait for it too
            if not self._ready:
                raise RequestError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the metadata store gives no producer ids now"
                )

    async def close(self) -> None:
        """Cancel the fetch of a block.  Idempotent."""
        await cancel_and_wait(self._fetching)

    def _take(self) -> int | None:
        if not self._ready:
            return None
        block = self._ready[0]
        if len(block) == 1:
            del self._ready[0]
        else:
            self._ready[0] = block[1:]
        return block[0]

    def _fetch_ahead(self) -> None:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="producer ids")
            self._fetching.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            _log.warning("no new producer ids", extra=fields(error=task.exception()))

    async def _fetch(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                block = await self._claim()
            except KvUnknown:
                block = None  # it may have been this process's: it is wasted, and the next one is found behind it
            if block is not None:
                self._ready.append(block)
                return
            await asyncio.sleep(RETRY_S * (attempt + 1))
        raise KvUnknown(f"no block of producer ids in {ATTEMPTS} tries")

    async def _claim(self) -> range | None:
        """Return the next block, None if another process was faster.

        Raises KvError, and FormatError if the record cannot be decoded or no ids are left.
        """
        entry = await self._kv.get(self._key)
        rebuild_count, start = decode_counter(entry) if entry else (self.rebuild_count, 0)
        if rebuild_count < self.rebuild_count:
            rebuild_count, start = self.rebuild_count, 0
        if rebuild_count > REBUILD_COUNT_MAX or start + BLOCK > 1 << NUMBER_BITS:
            raise FormatError(f"{self._key}: no producer ids are left for rebuild count {rebuild_count} at {start}")
        value = encode_counter(rebuild_count, start + BLOCK)
        done = await self._kv.commit([Compare(self._key, entry.revision if entry else 0)], [Put(self._key, value)])
        if not done.succeeded:
            return None
        first = rebuild_count << NUMBER_BITS | start
        return range(first, first + BLOCK)


def encode_counter(rebuild_count: int, start: int) -> bytes:
    """Return the record: the next block begins at ``start``."""
    return json.dumps({"format": FORMAT, "incarnation": rebuild_count, "next": start}).encode()


def decode_counter(entry: Entry) -> tuple[int, int]:
    """Return the rebuild count and the start of the next block.  Raises FormatError if it is not such a record."""
    try:
        raw = json.loads(entry.value)
        if raw["format"] != FORMAT:
            raise FormatError(f"{entry.key} is of format {raw['format']}: this version reads {FORMAT}")
        rebuild_count, start = raw["incarnation"], raw["next"]
        if type(rebuild_count) is not int or type(start) is not int:
            raise TypeError("whole numbers are expected")
        if not 0 <= rebuild_count <= REBUILD_COUNT_MAX or not 0 <= start <= 1 << NUMBER_BITS:
            raise ValueError("out of range")
        return rebuild_count, start
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{entry.key} does not say where producer ids go on: {entry.value[:80]!r}") from error
