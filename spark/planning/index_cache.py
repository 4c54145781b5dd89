"""Segments' indexes, kept between the micro-batches of a streaming query.

A closed segment's index never changes unless the segment is merged with its neighbour, which changes its length.  So an
index is kept by its path and the segment's length, and only if it covers all those bytes.
"""

from __future__ import annotations

from bmq.core.aio.lru import LruCache
from bmq.storage.checkpoint import Checkpoint

CACHE_BYTES_MAX = 64 << 20
"""Bytes of index files: some 150 segments of 1 GB.  A query reads as many at a time, even of many partitions."""


class IndexCache:
    """A cache of the indexes used last, of at most ``bytes_max`` bytes of files."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._kept: LruCache[tuple[str, int], Checkpoint] = LruCache(bytes_max)

    def __repr__(self) -> str:
        return f"<IndexCache {len(self._kept)} indexes of {self._kept.used} bytes>"

    def get(self, path: str, length: int) -> Checkpoint | None:
        """Return the index of the segment that is ``length`` bytes long now; None if it is not kept."""
        return self._kept.get((path, length))

    def put(self, path: str, length: int, index: Checkpoint, size: int) -> None:
        """Keep an index whose file has ``size`` bytes, unless it does not cover ``length`` bytes or is larger than the
        cache."""
        if index.position == length:
            self._kept.put((path, length), index, size)
