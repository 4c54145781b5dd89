"""A round of cleaning over closed segments: batches in, the bytes of cleaned files and their facts out.  Pure.

The caller reads and writes::

    cleaning = CleaningRound(bounds, sources, aborted=..., producers=..., buffer_bytes=...)
    cleaning.map_keys()                         reads the dirty sources; all sources if there are several passes
    for group in plan.groups:                   in order of offsets: each file is in place before the next file is
        facts = cleaning.clean(group, write)    reads the group's sources once more

Order matters.  A record goes because a later record has its key, and a marker goes because data below it is gone.  If
the round ends early, the cleaned files lie below the sources that are left. So no record is missing.

Offsets stay dense: a batch of the source is there, or a batch without records stands for its offsets.  A run of such
batches is joined, but not over a change of the leader epoch: headers alone tell where an epoch begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bmq.core.aio.pace import no_pause
from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch, build_gap
from bmq.core.records.reader import RECORDS_BYTES_MAX
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.batch_writer import CleanedRecord, KeptRecords, cut_records, empty_batch, write_batch
from bmq.storage.cleaning.key_offsets import KeyOffsets
from bmq.storage.cleaning.retention import (
    DELETE_HORIZON,
    NO_HORIZON,
    AbortedRanges,
    BatchVerdict,
    ProducerEnd,
    RecordRule,
    Retention,
    RoundBounds,
)
from bmq.storage.cleaning.superseded import SupersededRecords

PACE_RECORDS = 100
"""Records between two calls of the caller's ``pace``: a millisecond or two of work."""
Write = Callable[[bytes | bytearray | memoryview], None]
"""The caller's output: called with the bytes of one batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """A closed segment of a round: its offsets [``base``, ``end_offset``), and a reader of its batches.

    ``batches`` begins a walk at the first batch.  It is called once for each walk of the round.  The caller has checked
    CRCs; what the walk raises passes through.
    """

    base: int
    end_offset: int
    batches: Callable[[], Iterable[Batch]]


@dataclass(slots=True, kw_only=True)
class CleanedFacts:
    """The facts of a cleaned file, for its index.

    ``cleaned_up_to``: below it no record of the log has the key of a record here with a lower offset.
    ``earliest_horizon``: of the batches that hold tombstones or are markers, -1 without any.  ``tombstones`` counts
    records, ``markers`` control batches with a record.  ``epochs``: (leader epoch, first offset), in order.
    ``aborted``: the transactions with their marker here that had data when the round began.
    """

    base: int
    end_offset: int
    cleaned_up_to: int
    earliest_horizon: int = NO_HORIZON
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    tombstones: int = 0
    markers: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)


class CleaningRound:
    """One round over the sources of a log, from the log's first segment to ``bounds.end``.

    ``aborted`` must have every aborted transaction with data below ``bounds.end``, also if its marker lies behind it:
    data that no entry names counts as committed.  ``producers`` are the producers that the partition's owner knows.
    Memory: the map, its marks, a decompressed batch, and some numbers for an aborted transaction.
    """

    def __init__(
        self,
        bounds: RoundBounds,
        sources: Sequence[Source],
        *,
        aborted: Iterable[AbortedTransaction],
        producers: Mapping[int, ProducerEnd],
        buffer_bytes: int,
        records_bytes_max: int = RECORDS_BYTES_MAX,
        pace: Callable[[], None] = no_pause,
    ) -> None:
        self.bounds = bounds
        self._sources = list(sources)
        self._aborted = list(aborted)
        self._ranges = AbortedRanges(self._aborted)
        self._superseded = SupersededRecords(KeyOffsets.within(buffer_bytes))
        self._retention = Retention(bounds, self._ranges, producers)
        self._records_bytes_max = records_bytes_max
        self._pace = pace
        self._records_passed = 0
        self._sources_cleaned = 0
        self._with_data: set[AbortedTransaction] = set()
        self.passes = 0
        """Passes over the keys: 1 if the map has room for all of them."""
        for source, following in zip(self._sources, self._sources[1:], strict=False):
            if source.end_offset > following.base:
                raise ValueError(
                    f"sources overlap: one ends at {source.end_offset}, the next begins at {following.base}"
                )
        if self._sources and self._sources[-1].end_offset > bounds.end:
            raise ValueError(f"a source ends at {self._sources[-1].end_offset}, behind the round's end {bounds.end}")

    def map_keys(self) -> None:
        """Find the records that have a later record of their key.  Raises FormatError at a batch that cannot be read.

        The round is of no use after an exception.
        """
        while True:
            self.passes += 1
            for batch in self._walk(source for source in self._sources if source.end_offset > self.bounds.first_dirty):
                for record in self._judged_by_key(batch):
                    if record.key is not None and record.offset >= self.bounds.first_dirty:
                        self._superseded.map_record(record.key, record.offset)
            if self._superseded.needs_marks:
                self._mark()
            if not self._superseded.next_pass():
                return

    def clean(self, group: Sequence[Source], write: Write) -> CleanedFacts:
        """Write the cleaned file of the group's sources: the round's next sources, neighbours in order of offsets.

        Raises FormatError at a batch that cannot be read.  The round is of no use after an exception.
        """
        first = self._sources_cleaned
        if not group or list(group) != self._sources[first : first + len(group)]:
            raise ValueError("groups are the round's sources, in their order and without a hole")
        self._sources_cleaned += len(group)
        file = _CleanedFile(group[0].base, group[-1].end_offset, self.bounds, write)
        for batch in self._walk(group):
            self._clean_batch(batch, file)
        file.finish()
        file.facts.aborted = [
            each for each in self._aborted if file.holds(each.last_offset) and each in self._with_data
        ]
        return file.facts

    def _mark(self) -> None:
        number = 0
        for batch in self._walk(self._sources):
            for at, record in enumerate(self._judged_by_key(batch)):
                if record.key is not None:
                    self._superseded.mark_record(record.key, record.offset, number + at)
            number += batch.count

    def _clean_batch(self, batch: Batch, file: _CleanedFile) -> None:
        verdict = self._retention.judge(batch)
        if batch.is_transactional and not batch.is_control:
            self._note_aborted(batch)
        number, self._records_passed = self._records_passed, self._records_passed + batch.count
        file.begin(batch)
        kept = KeptRecords(batch)
        if verdict.rule is not RecordRule.NONE:
            is_by_key = verdict.rule is RecordRule.BY_KEY
            for at, record in enumerate(self._records(batch)):
                if not is_by_key or self._stays(record, number + at, verdict):
                    kept.add(record)
        if kept.count:
            file.keep(batch, kept, verdict)
        elif verdict.is_empty_kept:
            file.keep_empty(batch)

    def _stays(self, record: CleanedRecord, number: int, verdict: BatchVerdict) -> bool:
        if record.key is None:
            return True
        if self._superseded.is_superseded(record.key, record.offset, number):
            return False
        return record.has_value or verdict.keeps_tombstones

    def _note_aborted(self, batch: Batch) -> None:
        transaction = self._ranges.find(batch)
        if transaction is not None:
            self._with_data.add(transaction)

    def _judged_by_key(self, batch: Batch) -> Iterator[CleanedRecord]:
        """Yield the records that count for keys: neither control records nor data of aborted transactions."""
        if not batch.is_control and self._ranges.find(batch) is None:
            yield from self._records(batch)

    def _records(self, batch: Batch) -> Iterator[CleanedRecord]:
        """Yield the batch's records, with a call of ``pace`` after each PACE_RECORDS."""
        for number, record in enumerate(cut_records(batch, bytes_max=self._records_bytes_max), 1):
            yield record
            if number % PACE_RECORDS == 0:
                self._pace()

    def _walk(self, sources: Iterable[Source]) -> Iterator[Batch]:
        """Yield the batches of the sources.  Raises FormatError if they are not dense within a source."""
        for source in sources:
            due = source.base
            for batch in source.batches():
                if batch.base_offset != due or batch.next_offset > source.end_offset:
                    raise FormatError(f"a batch at offset {batch.base_offset}, but {due} is due")
                due = batch.next_offset
                yield batch
            if due != source.end_offset:
                raise FormatError(f"the segment at {source.base} ends at {due}, but its end is {source.end_offset}")


