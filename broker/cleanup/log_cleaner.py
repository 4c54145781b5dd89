"""The cleaner of compacted logs: it rewrites closed segments without the records that later records replaced.

``storage.cleaning`` decides what stays; this module reads the sources, writes the drafts, and has them swapped
(``broker.cleanup.segment_swap``).  A broker cleans one log at a time.  A round holds the log in memory, so larger logs
wait (``LOG_BYTES_MAX``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from bmq.broker.cleanup.cleaning_status import LOG_BYTES_MAX, Obstacle, Outcome
from bmq.broker.cleanup.retention import FoundFile, RetentionState, read_idx
from bmq.broker.cleanup.segment_swap import HiddenNames, SegmentSwapper
from bmq.broker.context import BrokerContext
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import SegmentName, cleaned_name
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.storage.aborted import RecentAborted
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, Cleaned
from bmq.storage.cleaning.plan import LogFacts, SegmentFacts, plan_cleaning
from bmq.storage.cleaning.retention import ProducerEnd, RoundBounds
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.filesystem import CorruptData, CreateOptions, FileSystem, NoSuchFile, write_once
from bmq.storage.index import ENTRY, SegmentIndex
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import encode_idx_steps

_log = logging.getLogger(__name__)

BUFFER_BYTES = 128 << 20
"""Kafka's log.cleaner.dedupe.buffer.size."""


class _DamagedSource(Exception):
    """A segment of the round cannot be read, or a batch of it: ``source``, for the reason ``error``."""

    def __init__(self, source: ClosedSegment, error: Exception) -> None:
        super().__init__(source.name, error)
        self.source = source
        self.error = error


class CleaningStopped(Exception):
    """A round was given up: the process ends, the partition is not open here any more, or a source has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed segment that no ownership record names, and its index."""

    name: SegmentName
    index: Checkpoint
    file: FoundFile
    """The ``.log``; it has more bytes than the index covers if a write failed at its end."""

    @property
    def facts(self) -> SegmentFacts:
        """The facts that a plan needs.

        The index tells the largest timestamp of the first records only where it has an entry; else the segment's
        largest timestamp stands for it.
        """
        index, cleaned = self.index, self.index.cleaned
        first = next((t for t in index.index[2::ENTRY] if t >= 0), index.max_timestamp)
        return SegmentFacts(
            base=self.name.base,
            end_offset=index.end_offset,
            bytes=index.position,
            max_timestamp=index.max_timestamp,
            first_timestamp=first,
            cleaned_up_to=-1 if cleaned is None else cleaned.clean_to,
            earliest_horizon=-1 if cleaned is None else cleaned.horizon,
        )


@dataclass(slots=True, kw_only=True)
class ClosedLog:
    """The closed segments of a log that a round may take, and facts about later segments.

    ``later``: indexes of later segments, which have the ends of transactions.  ``recent``: the aborted transactions
    that no index has yet.  ``damaged_at``: the base of the first segment that no round may take, None without any.
    ``lacks_markers``: an index that cannot be read may have the end of a transaction.  ``has_hidden``: sources of an
    earlier cleaned segment are left.
    """

    segments: list[ClosedSegment]
    later: list[Checkpoint]
    recent: list[RecentAborted]
    damaged_at: int | None = None
    lacks_markers: bool = False
    has_hidden: bool = False

    def end_before(self, damaged: ClosedSegment) -> None:
        """End the log before a segment that cannot be read. Its index can, so no marker is unknown for that."""
        at = self.segments.index(damaged)
        self.later += [segment.index for segment in self.segments[at:]]
        del self.segments[at:]
        self.damaged_at = damaged.name.base
        self.end_before_unknown_markers()

    def end_before_unknown_markers(self) -> None:
        """End the log before the transactions whose markers may be missing."""
        while self.lacks_markers and self.segments and self.segments[-1].index.first_open_txn >= 0:
            last = self.segments.pop()
            self.later.append(last.index)
            self.damaged_at = last.name.base


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedFile:
    """The result of one group of sources: the bytes of the cleaned segment, and its index."""

    data: bytes
    index: Checkpoint


