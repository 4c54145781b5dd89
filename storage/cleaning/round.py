"""A round of cleaning over closed segments: batches in, the bytes of cleaned files and their facts out.  Pure.

The caller reads and writes, in pieces of any size, and has checked CRCs::

    cleaning = CleaningRound(bounds, sources, aborted=..., producers=..., records=...)
    while sources := cleaning.next_walk():      the dirty sources; all sources if there are several passes
        cleaning.pass_keys(batches)             with the batches of the sources, in order
    for group in plan.groups:                   in order of offsets: each file is in place before the next file is
        cleaning.begin_file(group, write)
        cleaning.clean(batches)                 with the batches of the group's sources, in order
        facts = cleaning.end_file()

Order matters.  A record goes because a later record has its key, and a marker goes because data below it is gone.  If
the round ends early, the cleaned files lie below the sources that are left. So no record is missing.

Offsets stay dense: a batch of the source is there, or a batch without records stands for its offsets.  A run of such
batches is joined, but not over a change of the leader epoch: headers alone tell where an epoch begins.

Between batches the caller may show a window of the next bytes, which need no check: see ``plain_runs``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch, build_gap
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.batch_writer import empty_batch
from bmq.storage.cleaning.plain_runs import KeptRun, Window
from bmq.storage.cleaning.record_filter import NOTHING, Kept, RecordFilter, keep_all
from bmq.storage.cleaning.retention import (
    DELETE_HORIZON,
    NO_HORIZON,
    AbortedRanges,
    ProducerEnd,
    RecordRule,
    Retention,
    RoundBounds,
)

Write = Callable[[bytes | bytearray | memoryview], None]
"""The caller's output: called with the bytes of whole batches."""


