"""The block locations of large closed files, kept for a while: the next read of such a file needs no NameNode call.

That is worthwhile, and safe, for files that no longer change: large ones.  The locations are dropped after
``reader_ttl_s``, and by any call that may change the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.aio.lru import LruCache
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.settings import HdfsSettings


@dataclass(frozen=True, slots=True)
class _Known:
    locations: pb.LocatedBlocks
    expires: float


class ClosedFiles:
    """The locations of one root's files, without the least recently used ones.

    ``now`` is in seconds of a monotonic clock.
    """

    def __init__(self, settings: HdfsSettings) -> None:
        self._settings = settings
        self._known: LruCache[str, _Known] = LruCache(settings.readers_max)

    def is_worth_it(self, locations: pb.LocatedBlocks) -> bool:
        """Return whether a file's locations are to be kept: it is closed, and large."""
        return not locations.under_construction and locations.file_length >= self._settings.reader_file_min_bytes

    def get(self, path: str, end: int, now: float) -> pb.LocatedBlocks | None:
        """Return the locations of the file's blocks; None if they are not kept, are old, or end before ``end``."""
        known = self._known.get(path)
        if known is None:
            return None
        if known.expires < now or end > known.locations.file_length:
            self._known.pop(path)
            return None
        return known.locations

    def remember(self, path: str, locations: pb.LocatedBlocks, now: float) -> None:
        """Keep the locations of all of the file's blocks."""
        self._known.put(path, _Known(locations, now + self._settings.reader_ttl_s))

    def forget(self, path: str) -> None:
        """Drop a file's locations."""
        self._known.pop(path)

    def forget_all_under(self, path: str) -> None:
        """Drop the locations of a file, or of all files in a folder and below it."""
        for known in [known for known in self._known if known == path or known.startswith(path + "/")]:
            self._known.pop(known)
