"""Upkeep of the partitions that this broker owns: retention, removal of orphans, and merging of small segments.

One task works on one partition at a time, and does a bounded amount of work per round.  A job on a partition is due
when something about it has changed (its record, its log start, its settings: compared in memory) or when its next
deadline has come (a heap); an idle partition costs that comparison and nothing else.

This module decides when jobs run.  Others do them:

| class | job |
|---|---|
| ``Retention`` | move the log start, and delete the files below it |
| ``Sweeper`` | delete temporary files of earlier owners, and journals that no record names any more |
| ``SegmentMerger`` | merge small neighbours into one file |
| ``FormerOwners`` | settle the drafts of former owners, before files are merged, cleaned or swept |
| ``LogCleaner`` | rewrite closed segments of a compacted log without replaced records |
| ``SegmentSwapper`` | complete swaps of cleaned segments, and delete their sources |

Deadlines are on the monotonic clock.  Wall time (``wall_ms``) is only compared with the times of records and files;
when the wall clock is set, expiry is computed again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from bmq.broker.cleanup.cleaning_status import (
    CleaningTotals,
    LastCleaning,
    LogCleaning,
    Obstacle,
    Outcome,
    cleaning_state,
    count_logs,
)
from bmq.broker.cleanup.closed_segments import ClosedSegments
from bmq.broker.cleanup.former_owners import FormerOwners
from bmq.broker.cleanup.log_cleaner import CleaningStopped, LogCleaner
from bmq.broker.cleanup.orphans import Sweeper
from bmq.broker.cleanup.retention import HOUR_MS, Retention, RetentionState
from bmq.broker.cleanup.segment_merge import SegmentMerger
from bmq.broker.cleanup.segment_swap import SegmentSwapper
from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.cleaning.plan import Reason
from bmq.storage.filesystem import StorageError
from bmq.storage.log_segments import FOR_EVER

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorConfig:
    """Settings of upkeep: the times between jobs, and the bounds of one."""

    interval_ms: int = 30_000
    """Time between rounds, jittered by a fifth so that brokers started together spread.  Kafka checks retention every
    five minutes; a round here costs a comparison per partition."""
    jobs_per_round: int = 64
    """Partitions' jobs done in one round; the others wait for the next."""
    names_per_job: int = 2_000
    """Names listed by one job; the rest of a long folder follows in later rounds."""
    deletes_per_job: int = 64
    """Segments that one job deletes; the others follow in later rounds."""
    grace_ms: int = 600_000
    """Age of a temporary file before it is deleted: longer than any outage that its writer may wait out."""
    sweep_ms: int = 6 * HOUR_MS
    """Time between sweeps of one partition: a paused predecessor may still leave files."""
    journal_grace_ms: int = 24 * HOUR_MS
    """Age of all of a dead broker's journals before they may be deleted."""
    journal_sweep_ms: int = HOUR_MS
    """Time between sweeps of journals; only if some are old enough are all partition records read, page by page."""
    journals_per_sweep: int = 64
    """Dead brokers whose journals are deleted in one sweep."""
    merge_after: int = 8
    """Segments registered in a partition before merging is tried again."""
    merges_per_job: int = 4
    """Merges, and repairs of interrupted ones, done by one job; the others follow in later rounds."""
    merge_sources_max: int = 32
    """Files appended by one concat."""
    clean_ms: int = 15_000
    """Kafka's log.cleaner.backoff.ms: the least time between two looks whether a compacted log is due."""
    clean_buffer_bytes: int = 128 << 20
    """Kafka's log.cleaner.dedupe.buffer.size: the memory for the keys of a round."""
    clean_bytes_s: int = (1 << 63) - 1
    """Kafka's log.cleaner.io.max.bytes.per.second: most bytes that rounds read and write in a second."""
    clean_piece_bytes: int = 1 << 20
    """Bytes of one read of a round: a larger piece delays the flushes of producers behind its own."""
    clean_wait_ms: int = 30_000
    """Time after which other jobs go on beside a round of cleaning."""
    retry_ms: int = 60_000
    """Pause after a job that failed."""
    step_timeout_ms: int = 120_000
    """Seconds that a partition's job may take: a stuck job does not hold up the others."""

    def validate(self) -> None:
        """Check the bounds.  Raises ValueError, which names the setting."""
        if min(self.interval_ms, self.jobs_per_round, self.names_per_job, self.deletes_per_job) < 1:
            raise ValueError("interval_ms, jobs_per_round, names_per_job and deletes_per_job must be at least 1")
        if self.merge_after < 1 or self.merge_sources_max < 1:
            raise ValueError("merge_after and merge_sources_max must be at least 1")


