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
from bmq.broker.cleanup.retention import RetentionState, read_idx
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
from bmq.storage.cleaning.retention import ProducerEnd
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.filesystem import CreateOptions, FileSystem, NoSuchFile, write_once
from bmq.storage.index import ENTRY, SegmentIndex
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import encode_idx_steps

_log = logging.getLogger(__name__)

BUFFER_BYTES = 128 << 20
"""Kafka's log.cleaner.dedupe.buffer.size."""


class CleaningStopped(Exception):
    """A round was given up: the process ends, the partition is not open here any more, or a source has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSegment:
    """A closed segment that no ownership record names, and its index."""

    name: SegmentName
    index: Checkpoint
    length: int
    """Bytes of the file; more than the index covers if a write failed at its end."""

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
        driver, machine, config = state.driver, state.driver.machine, state.config.cleaning
        if not self._context.may_clean():
            return Outcome(plan=None, obstacle=Obstacle.LEVEL)
        if await self._is_large(state):
            return Outcome(plan=None, obstacle=Obstacle.LARGE)
        recent = [machine.unindexed.recent(machine.high_watermark)]
        segments, later, damaged_at, has_hidden = await self._closed(state)
        recent.append(machine.unindexed.recent(machine.high_watermark))
        log = LogFacts(
            segments=[segment.facts for segment in segments],
            log_start=machine.log_start,
            last_stable_offset=machine.last_stable_offset,
            high_watermark=machine.high_watermark,
            damaged_at=damaged_at,
            has_pending_swap=has_hidden or machine.swap is not None or machine.record.swap is not None,
        )
        plan = plan_cleaning(log, config, wall_ms)
        if not plan.is_due:
            return Outcome(plan=plan, damaged_at=damaged_at)
        taken = [segment for segment in segments if segment.index.end_offset <= plan.end]
        by_base = {segment.name.base: segment for segment in taken}
        groups = [[by_base[fact.base] for fact in group] for group in plan.groups]
        read = {one.name: await self._fs.read(driver.path.log(one.name), 0, one.index.position) for one in taken}
        aborted = _aborted([*(one.index for one in taken), *later], recent, plan.end)
        producers = ProducerEnd.of(machine.producers.snapshot())
        bounds = plan.bounds(config, wall_ms)
        interval = state.config.index_interval_bytes

        def pace() -> None:
            if self._is_stopped or machine.state is not PartitionState.WRITE:
                raise CleaningStopped
            self._context.pace()

        def run() -> list[CleanedFile]:
            sources = {one.name: _source(one, read[one.name], pace) for one in taken}
            cleaning = CleaningRound(
                bounds,
                [sources[one.name] for one in taken],
                aborted=aborted,
                producers=producers,
                buffer_bytes=self._buffer_bytes,
                pace=pace,
            )
            cleaning.map_keys()
            return [_clean_group(cleaning, group, sources, interval) for group in groups]

        try:
            files = await self._context.offload(run)
        except (FormatError, RequestError) as error:
            self._failed("a segment cannot be cleaned", driver.path.log(taken[0].name), error)
            return Outcome(plan=plan, obstacle=Obstacle.DAMAGED, damaged_at=taken[0].name.base)
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
        return Outcome(plan=plan, has_cleaned=True, damaged_at=damaged_at)

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
            if status.length != source.length:
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

    async def _closed(self, state: RetentionState) -> tuple[list[ClosedSegment], list[Checkpoint], int | None, bool]:
        """Return the segments for a round, later indexes, an obstacle's base, and whether sources are left.

        Later indexes have the ends of transactions.  The obstacle is the first segment that no round may take; None
        without any.

        A segment is not taken without an index that covers it, nor is any behind it.  Segments that the record names
        may be open, or a successor needs them.
        """
        driver = state.driver
        entries = driver.machine.record.segments
        found, later = list[ClosedSegment](), list[Checkpoint]()
        if not entries:
            return found, later, None, False
        floor = min(entry.name.order for entry in entries)
        damaged_at: int | None = None
        has_hidden = False
        hidden = HiddenNames()
        failed = partial(self._failed, "an index is damaged, and not used")
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                is_behind = listed.name.order >= floor
                if not is_behind:
                    has_hidden |= len(hidden.take(listed)) > 0
                if not listed.is_live:
                    continue
                if listed.end is not None and listed.end <= driver.machine.log_start:
                    continue
                index = await read_idx(self._fs, driver.path.idx(listed.name), failed)
                if is_behind or damaged_at is not None:
                    later += [index] if index is not None else []
                elif index is None or not _is_whole(index, listed):
                    damaged_at = listed.name.base
                else:
                    found.append(ClosedSegment(name=listed.name, index=index, length=listed.length))
        if damaged_at is not None:  # the markers of transactions that are open there may be in what cannot be read
            while found and found[-1].index.first_open_txn >= 0:
                damaged_at = found.pop().name.base
        return found, later, damaged_at, has_hidden


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

    ``recent`` was taken before and after the indexes were read: a list is dropped once its segment has an index.
    """
    known: dict[int, AbortedTransaction] = {}
    for index in indexes:
        known.update((each.last_offset, each) for each in index.aborted)
    for some in recent:
        known.update((each.last_offset, each) for aborted in some.lists for each in aborted)
    return [known[last] for last in sorted(known) if known[last].first_offset < end]


def _source(segment: ClosedSegment, data: bytes, pace: Callable[[], None]) -> Source:
    def batches() -> Iterator[Batch]:
        for batch in read_batches(memoryview(data)):
            if not batch.has_valid_crc:
                raise FormatError(f"the batch at offset {batch.base_offset} has a wrong CRC")
            yield batch
            pace()

    return Source(segment.name.base, segment.index.end_offset, batches)


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
