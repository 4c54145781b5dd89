"""The block locations of large files, kept for a while: the next read of such a file needs no NameNode call.

It is worthwhile, and safe, for files whose bytes no longer change: large files.  An open file has a single block, and
the lengths that its datanodes have shown are kept, too: a read up to such a length needs no further call.  The
locations are dropped after ``reader_ttl_s``, when a read fails, and by any call that may change the file.  When a read
of an open file gets less than it wants, the NameNode is asked whether the file still ends with that block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bmq.core.aio.lru import LruCache
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.settings import HdfsSettings


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file's block locations, and the bytes of its open block that each datanode, by name, has shown."""

    locations: pb.LocatedBlocks
    shown: dict[str, int] = field(default_factory=dict)

    @property
    def open_block(self) -> pb.LocatedBlock | None:
        """The block that is being written, if there is one."""
        locations = self.locations
        if locations.under_construction and locations.HasField("last_block") and not locations.last_block_complete:
            return locations.last_block
        return None

    def has_open_block_of(self, other: KnownFile) -> bool:
        """Return whether the same block is being written in both, by the same writer."""
        mine, others = self.open_block, other.open_block
        if mine is None or others is None:
            return False
        return (mine.block.id, mine.block.generation) == (others.block.id, others.block.generation)


@dataclass(frozen=True, slots=True)
class _Kept:
    file: KnownFile
    expires: float


class KnownFiles:
    """The locations of one root's files, without the least recently used ones.

    ``now`` is in seconds of a monotonic clock.
    """

    def __init__(self, settings: HdfsSettings) -> None:
        self._settings = settings
        self._kept: LruCache[str, _Kept] = LruCache(settings.readers_max)

    def is_worth_it(self, locations: pb.LocatedBlocks) -> bool:
        """Return whether a closed file's locations are to be kept: it is large."""
        return not locations.under_construction and locations.file_length >= self._settings.reader_file_min_bytes

    def is_open_worth_it(self, file: KnownFile) -> bool:
        """Return whether an open file's locations are to be kept: it has one block, and a datanode shows much of it."""
        block = file.open_block
        if block is None or block.offset:
            return False
        return max(file.shown.values(), default=0) >= self._settings.reader_file_min_bytes

    def get(self, path: str, end: int, now: float) -> KnownFile | None:
        """Return what is known of the file; None if it is not kept, is old, or was closed and ends before ``end``."""
        kept = self._kept.get(path)
        if kept is None:
            return None
        file = kept.file
        if kept.expires < now or (file.open_block is None and end > file.locations.file_length):
            self._kept.pop(path)
            return None
        return file

    def remember(self, path: str, file: KnownFile, now: float) -> None:
        """Keep the locations of all of the file's blocks."""
        self._kept.put(path, _Kept(file, now + self._settings.reader_ttl_s))

    def forget(self, path: str) -> None:
        """Drop a file's locations."""
        self._kept.pop(path)

    def forget_all_under(self, path: str) -> None:
        """Drop the locations of a file, or of all files in a folder and below it."""
        for known in [known for known in self._kept if known == path or known.startswith(path + "/")]:
            self._kept.pop(known)