_CLOCK_SET_MS = 1_000
"""A wall clock that moves this far against the monotonic one has been set; both are slewed together."""
END_S = 2.0
"""Time for a stopped round to delete its drafts; the sweeper deletes the rest."""
_FAILED = Outcome(plan=None, obstacle=Obstacle.FAILED)
FAR_MS = 1 << 50
"""A wait of this length never ends: max.compaction.lag.ms is not set."""
COST_OF_NEW = 10
"""Cost of a partition that is new to the janitor, about 20 us, in comparisons of partitions that are not."""


class Job(Enum):
    """The kinds of upkeep of one partition; the value completes the log line of a failure."""

    RETAIN = "move the log start"
    DELETE = "delete files below the log start"
    SWEEP = "remove orphaned files"
    MERGE = "merge small segments"
    SWAP = "complete the swap of a cleaned segment"
    CLEAN = "compact the log"
    HIDDEN = "delete segments that a cleaned segment replaced"


class _PartitionCare(RetentionState):
    """The janitor's state for one ownership of a partition, with the state that retention keeps."""

    __slots__ = (
        "cleaning", "closed", "due", "is_closed", "last_cleaning", "merge_from", "record", "registered", "waits_for",
    )  # fmt: skip

    def __init__(self, driver: PartitionDriver) -> None:
        super().__init__(driver)
        self.record = driver.machine.record
        self.is_closed = driver.machine.is_all_closed
        self.due: dict[Job, int] = {}
        self.merge_from: SegmentName | None = None
        self.registered = 0  # segments registered since the last pass of merging
        self.cleaning: Outcome | None = None  # the last look at a compacted log
        self.closed: ClosedSegments | None = None  # what these looks have found
        self.last_cleaning: LastCleaning | None = None
        self.waits_for = -1  # the last stable offset from which on it may be cleaned further


