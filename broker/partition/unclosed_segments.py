"""Segments that an owner does not write any more, as far as its record must list them: pure.

The record lists every segment that is not yet known to be closed, and the newest closed segment, at whose end a
successor begins to read. Segments that were closed without a flushed byte are of two kinds:

| closed empty            | its index         | the record                                                  |
| ----------------------- | ----------------- | ----------------------------------------------------------- |
| its file broke, or the  | none              | does not name it: its batches are in a later segment        |
| partition is moved      |                   |                                                             |
| to end a quiet log      | has the producers | names it as the newest closed segment, until a later one is |
|                         |                   | closed                                                      |

The files of both kinds are deleted once the record does not name them.
"""

from __future__ import annotations

from collections.abc import Iterable

from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint


class UnclosedSegments:
    """The segments of one partition that are closed or being closed.

    Its length is the number not yet known to be closed.
    """

    __slots__ = ("_closed", "_empty", "_ending", "_indexed", "_unclosed", "_unindexed")

    def __init__(self) -> None:
        self._unclosed: dict[SegmentName, SegmentEntry] = {}
        self._closed: SegmentEntry | None = None
        self._indexed: SegmentName | None = None  # newest one whose index this owner made
        self._unindexed: dict[SegmentName, SegmentEntry] = {}  # without an index on storage
        self._empty: list[SegmentName] = []  # closed without a flushed byte, and perhaps still listed
        self._ending: SegmentName | None = None  # the last one that was closed empty to end a quiet log

    def __repr__(self) -> str:
        return f"<UnclosedSegments unclosed={len(self._unclosed)} closed={self._closed and self._closed.name}>"

    def __len__(self) -> int:
        """Return the number of segments not yet known to be closed."""
        return len(self._unclosed)

    @property
    def is_empty(self) -> bool:
        """True if the log has no earlier segment that this owner knows of."""
        return self._closed is None and not self._unclosed

    @property
    def has_cleanable_newest(self) -> bool:
        """True if all segments are closed, and the newest could be cleaned if the record named a later one."""
        newest = self._closed
        return not self._unclosed and newest is not None and newest.length > 0 and newest.name not in self._unindexed

    @property
    def names(self) -> Iterable[SegmentName]:
        """The names of the segments not yet known to be closed."""
        return self._unclosed.keys()

    def found(self, listed: Iterable[SegmentEntry], name: SegmentName, length: int, end_offset: int) -> None:
        """Note the predecessor's last segment, with its length in bytes and its end offset.

        ``listed``: the entries of the predecessor's record.
        """
        for entry in listed:
            if entry.name == name:
                self._closed = entry.closed(length, end_offset)
                return
        # Only a checkpoint names it. The record dropped it when it was closed, so it has no lease.
        self._closed = SegmentEntry(name=name, spare="", holder="", file_id=0, length=length, end_offset=end_offset)

    def lacks_index(self, entry: SegmentEntry) -> None:
        """Note a closed segment without an index on storage: the record names it until the index is there."""
        self._unindexed[entry.name] = entry

    def indexed(self, name: SegmentName) -> None:
        """Note that no more work is due on the segment's index: it is on storage, or was given up."""
        self._unindexed.pop(name, None)

    def leave(self, entry: SegmentEntry, *, ends_log: bool = False) -> None:
        """Note that the segment is not written any more and is being closed.

        ``ends_log``: it is empty, to end a quiet log.
        """
        self._unclosed[entry.name] = entry
        if ends_log:
            self._ending = entry.name

    def closed(self, entry: SegmentEntry) -> None:
        """Note that the segment is closed: the next record lists it if it is the newest, or lacks its index."""
        del self._unclosed[entry.name]
        is_newest = self._closed is None or self._closed.name.order < entry.name.order
        if entry.length == 0 and not (is_newest and entry.name == self._ending):
            self._empty.append(entry.name)
        elif is_newest:
            if self._closed is not None and self._closed.length == 0:
                self._empty.append(self._closed.name)
            self._closed, self._indexed = entry, entry.name

    def listed(self, *opened: SegmentEntry) -> tuple[SegmentEntry, ...]:
        """Return the entries that the record must list, in the order of their names, ``opened`` among them."""
        listed = [*self._unclosed.values(), *self._unindexed.values(), *opened]
        if self._closed is not None and self._closed.name not in self._unindexed:
            listed.append(self._closed)
        return tuple(sorted(listed, key=lambda entry: entry.name.order))

    def still_needed(self, listed: tuple[SegmentEntry, ...]) -> tuple[SegmentEntry, ...]:
        """Return the entries of the stored record without old names: closed segments before the newest."""
        closed = self._closed
        if closed is None:
            return listed
        return tuple(
            closed if entry.name == closed.name else entry
            for entry in listed
            if entry.name.order >= closed.name.order or entry.name in self._unclosed or entry.name in self._unindexed
        )

    def take_empty(self, listed: Iterable[SegmentEntry]) -> tuple[SegmentName, ...]:
        """Return, once, the segments that closed without a flushed byte and are missing in the stored record.

        Their files are not needed: later segments have the same base, and a successor reads only listed ones.
        """
        names = {entry.name for entry in listed}
        gone = tuple(name for name in self._empty if name not in names)
        self._empty = [name for name in self._empty if name in names]
        return gone

    def is_settled(self, last: Checkpoint | None, log_start: int) -> bool:
        """Return whether the last segment's index holds everything that a checkpoint would.

        It does if this owner made it, and the log start has not moved since.
        """
        if last is None or self._closed is None:
            return False
        return last.segment == self._closed.name == self._indexed and last.log_start == log_start
