"""Partitions without a lasting load, found in one search for many plans; balancing may move them.  Pure.

Each plan moves some sixty partitions, and a new broker may be given a hundred thousand.  A search through all
partitions finds thousands of candidates; later plans take them one by one.  Each is checked again when it is taken,
since it may have moved, been deleted, or have a load by then.  Partitions without any traffic come first.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Generator, Set

from bmq.controller.planning.partition_table import PartitionTable
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import CHUNK

_RATED = 1 << 32
"""Place of partitions with traffic that does not last: behind all others."""
FOUND_MAX = 4096
"""Candidates kept for each broker: some 400 kB, enough for 64 plans."""
CHUNKS_PER_STEP = 256
PARTITIONS_PER_STEP = 2_000
"""Chunks, and partitions of chunks that must be read, in one step of a search."""


class IdlePartitions:
    """Candidates by broker.  ``search`` when ``take`` has none left for a broker."""

    def __init__(self) -> None:
        self._found: dict[str, list[PartitionKey]] = {}  # the last one is taken first

    def __repr__(self) -> str:
        return f"<IdlePartitions { {name: len(keys) for name, keys in self._found.items()} }>"

    def clear(self) -> None:
        """Drop all candidates."""
        self._found.clear()

    def take(
        self, table: PartitionTable, owner: str, is_movable: Callable[[PartitionKey], bool]
    ) -> PartitionKey | None:
        """Remove and return a candidate that the owner still has, movable and without a load; None if none is left."""
        found = self._found.get(owner, [])
        while found:
            key = found.pop()
            if table.get(key) == owner and key not in table.lasting.of(owner) and is_movable(key):
                return key
        return None

    def search(
        self, table: PartitionTable, owners: Set[str], is_movable: Callable[[PartitionKey], bool]
    ) -> Generator[None, None, None]:
        """Find candidates of these owners, in steps of bounded work.

        Keeps, by owner, the ``FOUND_MAX`` first in an order that mixes topics.  In the order of topics, a new broker
        would be given all partitions of a single topic.
        """
        heaps: dict[str, list[tuple[int, int, int, PartitionKey]]] = {owner: [] for owner in owners}
        looked = chunks = 0
        for topic_id, topic in table.topics.items():
            seed = zlib.crc32(topic_id.bytes)
            for number, chunk in enumerate(topic.chunks):
                chunks += 1
                if owners.isdisjoint(chunk):
                    if chunks % CHUNKS_PER_STEP == 0:
                        yield
                    continue
                for index, owner in enumerate(chunk):
                    if owner not in owners:
                        continue
                    partition = number * CHUNK + index
                    order = -zlib.crc32(partition.to_bytes(4, "big"), seed)
                    heap = heaps[owner]
                    if len(heap) == FOUND_MAX and order <= heap[0][0]:
                        continue
                    key = PartitionKey(topic_id, partition)
                    if key in table.lasting.of(owner) or not is_movable(key):
                        continue
                    if key in table.rates_of(owner):
                        order -= _RATED
                        if len(heap) == FOUND_MAX and order <= heap[0][0]:
                            continue
                    item = (order, -topic_id.int, -partition, key)
                    if len(heap) < FOUND_MAX:
                        heapq.heappush(heap, item)
                    else:
                        heapq.heapreplace(heap, item)
                looked += len(chunk)
                if looked >= PARTITIONS_PER_STEP:
                    looked = 0
                    yield
        for owner, heap in heaps.items():
            self._found[owner] = [key for *_, key in sorted(heap)]
            yield