class LogCleaner:
    """Cleaning of a broker's compacted logs, a log at a time.

    ``failed`` is called with the path of a damaged index or segment and the error.
    """

    def __init__(
        self,
        context: BrokerContext,
        swapper: SegmentSwapper,
        *,
        failed: Callable[[str, str, Exception], None],
        buffer_bytes: int = BUFFER_BYTES,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._swapper = swapper
        self._failed = failed
        self._buffer_bytes = buffer_bytes
        self._log_bytes_max = log_bytes_max
        self._is_stopped = False
        self.rounds = 0
        """Rounds that were completed."""
        self.bytes_before = 0
        """Bytes of the sources of completed swaps."""
        self.bytes_after = 0
        """Bytes of the cleaned segments of completed swaps."""

    def stop(self) -> None:
        """Give up the round that is computed: the thread ends at its next batch."""
        self._is_stopped = True

    async def clean(self, state: RetentionState, wall_ms: int) -> Outcome:
        """Look whether the log is due, and do one round if it is.

        Raises StorageError, RequestError if this broker is not the owner any more, and CleaningStopped.
        """
        driver, config = state.driver, state.config.cleaning
        if not self._context.may_clean():
            return Outcome(plan=None, obstacle=Obstacle.LEVEL)
        if await self._is_large(state):
            return Outcome(plan=None, obstacle=Obstacle.LARGE)
        closed = await self._closed(state)
        while True:
            plan = plan_cleaning(_facts(state, closed), config, wall_ms)
            if not plan.is_due:
                return Outcome(plan=plan, damaged_at=closed.damaged_at)
            taken = [segment for segment in closed.segments if segment.index.end_offset <= plan.end]
            by_base = {segment.name.base: segment for segment in taken}
            groups = [[by_base[fact.base] for fact in group] for group in plan.groups]
            try:
                files = await self._compute(state, closed, plan.bounds(config, wall_ms), groups)
                break
            except _DamagedSource as damage:
                self._failed("a segment cannot be cleaned", driver.path.log(damage.source.name), damage.error)
                if not isinstance(damage.error, CorruptData):  # else a datanode with a sound replica may come back
                    state.damaged = damage.source.file
                closed.end_before(damage.source)
        for file, group in zip(files, groups, strict=True):
            await self._check_unchanged(state, group)
            await self._swap(state, file)
        self.rounds += 1
        facts = [_cleaned(file) for file in files]
        before, after = sum(each.bytes_before for each in facts), sum(each.bytes_after for each in facts)
        _log.info(
            "a compacted log was cleaned up to offset %d: %d segment(s) of %d bytes became %d of %d bytes",
            plan.end,
            len(taken),
            before,
            len(files),
            after,
            extra=fields(**driver.path.log_fields),
        )
        return Outcome(plan=plan, has_cleaned=True, damaged_at=closed.damaged_at)

    async def _compute(
        self, state: RetentionState, closed: ClosedLog, bounds: RoundBounds, groups: Sequence[Sequence[ClosedSegment]]
    ) -> list[CleanedFile]:
        """Return the cleaned file of each group.

        Raises _DamagedSource at the first segment that cannot be read, StorageError if storage does not respond, and
        CleaningStopped.
        """
        machine, path = state.driver.machine, state.driver.path
        taken = [segment for group in groups for segment in group]
        data: dict[SegmentName, bytes] = {}
        for one in taken:
            try:
                data[one.name] = await self._fs.read(path.log(one.name), 0, one.index.position)
            except CorruptData as error:
                raise _DamagedSource(one, error) from error
        aborted = _aborted([*(one.index for one in taken), *closed.later], closed.recent, bounds.end)
        producers = ProducerEnd.of(machine.producers.snapshot())
        interval = state.config.index_interval_bytes
        reading = taken[0]

        def pace() -> None:
            if self._is_stopped or machine.state is not PartitionState.WRITE:
                raise CleaningStopped
            self._context.pace()

        def source(segment: ClosedSegment) -> Source:
            def batches() -> Iterator[Batch]:
                nonlocal reading
                reading = segment
                for batch in read_batches(memoryview(data[segment.name])):
                    if not batch.has_valid_crc:
                        raise FormatError(f"the batch at offset {batch.base_offset} has a wrong CRC")
                    yield batch
                    pace()

            return Source(segment.name.base, segment.index.end_offset, batches)

        def run() -> list[CleanedFile]:
            sources = {one.name: source(one) for one in taken}
            cleaning = CleaningRound(
                bounds,
                [sources[one.name] for one in taken],
                aborted=aborted,
                producers=producers,
                buffer_bytes=self._buffer_bytes,
            )
            cleaning.map_keys()
            return [_clean_group(cleaning, group, sources, interval) for group in groups]

        try:
            return await self._context.offload(run)
        except (FormatError, RequestError) as error:
            raise _DamagedSource(reading, error) from error

    async def _swap(self, state: RetentionState, file: CleanedFile) -> None:
        """Write the drafts, then swap the sources for them.  A failed write leaves no draft."""
        swap = self._swapper.drafts(state.driver, file.index.segment)
        access = state.driver.segments.access
        block_bytes = max(1 << 20, -(-len(file.data) // (1 << 20)) * (1 << 20))
        await self._drop(swap.draft, swap.draft_index)  # of an earlier attempt by this process that failed
        try:
            await write_once(self._fs, swap.draft, file.data, CreateOptions(block_bytes=block_bytes, access=access))
            index = await run_in_steps(encode_idx_steps(file.index))
            await write_once(self._fs, swap.draft_index, index, CreateOptions(block_bytes=1 << 20, access=access))
        except BaseException:
            await self._drop(swap.draft, swap.draft_index)
            raise
        await self._swapper.swap(state.driver, swap)
        state.forget_count()  # bytes have moved to other names
        cleaned = _cleaned(file)
        self.bytes_before += cleaned.bytes_before
        self.bytes_after += cleaned.bytes_after

    async def _check_unchanged(self, state: RetentionState, sources: Sequence[ClosedSegment]) -> None:
        """Check that the sources are the files that were read: a cleaned segment hides the whole of them.

        Raises CleaningStopped if a source is gone, or has another length.
        """
        for source in sources:
            try:
                status = await self._fs.status(state.driver.path.log(source.name))
            except NoSuchFile:
                raise CleaningStopped from None
            if status.length != source.file.length:
                raise CleaningStopped

    async def _drop(self, *drafts: str) -> None:
        for draft in drafts:
            await self._fs.delete(draft)

    async def _is_large(self, state: RetentionState) -> bool:
        """Return whether the closed segments have more bytes than a round takes.

        The listing ends there, and no index is read: the cost does not grow with the log.
        """
        driver, size = state.driver, 0
        floor = min((entry.name.order for entry in driver.machine.record.segments), default=None)
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                if floor is None or listed.name.order >= floor:
                    break
                if listed.is_live and (listed.end is None or listed.end > driver.machine.log_start):
                    size += listed.length
                if size > self._log_bytes_max:
                    return True
        return False

    async def _closed(self, state: RetentionState) -> ClosedLog:
        """Return the segments for a round.

        A segment is not taken without an index that covers it, nor is any behind it.  Segments that the record names
        may be open, or a successor needs them.
        """
        driver, machine = state.driver, state.driver.machine
        entries = machine.record.segments
        found = ClosedLog(segments=[], later=[], recent=[machine.unindexed.recent(machine.high_watermark)])
        if not entries:
            return found
        floor = min(entry.name.order for entry in entries)
        hidden = HiddenNames()
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                is_behind = listed.name.order >= floor
                if not is_behind:
                    found.has_hidden |= len(hidden.take(listed)) > 0
                if not listed.is_live:
                    continue
                if listed.end is not None and listed.end <= machine.log_start:
                    continue
                index, file = await self._index(state, listed.name), FoundFile.of(listed)
                is_known = index is not None and _is_whole(index, listed)
                found.lacks_markers |= not is_known and not is_behind
                may_be_taken = is_known and not is_behind and found.damaged_at is None and file != state.damaged
                if index is not None and may_be_taken:
                    found.segments.append(ClosedSegment(name=listed.name, index=index, file=file))
                    continue
                if not is_behind and found.damaged_at is None:
                    found.damaged_at = listed.name.base
                found.later += [index] if index is not None else []
        found.end_before_unknown_markers()
        # Once more behind the reading: a list is dropped once its segment has an index.
        found.recent.append(machine.unindexed.recent(machine.high_watermark))
        return found

    async def _index(self, state: RetentionState, name: SegmentName) -> Checkpoint | None:
        """Return the segment's index; None if it is missing or damaged."""
        path, failed = state.driver.path.idx(name), partial(self._failed, "an index is damaged, and not used")
        try:
            return await read_idx(self._fs, path, failed)
        except CorruptData as error:
            failed(path, error)
            return None


# ------------------------------------------------------------------------------------------------- plain functions


def _cleaned(file: CleanedFile) -> Cleaned:
    cleaned = file.index.cleaned
    assert cleaned is not None
    return cleaned


def _is_whole(index: Checkpoint, listed: ListedSegment) -> bool:
    """Return whether the index covers the segment; what lies behind in the file is leftover of a failed write."""
    return index.end_offset == listed.end and index.position <= listed.length


def _aborted(indexes: Iterable[Checkpoint], recent: Iterable[RecentAborted], end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that began below ``end``, wherever their markers are.

    ``recent`` was taken before and after the indexes were read.
    """
    known: dict[int, AbortedTransaction] = {}
    for index in indexes:
        known.update((each.last_offset, each) for each in index.aborted)
    for some in recent:
        known.update((each.last_offset, each) for aborted in some.lists for each in aborted)
    return [known[last] for last in sorted(known) if known[last].first_offset < end]


def _facts(state: RetentionState, closed: ClosedLog) -> LogFacts:
    machine = state.driver.machine
    return LogFacts(
        segments=[segment.facts for segment in closed.segments],
        log_start=machine.log_start,
        last_stable_offset=machine.last_stable_offset,
        high_watermark=machine.high_watermark,
        damaged_at=closed.damaged_at,
        has_pending_swap=closed.has_hidden or machine.swap is not None or machine.record.swap is not None,
    )


def _clean_group(
    cleaning: CleaningRound, group: Sequence[ClosedSegment], sources: dict[SegmentName, Source], interval_bytes: int
) -> CleanedFile:
    """Return the cleaned file of the round's next group."""
    parts: list[bytes] = []
    index = SegmentIndex(interval_bytes)
    position = 0

    def write(data: bytes | bytearray | memoryview) -> None:
        nonlocal position
        (batch,) = read_batches(memoryview(data))
        if batch.count > 0:
            index.add(batch.base_offset, position, batch.max_timestamp)
        parts.append(bytes(data))
        position += len(data)

    facts = cleaning.clean([sources[one.name] for one in group], write)
    checkpoint = replace(
        group[-1].index,
        segment=cleaned_name([one.name for one in group]),
        position=position,
        is_full=True,
        is_closed=True,
        max_timestamp=index.max_timestamp,
        max_timestamp_offset=index.max_timestamp_offset,
        index=index.entries,
        epochs=_epochs(group, facts),
        aborted=tuple(facts.aborted),
        cleaned=Cleaned(
            clean_to=facts.cleaned_up_to,
            horizon=facts.earliest_horizon,
            bytes_before=facts.bytes_before,
            bytes_after=facts.bytes_after,
            tombstones=facts.tombstones,
            markers=facts.markers,
        ),
    )
    return CleanedFile(data=b"".join(parts), index=checkpoint)


def _epochs(group: Sequence[ClosedSegment], facts: CleanedFacts) -> tuple[tuple[int, int], ...]:
    """Return the sources' lists of leader epochs together, also where no batch of an epoch is left."""
    found: list[tuple[int, int]] = []
    for one in group:
        found += [epoch for epoch in one.index.epochs if not found or epoch[0] > found[-1][0]]
    return tuple(found or facts.epochs)