class Source(NamedTuple):
    """A closed segment of a round: its offsets [``base``, ``end_offset``).

    ``is_cleaned``: a round wrote it.  In another segment only a producer can have set a delete horizon, which is none.
    """

    base: int
    end_offset: int
    is_cleaned: bool = True


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
    A round over a part of the log, which a job does beside others, has the producers ``open_before`` its first source:
    their transactions may have data in the part before.
    Memory: the filter's map and marks, a decompressed batch, and some numbers for an aborted transaction.

    A call with batches raises FormatError at a damaged batch, and at a batch with another offset than is due.
    The round is of no use after an exception.
    """

    def __init__(
        self,
        bounds: RoundBounds,
        sources: Sequence[Source],
        *,
        aborted: Iterable[AbortedTransaction],
        producers: Mapping[int, ProducerEnd],
        records: RecordFilter,
        open_before: Container[int] = (),
    ) -> None:
        self.bounds = bounds
        self._sources = list(sources)
        self._aborted = list(aborted)
        self._ranges = AbortedRanges(self._aborted)
        self._records = records
        self._runs = records.runs
        self._retention = Retention(bounds, self._ranges, producers, open_before)
        self._open_before = open_before
        self._state = _State.NEW
        self._walk = _Walk([])
        self._records_passed = 0
        self._sources_cleaned = 0
        self._file = _CleanedFile(bounds.end, bounds.end, bounds, _refuse)
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

    def next_walk(self) -> Sequence[Source]:
        """Begin the next walk over keys; return its sources, in order.  There are none if all keys are mapped."""
        self._walk.check_end()
        if self._state is _State.MAP and self._records.needs_marks:
            self._state, sources = _State.MARK, self._sources
            self._records_passed = 0
        elif self._state is _State.NEW or self._records.next_pass():
            self.passes += 1
            self._state = _State.MAP
            sources = [source for source in self._sources if source.end_offset > self.bounds.first_dirty]
        else:
            self._state, sources = _State.CLEAN, []
            self._records_passed = 0
        self._walk = _Walk(sources)
        return sources if sources or self._state is _State.CLEAN else self.next_walk()

    def pass_keys(self, batches: Iterable[Batch | Window]) -> None:
        """Take the next batches of the walk, and plain batches of windows."""
        if self._state not in (_State.MAP, _State.MARK):
            raise ValueError("no walk over keys is under way")
        is_map = self._state is _State.MAP
        for batch in batches:
            if isinstance(batch, Window):
                if is_map:
                    self._map_run(batch)
                continue
            self._walk.take(batch)
            is_judged = not batch.is_control and self._ranges.find(batch) is None
            if is_judged and is_map:
                self._records.map_batch(batch, self.bounds.first_dirty)
            elif is_judged:
                self._records.mark_batch(batch, self._records_passed)
            self._records_passed += batch.count

    def _map_run(self, window: Window) -> None:
        if self._runs is not None and self._walk.goes_on_with(window):
            self._records_passed += self._runs.map_run(window, self.bounds.first_dirty)
            self._walk.pass_to(window.next_offset)

    def begin_file(self, group: Sequence[Source], write: Write) -> None:
        """Begin the cleaned file of the group's sources: the round's next sources, neighbours in order of offsets."""
        if self._state is not _State.CLEAN:
            raise ValueError("the walks over keys are not over")
        first = self._sources_cleaned
        if not group or list(group) != self._sources[first : first + len(group)]:
            raise ValueError("groups are the round's sources, in their order and without a hole")
        self._sources_cleaned += len(group)
        self._walk = _Walk(group)
        self._file = _CleanedFile(group[0].base, group[-1].end_offset, self.bounds, write)

    def clean(self, batches: Iterable[Batch | Window]) -> None:
        """Take the next batches of the group, and plain batches of windows; write the rest of their records."""
        for batch in batches:
            if isinstance(batch, Window):
                self._clean_run(batch)
                continue
            self._walk.take(batch)
            self._clean_batch(batch)

    def end_file(self) -> CleanedFacts:
        """Write what is left of the cleaned file; return its facts."""
        self._walk.check_end()
        self._file.finish()
        facts = self._file.facts
        facts.aborted = [
            each
            for each in self._aborted
            if self._file.holds(each.last_offset) and (each in self._with_data or self._is_open_before(each))
        ]
        return facts

    def _is_open_before(self, transaction: AbortedTransaction) -> bool:
        """Return whether a transaction may have data before the round's first source."""
        is_before = transaction.first_offset < self._sources[0].base
        return is_before and transaction.producer_id in self._open_before

    def _clean_batch(self, batch: Batch) -> None:
        verdict = self._retention.judge(batch, is_cleaned=self._walk.is_cleaned)
        if batch.is_transactional and not batch.is_control:
            self._note_aborted(batch)
        number, self._records_passed = self._records_passed, self._records_passed + batch.count
        self._file.begin(batch)
        horizon = self.bounds.horizon if verdict.may_get_horizon else NO_HORIZON
        if verdict.rule is RecordRule.BY_KEY:
            kept = self._records.keep(batch, number, keeps_tombstones=verdict.keeps_tombstones, horizon=horizon)
        elif verdict.rule is RecordRule.ALL:
            kept = keep_all(batch, horizon if verdict.is_free_marker else NO_HORIZON)
        else:
            kept = NOTHING
        if kept.records:
            self._file.keep(batch, kept)
        elif verdict.is_empty_kept:
            self._file.keep_empty(batch)

    def _clean_run(self, window: Window) -> None:
        if self._runs is None or not self._walk.goes_on_with(window):
            return
        file = self._file
        rules = self._retention.run_rules(
            window.offset,
            window.end_offset,
            epoch=file.epoch,
            gap_from=file.due,
            is_cleaned=self._walk.is_cleaned,
        )
        run = self._runs.keep_run(window, self._records_passed, rules)
        self._records_passed += run.records
        self._walk.pass_to(window.next_offset)
        file.keep_run(window, run)

    def _note_aborted(self, batch: Batch) -> None:
        transaction = self._ranges.find(batch)
        if transaction is not None:
            self._with_data.add(transaction)


class _State(Enum):
    """The walk that a round does."""

    NEW = "none yet"
    MAP = "the keys of the dirty sources are mapped"
    MARK = "records that the map of this pass replaces are marked"
    CLEAN = "the cleaned files are written"