class Janitor:
    """Upkeep of one broker's partitions.

    ``run`` is to be a task of the caller's; ``partitions`` returns the drivers that the broker holds.
    """

    def __init__(
        self,
        context: BrokerContext,
        partitions: Callable[[], Iterable[PartitionDriver]],
        config: JanitorConfig | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.config = config or JanitorConfig()
        self.config.validate()
        self._context = context
        self._partitions = partitions
        self._rng = rng or random.Random(random.getrandbits(64))  # so that a seed of the process seeds this too
        self._cares: dict[PartitionKey, _PartitionCare] = {}
        self._heap: list[tuple[int, int, _PartitionCare, Job]] = []
        self._serial = itertools.count()
        self._journals_due_ms: int | None = None
        self._wall_offset_ms: int | None = None  # the wall clock minus the monotonic one
        self._retention: Retention[_PartitionCare] = Retention(
            context.fs,
            interval_ms=self.config.interval_ms,
            names_per_job=self.config.names_per_job,
            deletes_per_job=self.config.deletes_per_job,
            retain_at=lambda care, due_ms: self._schedule(care, Job.RETAIN, due_ms),
            delete_at=lambda care, due_ms: self._schedule(care, Job.DELETE, due_ms),
            now_ms=context.now_ms,
            failed=partial(self._failed, "an index is damaged, and not used"),
        )
        self._sweeper = Sweeper(
            context,
            names_per_job=self.config.names_per_job,
            grace_ms=self.config.grace_ms,
            journal_grace_ms=self.config.journal_grace_ms,
            journals_per_sweep=self.config.journals_per_sweep,
        )
        self._merger = SegmentMerger(
            context,
            names_per_job=self.config.names_per_job,
            merges_per_job=self.config.merges_per_job,
            merge_sources_max=self.config.merge_sources_max,
            failed=self._failed,
        )
        self._swapper = SegmentSwapper(
            context, names_per_job=self.config.names_per_job, deletes_per_job=self.config.deletes_per_job
        )
        self._former_owners = FormerOwners(context, self._merger, names_per_job=self.config.names_per_job)
        self._cleaner = LogCleaner(
            context,
            self._swapper,
            failed=self._failed,
            buffer_bytes=self.config.clean_buffer_bytes,
            bytes_s=self.config.clean_bytes_s,
            piece_bytes=self.config.clean_piece_bytes,
        )
        self._cleaning: asyncio.Task[None] | None = None
        """The round of cleaning that is under way, also behind other jobs."""
        self._cleaned_care: _PartitionCare | None = None
        """The partition of this round."""
        self._perform = {
            Job.RETAIN: self._retention.retain,
            Job.DELETE: self._retention.delete,
            Job.SWEEP: self._sweep,
            Job.MERGE: self._merge,
            Job.SWAP: self._complete_swap,
            Job.CLEAN: self._clean,
            Job.HIDDEN: self._delete_hidden,
        }
        self.failures = 0

    def __repr__(self) -> str:
        return (
            f"<Janitor {len(self._cares)} partitions, deleted={self.files_deleted} swept={self.files_swept}"
            f" merged={self.files_merged} failures={self.failures}>"
        )

    @property
    def files_deleted(self) -> int:
        """Segments that retention has deleted."""
        return self._retention.files_deleted

    @property
    def files_swept(self) -> int:
        """Temporary files of earlier owners, and journals, that were deleted."""
        return self._sweeper.files_swept

    @property
    def files_merged(self) -> int:
        """Segments that were appended to others."""
        return self._merger.files_merged

    @property
    def cleaner(self) -> LogCleaner:
        """The cleaner, with its counters."""
        return self._cleaner

    def cleaning_totals(self) -> CleaningTotals:
        """Return the numbers of the compacted logs, as of the last look at each."""
        logs = (
            (care.cleaning, care.config.cleaning.max_compaction_lag_ms)
            for care in self._cares.values()
            if care.cleaning is not None and care.config.cleaning.is_compacted
        )
        return count_logs(logs, self._context.clock.now_ms())

    def cleaning_of(self, key: PartitionKey) -> LogCleaning | None:
        """Return the state of cleaning of a compacted log that is owned here; None for any other partition."""
        care = self._cares.get(key)
        if care is None or not care.config.cleaning.is_compacted or not self._is_held(care):
            return None
        return cleaning_state(care.cleaning, care.last_cleaning)

    @property
    def swapper(self) -> SegmentSwapper:
        """The swaps, with their counters."""
        return self._swapper

    async def run(self) -> None:
        """Do a round every ``interval_ms``, without end."""
        try:
            await self._run()
        finally:
            self._cleaner.stop()
            if self._cleaning is not None:
                self._cleaning.cancel()
                await asyncio.wait({self._cleaning}, timeout=END_S)  # it deletes its drafts

    async def _run(self) -> None:
        while True:
            spread = 0.8 + 0.4 * self._rng.random()
            await asyncio.sleep(self.config.interval_ms * spread / 1000)
            await self.run_once()

    async def run_once(self) -> int:
        """Do one round, and return the number of jobs done.  A job that fails is counted, logged and retried later."""
        now_ms = self._context.now_ms()
        await self._notice(now_ms)
        self._notice_clock(now_ms)
        done = 0
        while self._heap and self._heap[0][0] <= self._context.now_ms() and done < self.config.jobs_per_round:
            due_ms, _, care, job = heapq.heappop(self._heap)
            if care.due.get(job) != due_ms or not self._is_held(care):
                continue  # rescheduled, or the partition is not owned any more
            del care.due[job]
            done += 1
            await self._attempt(care, job)
        await self._attempt_journals()
        return done

    async def _attempt(self, care: _PartitionCare, job: Job) -> None:
        try:
            async with asyncio.timeout(self.config.step_timeout_ms / 1000):
                await self._perform[job](care, self._context.clock.now_ms())
        except (StorageError, KvError, RequestError, FormatError, TimeoutError) as error:
            self._not_done(care, job, error)

    def _not_done(self, care: _PartitionCare, job: Job, error: Exception) -> None:
        self.failures += 1
        text = "cannot %s of a partition, trying again later"
        _log.warning(text, job.value, extra=fields(**care.driver.path.log_fields, error=repr(error)))
        self._schedule(care, job, self._context.now_ms() + self.config.retry_ms)

    def _failed(self, text: str, path: str, error: Exception) -> None:
        self.failures += 1
        _log.warning(text, extra=fields(path=path, error=repr(error)))

    # ------------------------------------------------------------------------------------------ what is to be done

    async def _notice(self, now_ms: int) -> None:
        """Compare each partition with its state in the last round, in turns of the loop, and schedule jobs.

        Does no I/O, and no work for an unchanged partition.
        """
        before, cares = self._cares, dict[PartitionKey, _PartitionCare]()
        turns = Turns()
        for driver in tuple(self._partitions()):
            machine = driver.machine
            is_known = machine.key in before and before[machine.key].driver is driver
            if turns.is_over(1 if is_known else COST_OF_NEW):
                await next_turn()
            if machine.state is not PartitionState.WRITE:
                continue
            if not is_known:
                care = cares[machine.key] = _PartitionCare(driver)
                self._begin(care, now_ms)
                continue
            care = cares[machine.key] = before[machine.key]
            if machine.record is not care.record:
                care.registered += _registrations(care.record, machine.record)
                care.record = machine.record
                self._schedule_retention(care, now_ms)
                if care.has_leftovers:
                    care.has_leftovers = False
                    self._retention.delete_later(care, care.log_start)
                if care.registered >= self.config.merge_after:
                    self._schedule(care, Job.MERGE, now_ms)
                self._schedule_cleaning(care, now_ms + self.config.clean_ms)
            if machine.is_all_closed is not care.is_closed:
                care.is_closed = not care.is_closed
                if care.is_closed:  # the last segment, which expires from now on; its record may never change again
                    self._schedule_retention(care, now_ms)
            if machine.config is not care.config:
                care.config = machine.config
                self._schedule_retention(care, now_ms)
                self._schedule_cleaning(care, now_ms)
            if care.is_closed and care.config.cleaning.is_compacted and machine.has_old_names:
                care.driver.drop_old_names()  # a quiet log is cleaned up to its newest closed segment
            if 0 <= care.waits_for <= machine.last_stable_offset:
                care.waits_for = -1
                self._schedule_cleaning(care, now_ms)
            if machine.log_start != care.log_start:
                care.log_start = machine.log_start
                self._retention.delete_later(care, machine.log_start)
                self._schedule_cleaning(care, now_ms + self.config.clean_ms)  # it may be too large no more
        self._cares = cares
        if len(self._heap) > 8 * len(self._cares) + 64:
            self._rebuild_heap()

    def _notice_clock(self, now_ms: int) -> None:
        """Compute all expiries again if the wall clock was set: a deadline may lie years ahead of it now."""
        offset_ms = self._context.clock.now_ms() - now_ms
        if self._wall_offset_ms is not None and abs(offset_ms - self._wall_offset_ms) <= _CLOCK_SET_MS:
            return
        if self._wall_offset_ms is not None:
            _log.warning("the wall clock was set by %d ms", offset_ms - self._wall_offset_ms)
        self._wall_offset_ms = offset_ms
        for care in self._cares.values():
            self._schedule_retention(care, now_ms)
            self._schedule_cleaning(care, now_ms)

    def _begin(self, care: _PartitionCare, now_ms: int) -> None:
        """Schedule all jobs of a newly owned partition: its predecessor may have left any of them half done."""
        self._schedule_retention(care, now_ms)
        if care.driver.machine.record.swap is not None:
            self._schedule(care, Job.SWAP, now_ms)
        self._schedule(care, Job.MERGE, now_ms)
        self._schedule_cleaning(care, now_ms)
        self._schedule(care, Job.SWEEP, now_ms + self.config.grace_ms + self._rng.randrange(self.config.grace_ms + 1))
        if care.log_start > 0:
            self._retention.delete_later(care, care.log_start)

    def _schedule_retention(self, care: _PartitionCare, due_ms: int) -> None:
        if care.config.retention_ms != FOR_EVER or care.config.retention_bytes != FOR_EVER:
            self._schedule(care, Job.RETAIN, due_ms)

    def _schedule_cleaning(self, care: _PartitionCare, due_ms: int) -> None:
        if care.config.cleaning.is_compacted:
            self._schedule(care, Job.CLEAN, due_ms)

    def _schedule(self, care: _PartitionCare, job: Job, due_ms: int) -> None:
        """Schedule ``job`` for ``due_ms`` on the monotonic clock, unless it is due before."""
        if care.due.get(job, due_ms + 1) > due_ms:
            care.due[job] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._serial), care, job))

    def _rebuild_heap(self) -> None:
        """Drop the entries of jobs that were rescheduled, and of partitions that are not owned any more."""
        self._heap = [
            (due_ms, next(self._serial), care, job) for care in self._cares.values() for job, due_ms in care.due.items()
        ]
        heapq.heapify(self._heap)

    def _is_held(self, care: _PartitionCare) -> bool:
        machine = care.driver.machine
        return self._cares.get(machine.key) is care and machine.state is PartitionState.WRITE

    # --------------------------------------------------------------------------------- jobs that schedule other jobs

    async def _sweep(self, care: _PartitionCare, wall_ms: int) -> None:
        now_ms = self._context.now_ms()
        # A round has settled the drafts at its beginning; now its own are there.
        if care is not self._cleaned_care and not await self._former_owners.settle(care):
            self._schedule(care, Job.SWEEP, now_ms + self.config.retry_ms)
            return
        if await self._sweeper.sweep(care.driver, wall_ms):
            self._schedule(care, Job.MERGE, now_ms)  # a file that was deleted may have blocked merging
        self._schedule(care, Job.SWEEP, now_ms + self.config.sweep_ms)

    async def _merge(self, care: _PartitionCare, wall_ms: int) -> None:
        care.registered = 0
        if not care.driver.machine.record.segments:
            return
        if care.driver.machine.record.swap is not None or care is self._cleaned_care:
            # A merged file might have a source's name: the cleaned segment would hide what was appended.
            care.registered = self.config.merge_after
            return
        if not await self._former_owners.settle(care):
            care.registered = self.config.merge_after
            return
        care.merge_from, is_more, is_blocked = await self._merger.merge(care, care.merge_from)
        if is_more:
            self._schedule(care, Job.MERGE, self._context.now_ms())
        elif is_blocked:
            care.registered = self.config.merge_after  # tried again at the record's next change

    async def _complete_swap(self, care: _PartitionCare, wall_ms: int) -> None:
        if care is not self._cleaned_care:  # else its round completes the swap, and has swaps of its own later
            await self._finish_swap(care)

    async def _finish_swap(self, care: _PartitionCare) -> None:
        with care.swapping():
            await self._swapper.complete(care.driver)
        self._swapped(care)

    async def _clean(self, care: _PartitionCare, wall_ms: int) -> None:
        """Clean the log if it is due.  A long round goes on behind other jobs; no other round begins meanwhile."""
        if self._cleaning is not None:
            self._schedule_cleaning(care, self._context.now_ms() + self.config.clean_ms)
            return
        self._cleaned_care = care
        task = self._cleaning = asyncio.create_task(self._clean_log(care, wall_ms))
        task.add_done_callback(self._cleaned)
        await asyncio.wait({task}, timeout=self.config.clean_wait_ms / 1000)

    def _cleaned(self, task: asyncio.Task[None]) -> None:
        self._cleaning = self._cleaned_care = None
        if not task.cancelled():
            task.result()  # an error of the program: the loop's handler reports it

    async def _clean_log(self, care: _PartitionCare, wall_ms: int) -> None:
        """Do one round, and look again when the next record reaches a lag; a failure is counted and tried again."""
        try:
            await self._clean_once(care, wall_ms)
        except CleaningStopped:
            self._schedule_cleaning(care, self._context.now_ms() + self.config.retry_ms)
        except (StorageError, KvError, RequestError, FormatError, TimeoutError) as error:
            care.cleaning = _FAILED
            self._not_done(care, Job.CLEAN, error)
        except Exception as error:
            care.cleaning = _FAILED
            self.failures += 1
            text = "bug: a round of compaction of a partition failed, trying again in an hour"
            _log.error(text, extra=fields(**care.driver.path.log_fields, error=repr(error)))
            self._schedule_cleaning(care, self._context.now_ms() + HOUR_MS)
            raise

    async def _clean_once(self, care: _PartitionCare, wall_ms: int) -> None:
        now_ms = self._context.now_ms()
        if care.driver.machine.record.swap is not None:
            await self._finish_swap(care)
        if not await self._former_owners.settle(care):
            self._schedule_cleaning(care, now_ms + self.config.retry_ms)
            return
        before = self._swapper.swaps_done
        last = care.cleaning
        if care.closed is None:
            failed = partial(self._failed, "an index is damaged, and not used")
            care.closed = ClosedSegments(self._context.fs, care.driver, failed)
        try:
            care.cleaning = await self._cleaner.clean(care, care.closed, wall_ms)
        finally:
            if self._swapper.swaps_done != before:
                self._swapped(care)
        if care.cleaning.has_cleaned or care.last_cleaning is None:
            care.last_cleaning = care.cleaning.last
        damaged_at = care.cleaning.damaged_at
        if damaged_at is not None and (last is None or last.damaged_at != damaged_at):
            text = "a damaged segment or index at or behind offset %d stops the cleaning of a compacted log"
            _log.warning(text, damaged_at, extra=fields(**care.driver.path.log_fields))
        self._schedule_lags(care, now_ms, wall_ms)

    def _schedule_lags(self, care: _PartitionCare, now_ms: int, wall_ms: int) -> None:
        outcome, config = care.cleaning, care.config.cleaning
        if outcome is None or outcome.obstacle is Obstacle.LEVEL:
            self._schedule_cleaning(care, now_ms + self.config.retry_ms)
            return
        if outcome.damaged_at is not None:
            # No change of the record tells that an index was written late, or that a datanode has come back.
            self._schedule_cleaning(care, now_ms + HOUR_MS)
        plan = outcome.plan
        if plan is None:
            return  # too large: the log is looked at again when its record changes
        care.waits_for = plan.waits_for
        if plan.reason is Reason.SWAP_PENDING:
            self._schedule(care, Job.HIDDEN, now_ms + care.config.file_delete_delay_ms)
            return
        waits_ms = [plan.lag_ends_ms - wall_ms] if plan.lag_ends_ms >= 0 else []
        if plan.reason is Reason.BELOW_RATIO and plan.oldest_dirty_timestamp > 0:
            waits_ms.append(plan.oldest_dirty_timestamp + config.max_compaction_lag_ms - wall_ms)
        wait_ms = min(waits_ms, default=FAR_MS)
        if wait_ms < FAR_MS:
            self._schedule_cleaning(care, now_ms + max(wait_ms, self.config.clean_ms))

    def _swapped(self, care: _PartitionCare) -> None:
        """Have the sources deleted after file.delete.delay.ms; upkeep begins at the log's first name again."""
        care.merge_from = None
        care.forget_count()
        self._schedule(care, Job.HIDDEN, self._context.now_ms() + care.config.file_delete_delay_ms)

    async def _delete_hidden(self, care: _PartitionCare, wall_ms: int) -> None:
        now_ms = self._context.now_ms()
        if await self._swapper.delete_hidden(care.driver):
            self._schedule(care, Job.HIDDEN, now_ms)
        else:
            self._schedule_cleaning(care, now_ms + self.config.clean_ms)

    async def _attempt_journals(self) -> None:
        now_ms = self._context.now_ms()
        if self._journals_due_ms is None:  # not at once: brokers start together
            self._journals_due_ms = now_ms + self._rng.randrange(self.config.journal_sweep_ms + 1)
        if now_ms < self._journals_due_ms:
            return
        self._journals_due_ms = now_ms + self.config.journal_sweep_ms
        try:
            await self._sweeper.sweep_journals(self._context.clock.now_ms())
        except (StorageError, KvError, FormatError) as error:
            self.failures += 1
            _log.warning("cannot remove old journals, trying again later", extra=fields(error=repr(error)))


def _registrations(old: PartitionRecord, new: PartitionRecord) -> int:
    """Return about how many segments were registered between two records of one owner."""
    if not old.segments or not new.segments:
        return len(new.segments)
    first, last = old.segments[-1].name, new.segments[-1].name
    return last.n - first.n if last.epoch == first.epoch else last.n + 1
