"""Block locations of large closed files, kept for a while: the next read of such a file asks the NameNode nothing.

That is worth it, and safe, for files that no longer change: large ones.  They are forgotten after ``reader_ttl_s`` or
on any doubt.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.settings import HdfsSettings


@dataclass(frozen=True, slots=True)
class _Known:
    locations: pb.LocatedBlocks
    expires: float


class ClosedFiles:
    """Those of one root, the least recently used ones dropped.  ``now``: seconds on a monotonic clock."""

    def __init__(self, settings: HdfsSettings) -> None:
        self._settings = settings
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def is_worth_it(self, locations: pb.LocatedBlocks) -> bool:
        return not locations.under_construction and locations.file_length >= self._settings.reader_file_min_bytes

    def get(self, path: str, end: int, now: float) -> pb.LocatedBlocks | None:
        """Return where the file's blocks are; None if that must be asked for, as for bytes behind its end."""
        known = self._known.get(path)
        if known is None:
            return None
        if known.expires < now or end > known.locations.file_length:
            del self._known[path]
            return None
        self._known.move_to_end(path)
        return known.locations

    def remember(self, path: str, locations: pb.LocatedBlocks, now: float) -> None:
        """Keep the locations of all of the file's blocks."""
        self._known[path] = _Known(locations, now + self._settings.reader_ttl_s)
        while len(self._known) > self._settings.readers_max:
            self._known.popitem(last=False)

    def forget(self, path: str) -> None:
        self._known.pop(path, None)

    def forget_all_under(self, path: str) -> None:
        for known in [known for known in self._known if known == path or known.startswith(path + "/")]:
            del self._known[known]
