"""Segments' indexes, kept between the micro-batches of a streaming query.

A closed segment's index never changes unless the segment is joined with its neighbour, which changes its length: an
index belongs to a name and a length, and is kept only if it tells of all those bytes.
"""

from __future__ import annotations

from collections import OrderedDict

from bmq.storage.checkpoint import Checkpoint

CACHE_BYTES_MAX = 64 << 20
"""Indexes of some 150 segments of 1 GB: those that a query is in the midst of, also when it has many partitions."""


class IndexCache:
    """The indexes asked for last, ``bytes_max`` bytes of files at most."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, int], tuple[Checkpoint, int]] = OrderedDict()
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<IndexCache {len(self._kept)} indexes of {self.bytes} bytes>"

    def get(self, path: str, length: int) -> Checkpoint | None:
        """``length``: of the segment now."""
        kept = self._kept.get((path, length))
        if kept is None:
            return None
        self._kept.move_to_end((path, length))
        return kept[0]

    def put(self, path: str, length: int, index: Checkpoint, size: int) -> None:
        if index.position != length or size > self._bytes_max:
            return
        _, replaced = self._kept.pop((path, length), (None, 0))
        self._kept[path, length] = index, size
        self.bytes += size - replaced
        while self.bytes > self._bytes_max:
            self.bytes -= self._kept.popitem(last=False)[1][1]