class _Walk:
    """A walk over the batches of some sources: dense within a source."""

    __slots__ = ("_due", "_left", "_source")

    def __init__(self, sources: Iterable[Source]) -> None:
        self._left = deque(sources)
        self._source: Source | None = None
        self._due = -1

    @property
    def is_cleaned(self) -> bool:
        """True if a round wrote the source of the last batch."""
        return self._source is not None and self._source.is_cleaned

    def take(self, batch: Batch) -> None:
        """Check that the batch is due.  Raises FormatError if it is not."""
        if self._source is None or self._due == self._source.end_offset:
            if not self._left:
                raise FormatError(f"a batch at offset {batch.base_offset}, but the round ends at {self._due}")
            self._source = self._left.popleft()
            self._due = self._source.base
        if batch.base_offset != self._due:
            raise FormatError(f"a batch at offset {batch.base_offset}, but {self._due} is due")
        if batch.count < 0:
            raise FormatError(f"the batch at offset {batch.base_offset} has {batch.count} records")
        if batch.next_offset > self._source.end_offset:
            raise FormatError(
                f"the batch at offset {batch.base_offset} ends behind its segment's end {self._source.end_offset}"
            )
        self._due = batch.next_offset

    def goes_on_with(self, window: Window) -> bool:
        """Return whether the window's batches are due, behind a batch of the same source."""
        source = self._source
        return source is not None and self._due == window.offset and window.end_offset == source.end_offset

    def pass_to(self, offset: int) -> None:
        """Pass batches of a window, which are dense."""
        self._due = offset

    def check_end(self) -> None:
        """Check that the walk is complete.  Raises FormatError if batches are missing."""
        if self._source is not None and self._due != self._source.end_offset:
            raise FormatError(
                f"the segment at {self._source.base} ends at {self._due}, but its end is {self._source.end_offset}"
            )
        if self._left:
            raise FormatError(f"the segment at {self._left[0].base} has no batches")


def _refuse(data: bytes | bytearray | memoryview) -> None:
    raise ValueError("no cleaned file is begun")


class _CleanedFile:
    """The output of one group: it joins runs of batches without records, and counts."""

    def __init__(self, base: int, end_offset: int, bounds: RoundBounds, write: Write) -> None:
        self.facts = CleanedFacts(base=base, end_offset=end_offset, cleaned_up_to=bounds.end)
        self._bounds = bounds
        self._write = write
        self.due = base
        """The offset behind the last batch that was written."""
        self.epoch = -1
        """The leader epoch of the offsets [due, passed)."""
        self._passed = base  # the offset behind the last batch that was read

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
            self.epoch = batch.leader_epoch
        self._passed = batch.next_offset

    def keep(self, batch: Batch, kept: Kept) -> None:
        """Write the batch with the records that stay."""
        self._put(batch, kept.data)
        facts = self.facts
        facts.records_after += kept.records
        facts.tombstones += kept.tombstones
        facts.markers += batch.is_control
        if not kept.tombstones and not batch.is_control:
            return
        written = Batch(memoryview(kept.data))
        if written.attributes & DELETE_HORIZON:
            self._note_horizon(int(written.base_timestamp))

    def keep_run(self, window: Window, run: KeptRun) -> None:
        """Take the run of a window."""
        facts = self.facts
        facts.bytes_before += window.passed
        facts.records_before += run.records
        facts.records_after += run.kept
        facts.tombstones += run.tombstones
        if run.earliest_horizon != NO_HORIZON:
            self._note_horizon(run.earliest_horizon)
        self._passed = window.next_offset
        if run.data:
            self._count(run.data)
            self.due = run.written_to

    def keep_empty(self, batch: Batch) -> None:
        """Write the batch without records."""
        self._put(batch, empty_batch(batch))

    def finish(self) -> None:
        """Write what is left: the gap at the end."""
        self._write_gap(self.facts.end_offset)

    def _note_horizon(self, horizon: int) -> None:
        known = self.facts.earliest_horizon
        self.facts.earliest_horizon = horizon if known == NO_HORIZON else min(known, horizon)

    def _put(self, batch: Batch, data: bytes | bytearray | memoryview) -> None:
        self._write_gap(batch.base_offset)
        self._count(data)
        self.due = batch.next_offset

    def _write_gap(self, end_offset: int) -> None:
        for gap in build_gap(self.due, end_offset, self.epoch):
            self._count(gap)
        self.due = end_offset

    def _count(self, data: bytes | bytearray | memoryview) -> None:
        self.facts.bytes_after += len(data)
        self._write(data)
