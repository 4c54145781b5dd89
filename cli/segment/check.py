"""The rules that one segment's files must keep, checked batch by batch: pure, the caller reads.

``on_batch`` and ``on_damage`` are called in order of position, then ``finish``.  A finding has the fault, its place,
and its meaning for the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmq.cli.segment.findings import Finding
from bmq.cli.segment.index_check import IndexCheck
from bmq.cli.segment.targets import TargetSegment
from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch
from bmq.core.records.reader import read_records
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.damage_reader import DamagedPart, FoundBatch
from bmq.storage.transactions import Transactions


@dataclass(frozen=True, slots=True)
class FlushedEnd:
    """The end of the bytes of a segment that were flushed, by a journal's checkpoint."""

    position: int
    end_offset: int


class SegmentCheck:
    """A check of one ``.log`` against its name, its neighbours, its ``.idx`` and its last checkpoint."""

    def __init__(
        self,
        segment: TargetSegment,
        length: int,
        index: Checkpoint | None,
        covered: FlushedEnd | None,
        add: Callable[[Finding], None],
        *,
        with_records: bool = False,
        shows_open_files: bool = True,
        opened: Mapping[int, int] | None = None,
    ) -> None:
        """Begin the check.  ``shows_open_files`` is False if an open file may hold more than ``length``.

        ``opened``: by producer id, first offsets of the transactions open at the segment's base; None if unknown.

        An index that covers as many offsets as the checkpoint wins: a repair may have made the file shorter since, and
        the index describes it as it is now.
        """
        if index is not None and covered is not None and covered.end_offset <= index.end_offset:
            covered = None
        self.segment = segment
        self.length = length
        self.batches = 0
        self.position = 0  # the end of the good batches
        self.offset: int | None = segment.name.base  # due next; None after damage, where any may follow
        self.end_offset = segment.name.base
        self._covered = covered
        self._add = add
        self._with_records = with_records
        self._may_be_longer = index is None and not shows_open_files
        self._epoch = -1 if segment.name.cleaning else segment.name.epoch  # a cleaned one may begin with an older epoch
        self._tail: DamagedPart | None = None
        self._index = IndexCheck(segment, index, length, add, opened) if index is not None else None
        self._transactions = Transactions(opened.items()) if opened is not None else None
        self._index_position = index.position if index is not None else 0
        self._seen_covered = covered is None or covered.position == 0
        self._empty_batches = self._empty_offsets = 0
        self._first_empty: tuple[int, int] | None = None  # position and offset

    @property
    def is_complete(self) -> bool:
        """True if the next segment's base is reached: what follows are leftovers."""
        return self.segment.limit is not None and self.end_offset >= self.segment.limit

    def on_batch(self, found: FoundBatch) -> None:
        """Check the next batch against its neighbours, the index and the checkpoint."""
        batch = found.batch
        self._check_offset(found)
        if batch.count == 0 <= batch.last_offset_delta:
            self._empty_batches += 1
            self._empty_offsets += batch.last_offset_delta + 1
            self._first_empty = self._first_empty or (found.position, batch.base_offset)
        elif not 1 <= batch.count <= batch.last_offset_delta + 1:
            self._fault(
                f"the header counts {batch.count} records, its offsets {batch.last_offset_delta + 1}",
                "No broker accepts such a batch: it was written by something else.",
                found.position,
                batch.base_offset,
            )
        if batch.leader_epoch < self._epoch:
            self._fault(
                f"leader epoch {batch.leader_epoch} follows {self._epoch}",
                "An owner of an older epoch wrote after a newer one: its file was not fenced.",
                found.position,
                batch.base_offset,
            )
        elif self.segment.name.cleaning and batch.leader_epoch > self.segment.name.epoch:
            self._fault(
                f"leader epoch {batch.leader_epoch} is above that of the name",
                "A cleaned segment has the epoch of its last source: it was put together wrongly.",
                found.position,
                batch.base_offset,
            )
        self._epoch = max(self._epoch, batch.leader_epoch)
        if self._with_records:
            self._check_records(found)
        if self._index is not None:
            self._index.on_batch(found)
        self._pass_transactions(batch)
        self.batches += 1
        self.position, self.end_offset = found.end, max(self.end_offset, batch.next_offset)
        self.offset = batch.next_offset
        self._check_covered()

    def on_damage(self, damage: DamagedPart) -> None:
        """Report damage, unless it is the tail, which ``finish`` judges."""
        if self._index is not None:
            self._index.on_damage(damage)
        if damage.is_tail:
            self._tail = damage
            return
        self._transactions = None  # the damaged bytes may hold anything
        if damage.mended is not None:
            what = damage.fault
        else:
            end = damage.position + damage.size
            what = f"{damage.size} bytes are not a batch ({damage.fault}); good batches follow at {end}"
        self._fault(
            what,
            "BROKEN in the middle: bytes were damaged after they were written, or two writers met. Another replica may"
            f" have them right. {self._way_back()}",
            damage.position,
            self.offset,
        )
        self.offset = None
        if damage.mended is not None:
            self.position, self.offset = damage.position + damage.size, damage.mended.next_offset
            self.end_offset = max(self.end_offset, self.offset)
            self._check_covered()

    @property
    def opened(self) -> dict[int, int] | None:
        """The transactions that are open at the segment's end, as ``opened`` of the next check; None if unknown.

        The batches of a cleaned segment do not tell: data of such a transaction may be gone.
        """
        if self.segment.name.cleaning:
            return None
        is_whole = self.segment.limit is None or self.end_offset >= self.segment.limit
        return dict(self._transactions.opened) if self._transactions is not None and is_whole else None

    def _pass_transactions(self, batch: Batch) -> None:
        if self._transactions is None:
            return
        try:
            self._transactions.pass_batch(batch)
        except FormatError:
            self._transactions = None  # `--records` reports the batch
        if not batch.count:
            self._transactions = None  # the gap of a repair stands for batches of any kind

    def finish(self) -> None:
        """End the check when the file, or the part of it that counts, has been read."""
        if self._first_empty is not None:
            self._note(
                f"{self._empty_offsets} offsets without records, in {self._empty_batches} batches",
                "Compaction removed the records, or a repair put a gap where they were lost; consumers continue after"
                " them.",
                *self._first_empty,
            )
        is_short = self._check_promises()
        if self._index is not None:
            self._index.finish(self.position if self.is_complete else None)
        if is_short:
            return
        if self._tail is not None and not self.is_complete:
            self._note(
                f"the last {self._tail.size} bytes are a torn write ({self._tail.fault})",
                "Harmless: its writer is in this batch, or died in it; it was never acknowledged. The log ends here.",
                self._tail.position,
                self.end_offset,
            )
        elif self.position < self.length:
            self._note(
                f"{self.length - self.position} bytes after the segment's end are ignored",
                f"Leftovers of a failed write: the next segment begins at offset {self.segment.limit} and holds what"
                " counts.",
                self.position,
                self.end_offset,
            )

    def _check_promises(self) -> bool:
        """Report flushed data that is missing, once, by the strongest evidence.  Returns whether any is."""
        end_position = self.position
        if self._covered is not None and self._covered.position > self.length:
            what = f"the file has {self.length} bytes, a checkpoint says that {self._covered.position} were flushed"
        elif self._index_position > self.length:
            what = f"the file has {self.length} bytes, its .idx describes {self._index_position}"
        elif self._tail is not None and self._covered is not None and self._covered.position > end_position:
            what = f"damaged from here on ({self._tail.fault}); a checkpoint says {self._covered.position} were flushed"
        elif self._tail is not None and self._index_position > end_position:
            what = f"damaged from here on ({self._tail.fault}); the .idx describes {self._index_position} bytes"
        elif self.segment.limit is not None and self.end_offset < self.segment.limit:
            what = f"ends before offset {self.segment.limit}, where the next segment begins"
            what += f" ({self._tail.fault})" if self._tail is not None else ""
        else:
            return False
        if self._may_be_longer and self._tail is None:
            meaning = "WebHDFS shows only the NameNode's length of an open file. Verify it by the hdfs:// address."
            self._note(what, meaning, end_position, self.end_offset)
            return True
        meaning = "Acknowledged data is missing: storage lost it, or the file was cut or copied in part."
        meaning += f" {self._way_back()}"
        self._fault(what, meaning, end_position, self.end_offset)
        return True

    def _way_back(self) -> str:
        """Return the consequence of lost or damaged bytes, and the command that repairs them.

        A repair reads closed segments only with ``--all``.
        """
        if self.segment.has_idx or self.segment.limit is not None:
            return (
                "Consumers stop at this offset of a closed segment; `bmq segment repair TOPIC PARTITION --all` shows"
                " what can be kept, --yes repairs it."
            )
        return (
            "A recovery that reads this takes the partition OFFLINE; `bmq segment repair TOPIC PARTITION` shows what"
            " can be kept, --yes repairs it."
        )

    def _check_offset(self, found: FoundBatch) -> None:
        base, due, limit = found.batch.base_offset, self.offset, self.segment.limit
        if due is not None and base > due:
            self._fault(
                f"base offset {base}, expected {due}: {base - due} offsets are missing",
                "Offsets of a log are dense: a batch was lost, or the file was put together wrongly.",
                found.position,
                due,
            )
        elif due is not None and base < due:
            self._fault(
                f"base offset {base}, expected {due}: offsets appear twice",
                "A batch was written twice, or two owners wrote to this file.",
                found.position,
                base,
            )
        if limit is not None and base < limit < found.batch.next_offset:
            self._fault(
                f"the batch reaches offset {found.batch.last_offset}, but the next segment begins at {limit}",
                "The segments overlap inside a batch; a segment begins where a flushed batch ended.",
                found.position,
                base,
            )

    def _check_records(self, found: FoundBatch) -> None:
        try:
            for _ in read_records(found.batch):
                pass
        except FormatError as error:
            self._fault(
                f"its records cannot be read: {error}",
                "The CRC is right, so the producer sent it so: consumers will fail at this batch. `bmq segment repair"
                " TOPIC PARTITION --all --records` skips it.",
                found.position,
                found.batch.base_offset,
            )

    def _check_covered(self) -> None:
        """Check that the checkpoint's position is a batch's end, with the checkpoint's offset."""
        covered = self._covered
        if covered is None or self._seen_covered or self.position < covered.position:
            return
        self._seen_covered = True
        if (self.position, self.end_offset) != (covered.position, covered.end_offset):
            self._fault(
                f"a checkpoint says offset {covered.end_offset} is at position {covered.position},"
                f" but a batch ends at {self.position} with offset {self.end_offset}",
                "The journal and the file disagree: one of them is not what the owner wrote.",
                covered.position,
                covered.end_offset,
            )

    def _fault(self, what: str, meaning: str, position: int | None, offset: int | None) -> None:
        self._add(Finding(file=self.segment.log, what=what, meaning=meaning, position=position, offset=offset))

    def _note(self, what: str, meaning: str, position: int, offset: int) -> None:
        self._add(
            Finding(file=self.segment.log, what=what, meaning=meaning, is_fault=False, position=position, offset=offset)
        )
