"""The cleaner of compacted logs: it rewrites closed segments without the records that later records replaced.

``storage.cleaning`` decides what stays; this module has the sources read (``source_reader``) and the drafts written
(``cleaned_file``), piece by piece, and has them swapped (``segment_swap``).

Compiled code needs the map of keys and a few pieces, whatever the log's size.  Without it larger logs wait
(``LOG_BYTES_MAX``): a round would take a core for hours.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import partial

from bmq.broker.cleanup.cleaning_status import LOG_BYTES_MAX, LastCleaning, Obstacle, Outcome
from bmq.broker.cleanup.closed_segments import ClosedLog, ClosedSegment, ClosedSegments
from bmq.broker.cleanup.index_reads import is_outage
from bmq.broker.cleanup.retention import HOUR_MS, RetentionState
from bmq.broker.cleanup.segment_swap import SegmentSwapper
from bmq.broker.context import BrokerContext
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.steps import run_in_steps
from bmq.core.errors import FormatError
from bmq.core.extras import how_to_install
from bmq.core.logging.fields import fields
from bmq.core.model import cleaned_name
from bmq.core.records.batch import Batch
from bmq.storage.aborted import RecentAborted
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.cleaning.cleaned_file import MORE_ROOM, ROOM, CleanedFileWriter, DraftFull
from bmq.storage.cleaning.compiled_filter import SECRET_BYTES
from bmq.storage.cleaning.plain_runs import Window
from bmq.storage.cleaning.plan import CleaningPlan, LogFacts, plan_cleaning
from bmq.storage.cleaning.retention import ProducerEnd, RoundBounds
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.cleaning.source_reader import SourceReader, Throttle
from bmq.storage.filesystem import CorruptData, CreateOptions, FileSystem, NoSuchFile, StorageUnavailable, write_once
from bmq.storage.log_segments import walk
from bmq.storage.segment import encode_idx_steps

_log = logging.getLogger(__name__)

LOOK_MS = 1_000
"""Time between two looks, during a wait for the throttle, whether the round still has a purpose."""


class DamagedSource(Exception):
    """A segment of the round cannot be read, or a batch of it: ``source``, for the reason ``error``."""

    def __init__(self, source: ClosedSegment, error: Exception) -> None:
        super().__init__(source.name, error)
        self.source = source
        self.error = error


class CleaningStopped(Exception):
    """A round was given up: the process ends, the partition is not open here any more, a source has changed, or a draft
    is gone."""


class LogCleaner:
    """Rounds over a broker's compacted logs; several may be under way at once.

    ``failed`` is called with a text, the path of a damaged segment, and the error.  ``buffer_bytes``: a round's memory
    for keys.  ``bytes_s``: most bytes that rounds read and write in a second.  ``piece_bytes``: bytes of one read.
    """

    def __init__(
        self,
        context: BrokerContext,
        swapper: SegmentSwapper,
        *,
        failed: Callable[[str, str, Exception], None],
        buffer_bytes: int,
        bytes_s: int,
        piece_bytes: int,
    ) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._swapper = swapper
        self._failed = failed
        self._buffer_bytes = buffer_bytes
        self._throttle = Throttle(bytes_s)
        self._piece_bytes = piece_bytes
        self._is_stopped = False
        self._loading = asyncio.Lock()
        self.is_compiling = False
        """Compiled filters are being loaded, or compiled on a new machine: no log is cleaned meanwhile."""
        self.rounds = 0
        """Rounds that were completed."""
        self.bytes_before = 0
        """Bytes of the sources of completed swaps."""
        self.bytes_after = 0
        """Bytes of the cleaned segments of completed swaps."""

    def stop(self) -> None:
        """Give up the rounds that are computed: their threads end at the next batch."""
        self._is_stopped = True

    async def clean(
        self, state: RetentionState, known: ClosedSegments, wall_ms: int, *, may_begin: bool = True
    ) -> Outcome:
        """Look whether the log is due, and do one round if it is and ``may_begin``.

        Raises StorageError, RequestError if this broker is not the owner any more, and CleaningStopped; DraftFull if a
        draft was full also with more room.
        """
        driver, config = state.driver, state.config.cleaning
        if not self._context.wiring.may_clean():
            return Outcome(plan=None, obstacle=Obstacle.LEVEL)
        await self._load_filters()
        if not self._context.wiring.filters.is_compiled and await self._is_large(state):
            return Outcome(plan=None, obstacle=Obstacle.LARGE)
        known.forget_lost(self._context.now_ms())
        closed = await known.look()
        while True:
            plan = plan_cleaning(log_facts(state, closed), config, wall_ms)
            if not plan.is_due or not may_begin:
                return Outcome(plan=plan, damaged_at=closed.damaged_at, last=closed.last_cleaning)
            taken = [segment for segment in closed.segments if segment.index.end_offset <= plan.end]
            swaps_before = state.swaps_done
            try:
                cleaned = await self._round(state, closed, plan, plan.bounds(config, wall_ms), known.room)
                break
            except DamagedSource as damage:
                self._failed("a segment cannot be cleaned", driver.path.log(damage.source.name), damage.error)
                is_lost = not isinstance(damage.error, FormatError)
                known.note_damage(damage.source.file, self._context.now_ms() + HOUR_MS if is_lost else None)
                if state.swaps_done != swaps_before:  # the rest is cleaned when the first sources are gone
                    at = damage.source.name.base
                    return Outcome(plan=plan, obstacle=Obstacle.DAMAGED, damaged_at=at, last=closed.last_cleaning)
                closed.end_before(damage.source)
            except DraftFull:
                if known.room == MORE_ROOM:
                    raise DraftFull(f"a cleaned segment needs more than {MORE_ROOM} times its sources' bytes") from None
                known.room = MORE_ROOM
                raise CleaningStopped from None
        known.room = ROOM
        before, after = sum(each.bytes_before for each in cleaned), sum(each.bytes_after for each in cleaned)
        self.rounds += 1
        _log.info(
            "a compacted log was cleaned up to offset %d: %d segment(s) of %d bytes became %d of %d bytes",
            plan.end,
            len(taken),
            before,
            len(cleaned),
            after,
            extra=fields(**driver.path.log_fields),
        )
        last = LastCleaning(ended_ms=self._context.clock.now_ms(), bytes_before=before, bytes_after=after)
        return Outcome(plan=plan, has_cleaned=True, damaged_at=closed.damaged_at, last=last)

    async def _round(
        self, state: RetentionState, closed: ClosedLog, plan: CleaningPlan, bounds: RoundBounds, room: float
    ) -> list[CleanedFacts]:
        """Do one round: swap the plan's groups, in order, for cleaned segments.

        Raises DamagedSource at the first segment that cannot be read, DraftFull, StorageError, and RequestError if this
        broker is not the owner any more, and CleaningStopped.
        """
        segments = {segment.name.base: segment for segment in closed.segments}
        sources = {base: Source(base, one.index.end_offset, one.name.cleaning > 0) for base, one in segments.items()}
        groups = [[sources[fact.base] for fact in group] for group in plan.groups]
        cleaning = CleaningRound(
            bounds,
            [source for group in groups for source in group],
            aborted=aborted_below([*(one.index for one in closed.segments), *closed.later], closed.recent, plan.end),
            producers=ProducerEnd.of(state.driver.machine.producers.snapshot()),
            records=self._context.wiring.filters.new(
                os.urandom(SECRET_BYTES), self._buffer_bytes, plan.end - plan.first_dirty, partial(self._pace, state)
            ),
        )
        while walk := cleaning.next_walk():
            for source in walk:
                await self._pass(state, segments[source.base], cleaning.pass_keys)
        return [
            await self._clean_group(state, cleaning, group, [segments[each.base] for each in group], room)
            for group in groups
        ]

    async def _load_filters(self) -> None:
        """Load the compiled filters before the first look at a log; a failure leaves filters in Python.

        Other rounds wait: a large log without the filters is not cleaned before its record changes.
        """
        async with self._loading:
            if not self._context.wiring.filters.is_loaded:
                await self._load_filters_once()

    async def _load_filters_once(self) -> None:
        filters = self._context.wiring.filters
        self.is_compiling = True
        try:
            await self._context.wiring.offload(filters.load)
        except (ImportError, OSError, RuntimeError) as error:
            _log.warning(
                "compacted logs are cleaned in Python, slowly, and large logs are not: cannot load compiled code",
                extra=fields(error=error),
            )
        else:
            if not filters.is_compiled:
                _log.warning(
                    "compacted logs are cleaned in Python, slowly, and large logs are not; install numba: %s",
                    how_to_install("fast"),
                )
        finally:
            self.is_compiling = False

    async def _pass(
        self,
        state: RetentionState,
        segment: ClosedSegment,
        take: Callable[[Iterable[Batch | Window]], None],
        writer: CleanedFileWriter | None = None,
    ) -> None:
        """Read a segment, and have a thread take its batches; what it writes is flushed before the next piece is read.

        Raises DamagedSource if the segment cannot be read, StorageError and CleaningStopped.
        """
        driver = state.driver
        reader = SourceReader(
            self._fs,
            driver.path.log(segment.name),
            base=segment.name.base,
            end_offset=segment.index.end_offset,
            length=segment.index.position,
            piece_bytes=self._piece_bytes,
        )

        def compute() -> None:
            take(self._paced(state, reader.parts()))
            if writer is not None:
                writer.join()

        while not reader.is_over:
            try:
                moved = await reader.read()
                await self._context.wiring.offload(compute)
            except NoSuchFile:  # it has expired, or the log start has moved past it
                raise CleaningStopped from None
            except (FormatError, CorruptData) as error:
                raise DamagedSource(segment, error) from error
            except StorageUnavailable as error:
                if await is_outage(self._fs, driver.path, segment.name, driver.path.idx(segment.name)):
                    raise
                raise DamagedSource(segment, error) from error
            if writer is not None:
                moved += await writer.flush()
            await self._wait(state, self._throttle.wait_ms(moved, self._context.now_ms()))

    async def _wait(self, state: RetentionState, wait_ms: float) -> None:
        """Wait for the throttle.  Raises CleaningStopped soon after the round has become pointless, however long."""
        while wait_ms > LOOK_MS:
            await asyncio.sleep(LOOK_MS / 1000)
            wait_ms -= LOOK_MS
            self._check(state)
        await asyncio.sleep(wait_ms / 1000)

    def _paced(self, state: RetentionState, parts: Iterator[Batch | Window]) -> Iterator[Batch | Window]:
        """Yield the parts, with pauses for the loop.  Raises CleaningStopped as ``_pace``."""
        for part in parts:
            yield part
            self._pace(state)

    def _pace(self, state: RetentionState) -> None:
        """Pause for the loop.  Raises CleaningStopped as ``_check``."""
        self._check(state)
        self._context.wiring.pace()

    def _check(self, state: RetentionState) -> None:
        """Raise CleaningStopped if the round has become pointless."""
        machine = state.driver.machine
        if self._is_stopped or machine.state is not PartitionState.WRITE or not machine.config.cleaning.is_compacted:
            raise CleaningStopped

    async def _clean_group(
        self,
        state: RetentionState,
        cleaning: CleaningRound,
        group: Sequence[Source],
        segments: Sequence[ClosedSegment],
        room: float,
    ) -> CleanedFacts:
        """Write the drafts of a cleaned segment and its index, then swap the sources for it.

        A failed write leaves no draft.  The draft has a place among the broker's open files while it is written.
        """
        driver = state.driver
        swap = self._swapper.drafts(driver, cleaned_name([one.name for one in segments]))
        access = driver.segments.access
        await self._drop(swap.draft, swap.draft_index)  # of an earlier attempt by this process that failed

        def create() -> Awaitable[CleanedFileWriter]:
            return CleanedFileWriter.create(
                self._fs,
                swap.draft,
                sources_bytes=sum(one.index.position for one in segments),
                room=room,
                interval_bytes=state.config.index_interval_bytes,
                access=access,
            )

        try:
            async with self._context.open_files.place(create) as writer:
                try:
                    cleaning.begin_file(group, writer.put)
                    for one in segments:
                        await self._pass(state, one, cleaning.clean, writer)
                    facts = cleaning.end_file()
                    await writer.close()
                except BaseException:
                    writer.abort()
                    raise
            index = writer.index(
                [one.name for one in segments],
                [one.index for one in segments],
                facts,
                modified_ms=segments[-1].file.modified_ms,
            )
            data = await run_in_steps(encode_idx_steps(index))
            await write_once(self._fs, swap.draft_index, data, CreateOptions(block_bytes=1 << 20, access=access))
            await self._check_unchanged(state, segments)
        except BaseException:
            await self._drop(swap.draft, swap.draft_index)
            raise
        with state.swapping():
            is_swapped = await self._swapper.swap(driver, swap)
        if not is_swapped:  # the next file may lack a tombstone whose older record is in this file
            raise CleaningStopped
        state.swaps_done += 1
        self.bytes_before += facts.bytes_before
        self.bytes_after += facts.bytes_after
        return facts

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
                if size > LOG_BYTES_MAX:
                    return True
        return False


# ------------------------------------------------------------------------------------------------- plain functions


def log_facts(state: RetentionState, closed: ClosedLog) -> LogFacts:
    """Return the facts of a partition's log that the plan of a round needs."""
    machine = state.driver.machine
    return LogFacts(
        segments=[segment.facts for segment in closed.segments],
        log_start=machine.log_start,
        last_stable_offset=machine.last_stable_offset,
        high_watermark=machine.high_watermark,
        damaged_at=closed.damaged_at,
        has_pending_swap=closed.has_hidden or machine.swap is not None or machine.record.swap is not None,
        newest=None if closed.newest is None else closed.newest.facts,
    )


def aborted_below(indexes: Iterable[Checkpoint], recent: Iterable[RecentAborted], end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that began below ``end``, wherever their markers are.

    ``recent`` was taken before and after the indexes were read.
    """
    known: dict[int, AbortedTransaction] = {}
    for index in indexes:
        known.update((each.last_offset, each) for each in index.aborted)
    for some in recent:
        known.update((each.last_offset, each) for aborted in some.lists for each in aborted)
    return [known[last] for last in sorted(known) if known[last].first_offset < end]
