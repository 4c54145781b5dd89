"""What storage shows of a partition -> the record that its next owner starts from.  Pure.

The record is to be one that the last owner might have left: then the usual takeover does the rest (rule 4), and knows
what to do in every case.  So it has to list every segment that may be open or not wholly checked, and behind them the
newest one that is known to be closed, whose index leads on:

* An index says *closed* when it covers its file to the end.  Whatever was registered later is listed as open, and so is
  the newest index's own segment when there are bytes behind what it covers.
* Segments registered earlier need not be listed, with or without an index: all that counts in them was flushed before
  the next one was registered.  A lease that such a file may still have ends by itself.
* A segment that a journal speaks of and that is not there is listed too: takeover then finds that data is missing, and
  takes the partition OFFLINE, as it would have with the record that is lost.

Who holds an open file's lease stands in names and journals, most times: a spare's name tells it for its epoch, since
an epoch has one owner, and so does a checkpoint of a segment that was not closed, since nobody else writes those.  Else
the holder is left empty, and storage is asked when the file is fenced.

Journals are hints (``storage.journal``), so of all brokers' only those are named that can change what takeover finds:
the one with the latest checkpoint, and the one with the largest log start.
"""

from __future__ import annotations

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.layout import EPOCH_MAX, PartitionPath

EPOCH_MARGIN = 1_000
"""Ownerships of one life of the store that may have left no file: an idle partition's owner registers nothing.  Times
the incarnation, so that a store that is lost again, with the partition idle all the while, is passed as well."""
CLOSED_KEPT = 3
"""Segments with an index that are remembered, in case the newest one's cannot be used."""
OPEN_MAX = 256
"""Segments without an index that a record may list: more were left by a storage that refused to write indexes."""
NAMES_MAX = 1_024


class File:
    """One segment's names on storage."""

    __slots__ = ("file_id", "has_idx", "length")

    def __init__(self) -> None:
        self.length = -1
        """Of the ``.log``, -1 when there is none."""
        self.file_id = 0
        self.has_idx = False


