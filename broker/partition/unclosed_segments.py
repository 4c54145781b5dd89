"""The segments that an owner writes no more, as far as its record has to list them: pure.

All that are not yet known closed, and the newest closed one: a successor begins to read where that ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint


class UnclosedSegments:
    """One partition's."""

    __slots__ = ("_closed", "_empty", "_indexed", "_unclosed")

    def __init__(self) -> None:
        self._unclosed: dict[SegmentName, SegmentEntry] = {}
        self._closed: SegmentEntry | None = None
        self._indexed: SegmentName | None = None  # whose index we have written ourselves
        self._empty: list[SegmentName] = []  # closed without a byte that was flushed, and perhaps still listed

    def __repr__(self) -> str:
        return f"<LeftSegments unclosed={len(self._unclosed)} closed={self._closed and self._closed.name}>"

    def __len__(self) -> int:
        """Those not yet known closed."""
        return len(self._unclosed)

    @property
    def is_empty(self) -> bool:
        """Whether the log has no earlier segment that this owner knows of."""
        return self._closed is None and not self._unclosed

    def found(self, listed: Iterable[SegmentEntry], name: SegmentName, length: int, end_offset: int) -> None:
        """The predecessor's last one, of those that its record lists."""
        for entry in listed:
            if entry.name == name:
                self._closed = entry.closed(length, end_offset)
                return
        # Only a checkpoint speaks of it: it was dropped from the record when it was closed, so its lease is gone.
        self._closed = SegmentEntry(name=name, spare="", holder="", file_id=0, length=length, end_offset=end_offset)

    def leave(self, entry: SegmentEntry) -> None:
        """It is written no more; closing it begins."""
        self._unclosed[entry.name] = entry

    def closed(self, entry: SegmentEntry) -> None:
        """It is closed and indexed: the next record need not list it, unless it is the newest."""
        del self._unclosed[entry.name]
        is_newest = self._closed is None or self._closed.name.order < entry.name.order
        if entry.length == 0:
            self._empty.append(entry.name)
        elif is_newest:
            self._closed, self._indexed = entry, entry.name

    def listed(self, *opened: SegmentEntry) -> tuple[SegmentEntry, ...]:
        """For the record, with the one to be opened."""
        listed = [*self._unclosed.values(), *opened]
        if self._closed is not None:
            listed.append(self._closed)
        return tuple(sorted(listed, key=lambda entry: entry.name.order))

    def take_empty(self, listed: Iterable[SegmentEntry]) -> tuple[SegmentName, ...]:
        """Return the segments that closed without a flushed byte and that the stored record lists no more, once each.

        Nobody needs their files: what they were to hold is in later segments of the same base, and a successor looks
        for what the record lists.
        """
        names = {entry.name for entry in listed}
        gone = tuple(name for name in self._empty if name not in names)
        self._empty = [name for name in self._empty if name in names]
        return gone

    def is_settled(self, last: Checkpoint | None, log_start: int) -> bool:
        """Whether the last segment's index holds all that a checkpoint would: the log start is that of its closing."""
        if last is None or self._closed is None:
            return False
        return last.segment == self._closed.name == self._indexed and last.log_start == log_start