class _CleanedFile:
    """The output of one group: it joins runs of batches without records, and counts."""

    def __init__(self, base: int, end_offset: int, bounds: RoundBounds, write: Write) -> None:
        self.facts = CleanedFacts(base=base, end_offset=end_offset, cleaned_up_to=bounds.end)
        self._bounds = bounds
        self._write = write
        self._due = base  # the offset behind the last batch that was written
        self._passed = base  # the offset behind the last batch that was read
        self._epoch = -1  # leader epoch of the offsets [due, passed)

    def holds(self, offset: int) -> bool:
        return self.facts.base <= offset < self.facts.end_offset

    def begin(self, batch: Batch) -> None:
        """Take the next batch of a source: its offsets are a gap unless a ``keep`` follows."""
        if batch.base_offset > self._passed:
            raise FormatError(f"offsets {self._passed} to {batch.base_offset - 1} are missing between two segments")
        facts = self.facts
        facts.bytes_before += batch.size
        facts.records_before += batch.count
        if not facts.epochs or facts.epochs[-1][0] != batch.leader_epoch:
            self._write_gap(batch.base_offset)
            facts.epochs.append((batch.leader_epoch, batch.base_offset))
            self._epoch = batch.leader_epoch
        self._passed = batch.next_offset

    def keep(self, batch: Batch, kept: KeptRecords, verdict: BatchVerdict) -> None:
        """Write the batch with these records."""
        tombstones = 0 if batch.is_control else kept.tombstones
        holds_deletion = tombstones > 0 or verdict.is_free_marker
        has_horizon = bool(batch.attributes & DELETE_HORIZON)
        horizon = self._bounds.horizon if holds_deletion and verdict.may_get_horizon else NO_HORIZON
        if kept.count == batch.count and horizon == NO_HORIZON:
            self._put(batch, batch.data[: batch.size])
        else:
            self._put(batch, write_batch(batch, kept, horizon))
        facts = self.facts
        facts.records_after += kept.count
        facts.tombstones += tombstones
        facts.markers += batch.is_control
        if horizon == NO_HORIZON and has_horizon and (tombstones or batch.is_control):
            horizon = batch.base_timestamp
        if horizon != NO_HORIZON:
            known = facts.earliest_horizon
            facts.earliest_horizon = horizon if known == NO_HORIZON else min(known, horizon)

    def keep_empty(self, batch: Batch) -> None:
        """Write the batch without records."""
        self._put(batch, empty_batch(batch))

    def finish(self) -> None:
        """Write what is left: the gap at the end."""
        self._write_gap(self.facts.end_offset)

    def _put(self, batch: Batch, data: bytes | bytearray | memoryview) -> None:
        self._write_gap(batch.base_offset)
        self._count(data)
        self._due = batch.next_offset

    def _write_gap(self, end_offset: int) -> None:
        for gap in build_gap(self._due, end_offset, self._epoch):
            self._count(gap)
        self._due = end_offset

    def _count(self, data: bytes | bytearray | memoryview) -> None:
        self.facts.bytes_after += len(data)
        self._write(data)