class Folder:
    """A partition's folder, name by name; keeps what may be needed, however many names there are."""

    __slots__ = ("epoch", "files", "holders")

    def __init__(self) -> None:
        self.epoch = 0
        """The highest one in any name."""
        self.files: dict[SegmentName, File] = {}
        self.holders: dict[int, str] = {}
        """By epoch, as spares tell."""

    def spare(self, epoch: int, holder: str) -> None:
        self.epoch = max(self.epoch, epoch)
        self.holders[epoch] = holder

    def segment(self, name: SegmentName, kind: str, length: int, file_id: int) -> None:
        """``kind`` is log or idx."""
        self.epoch = max(self.epoch, name.epoch)
        file = self.files.setdefault(name, File())
        if kind == "idx":
            file.has_idx = True
        else:
            file.length, file.file_id = length, file_id
        if len(self.files) > NAMES_MAX:
            self._prune()

    def closed(self) -> list[SegmentName]:
        """Those with an index, newest first."""
        names = [name for name, file in self.files.items() if file.has_idx and file.length >= 0]
        return sorted(names, key=_order, reverse=True)[:CLOSED_KEPT]

    def _prune(self) -> None:
        closed = self.closed()
        if len(closed) == CLOSED_KEPT:
            self.files = {name: file for name, file in self.files.items() if name.order >= closed[-1].order}
        excess = len(self.files) - NAMES_MAX
        if excess > 0:  # none of them can be listed (``OPEN_MAX``)
            oldest = sorted(self.files, key=_order)[: NAMES_MAX // 2]
            for name in oldest:
                del self.files[name]


class Spoken:
    """What all journals together say of one partition."""

    __slots__ = ("_latest", "_latest_in", "_start", "_start_in", "_writing", "segment", "writer")

    def __init__(self) -> None:
        self._latest: tuple[int, ...] = ()
        self._latest_in = ""
        self._start = 0
        self._start_in = ""
        self._writing = (-1, -1)
        self.segment: SegmentName | None = None
        """That of the latest checkpoint."""
        self.writer: tuple[int, str] = (-1, "")
        """(epoch, holder) of the latest segment that was not closed when its writer spoke of it."""

    def hear(self, incarnation: str, checkpoint: Checkpoint) -> None:
        """The last one in the journals of ``incarnation``."""
        if checkpoint.order > self._latest:
            self._latest, self.segment, self._latest_in = checkpoint.order, checkpoint.segment, incarnation
        if checkpoint.log_start > self._start:
            self._start, self._start_in = checkpoint.log_start, incarnation
        if not checkpoint.is_closed and checkpoint.segment.order > self._writing:
            self._writing, self.writer = checkpoint.segment.order, (checkpoint.segment.epoch, incarnation)

    @property
    def journals(self) -> tuple[str, ...]:
        """The incarnations whose journals are to be read."""
        return tuple(dict.fromkeys(name for name in (self._start_in, self._latest_in) if name))


SILENCE = Spoken()
"""Of a partition that no journal speaks of."""


def is_whole(checkpoint: Checkpoint | None, name: SegmentName, file: File) -> bool:
    """Whether the segment's index says all that there is to know of it."""
    return checkpoint is not None and checkpoint.segment == name and checkpoint.position == file.length


def record(
    path: PartitionPath, folder: Folder, spoken: Spoken, newest: Checkpoint | None, incarnation: int
) -> PartitionRecord:
    """``newest``: the index of the newest segment that is known to be closed; ``incarnation`` the new store's.

    FormatError when epochs are used up.
    """
    floor = newest.segment.order if newest is not None else (-1, -1)
    names = sorted((name for name, file in folder.files.items() if _is_open(name, file, floor)), key=_order)
    is_cut = len(names) > OPEN_MAX
    entries = [_opened(path, name, folder, spoken) for name in names[-OPEN_MAX:]]
    if newest is not None and not is_cut:  # else the first one's end would seem to be missing
        entries.insert(0, _closed(newest, folder))
    if _is_missing(folder, spoken, floor if not is_cut else names[-OPEN_MAX].order):
        assert spoken.segment is not None
        entries.append(_opened(path, spoken.segment, folder, spoken))
        entries.sort(key=lambda entry: entry.name.order)
    highest = max(folder.epoch, spoken.segment.epoch if spoken.segment is not None else 0)
    epoch = highest + EPOCH_MARGIN * incarnation
    if epoch >= EPOCH_MAX:
        raise FormatError(f"{path.folder}: epoch {epoch} does not fit into a segment's name")
    return PartitionRecord(epoch=epoch, segments=tuple(entries), journals=spoken.journals)


def _is_open(name: SegmentName, file: File, floor: tuple[int, int]) -> bool:
    return file.length >= 0 and name.order > floor


def _is_missing(folder: Folder, spoken: Spoken, floor: tuple[int, int]) -> bool:
    if spoken.segment is None or spoken.segment.order <= floor:
        return False
    file = folder.files.get(spoken.segment)
    return file is None or file.length < 0


def _opened(path: PartitionPath, name: SegmentName, folder: Folder, spoken: Spoken) -> SegmentEntry:
    holder = folder.holders.get(name.epoch, "")
    if not holder and spoken.writer[0] == name.epoch:
        holder = spoken.writer[1]
    file = folder.files.get(name)
    return SegmentEntry(name=name, spare=path.log(name), holder=holder, file_id=file.file_id if file else 0)


def _closed(newest: Checkpoint, folder: Folder) -> SegmentEntry:
    name = newest.segment
    entry = SegmentEntry(name=name, spare="", holder="", file_id=folder.files[name].file_id)
    return entry.closed(newest.position, newest.end_offset)


def _order(name: SegmentName) -> tuple[int, int]:
    return name.order
