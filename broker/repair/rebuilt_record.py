"""The record that a partition's next owner starts from, rebuilt from what storage shows of the partition.  Pure.

The record must be one that the last owner might have left: then the usual takeover does the rest (rule 4), and handles
every case.  So it lists every segment that may be open or not wholly checked.  Before them it lists the newest segment
that is known to be closed.  The takeover starts from the index of this segment:

* An index proves *closed* when it covers its file to the end.  Every segment registered later is listed as open, and so
  is the newest index's own segment when there are bytes behind those that the index covers.
* Segments registered earlier need not be listed, with or without an index: everything acknowledged in them was flushed
  before the next one was registered.  A lease that such a file may still have expires.
* A segment that a journal names is listed even if its file is missing.  Takeover then finds the data missing, and takes
  the partition OFFLINE, as with the lost record.

Names and journals mostly give the lease holder of an open file.  A spare's name gives the holder of its epoch, since an
epoch has a single owner.  A checkpoint of a segment that was not closed gives it too, since only the owner writes
checkpoints.  Otherwise the holder is left empty, and storage is asked for it when the file is fenced.

Journals are hints (``storage.journal``).  So the record names only the journal with the latest checkpoint and the
journal with the largest log start: no other can change the takeover's result.
"""

from __future__ import annotations

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.meta.ownership import NEVER, PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.layout import EPOCH_MAX, PartitionPath

EPOCH_MARGIN = 1_000
"""Added to the highest epoch that storage shows.  Owners without a file have used higher epochs: the owner of an idle
partition registers no file.  Multiplied by the store's rebuild count, so that the epochs given out by a store that was
lost again, with the partition idle all the while, are passed as well."""
CLOSED_KEPT = 3
"""Segments with an index that are kept in memory, in case the newest index cannot be used."""
OPEN_MAX = 256
"""Segments without an index that a record may list; there are more only if storage refused to write indexes."""
NAMES_MAX = 1_024
"""Segments of one folder that are kept in memory."""


class FoundFiles:
    """The files of one segment on storage."""

    __slots__ = ("file_id", "has_idx", "length")

    def __init__(self) -> None:
        self.length = -1
        """Bytes of the ``.log`` file, -1 if there is none."""
        self.file_id = 0
        self.has_idx = False


class PartitionFolder:
    """The contents of a partition's folder, added name by name; bounded, however many names there are."""

    __slots__ = ("epoch", "files", "holders", "last")

    def __init__(self) -> None:
        self.epoch = 0
        """The highest epoch in any name."""
        self.last = NEVER
        """The highest (epoch, n) in a segment's name."""
        self.files: dict[SegmentName, FoundFiles] = {}
        self.holders: dict[int, str] = {}
        """Lease holders by epoch, from the names of spares."""

    def spare(self, epoch: int, holder: str) -> None:
        """Add a spare file of this epoch and lease holder."""
        self.epoch = max(self.epoch, epoch)
        self.holders[epoch] = holder

    def segment(self, name: SegmentName, kind: str, length: int, file_id: int) -> None:
        """Add a segment's file.  ``kind``: log or idx; ``length`` and ``file_id`` are kept of a log only."""
        self.epoch = max(self.epoch, name.epoch)
        self.last = max(self.last, name.registration)
        file = self.files.setdefault(name, FoundFiles())
        if kind == "idx":
            file.has_idx = True
        else:
            file.length, file.file_id = length, file_id
        if len(self.files) > NAMES_MAX:
            self._prune()

    def closed(self) -> list[SegmentName]:
        """Return the newest ``CLOSED_KEPT`` segments that have a log and an index, newest first."""
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
    """The facts about one partition from all journals together."""

    __slots__ = ("_latest", "_latest_in", "_start", "_start_in", "_writing", "segment", "writer")

    def __init__(self) -> None:
        self._latest: tuple[int, ...] = ()
        self._latest_in = ""
        self._start = 0
        self._start_in = ""
        self._writing = (-1, -1, -1)
        self.segment: SegmentName | None = None
        """The segment of the latest checkpoint."""
        self.writer: tuple[int, str] = (-1, "")
        """(epoch, holder) of the latest segment that was open at its checkpoint."""

    def add(self, incarnation: str, checkpoint: Checkpoint) -> None:
        """Add the partition's last checkpoint in the journals of ``incarnation``."""
        if checkpoint.order > self._latest:
            self._latest, self.segment, self._latest_in = checkpoint.order, checkpoint.segment, incarnation
        if checkpoint.log_start > self._start:
            self._start, self._start_in = checkpoint.log_start, incarnation
        if not checkpoint.is_closed and checkpoint.segment.order > self._writing:
            self._writing, self.writer = checkpoint.segment.order, (checkpoint.segment.epoch, incarnation)

    @property
    def journals(self) -> tuple[str, ...]:
        """The incarnations whose journals takeover must read."""
        return tuple(dict.fromkeys(name for name in (self._start_in, self._latest_in) if name))


SILENCE = Spoken()
"""The facts about a partition that no journal names."""


def is_whole(checkpoint: Checkpoint | None, name: SegmentName, file: FoundFiles) -> bool:
    """Return whether the checkpoint is the segment's index and covers its log to the end."""
    return checkpoint is not None and checkpoint.segment == name and checkpoint.position == file.length


def record(
    path: PartitionPath, folder: PartitionFolder, spoken: Spoken, newest: Checkpoint | None, rebuild_count: int
) -> PartitionRecord:
    """Return the record that the partition's next owner starts from.

    ``newest``: the index of the newest segment that is known to be closed, None if there is none.
    ``rebuild_count``: that of the new store.  Raises FormatError if the epoch would not fit into a segment's name.
    """
    floor = newest.segment.order if newest is not None else (-1, -1, -1)
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
    epoch = highest + EPOCH_MARGIN * rebuild_count
    if epoch >= EPOCH_MAX:
        raise FormatError(f"{path.folder}: epoch {epoch} does not fit into a segment's name")
    return PartitionRecord(epoch=epoch, segments=tuple(entries), journals=spoken.journals, last=folder.last)


def _is_open(name: SegmentName, file: FoundFiles, floor: tuple[int, int, int]) -> bool:
    """Return whether recovery has to read the segment: its log is there, and it was registered after the closed one.

    A cleaned segment without an index is not read if its last source is the closed segment.  The source's index has all
    producers, also of batches that were removed.
    """
    return file.length >= 0 and name.order > floor and not (name.cleaning and name.registration <= floor[:2])


def _is_missing(folder: PartitionFolder, spoken: Spoken, floor: tuple[int, int, int]) -> bool:
    if spoken.segment is None or spoken.segment.order <= floor:
        return False
    at = spoken.segment.registration
    logs = (name for name, file in folder.files.items() if file.length >= 0)
    return not any(name == spoken.segment or (name.cleaning and name.registration == at) for name in logs)


def _opened(path: PartitionPath, name: SegmentName, folder: PartitionFolder, spoken: Spoken) -> SegmentEntry:
    holder = folder.holders.get(name.epoch, "")
    if not holder and spoken.writer[0] == name.epoch:
        holder = spoken.writer[1]
    file = folder.files.get(name)
    return SegmentEntry(name=name, spare=path.log(name), holder=holder, file_id=file.file_id if file else 0)


def _closed(newest: Checkpoint, folder: PartitionFolder) -> SegmentEntry:
    name = newest.segment
    entry = SegmentEntry(name=name, spare="", holder="", file_id=folder.files[name].file_id)
    return entry.closed(newest.position, newest.end_offset)


def _order(name: SegmentName) -> tuple[int, int, int]:
    return name.order
