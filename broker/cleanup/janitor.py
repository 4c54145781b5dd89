"""Upkeep of the partitions that this broker owns: retention, removal of orphans, and merging of small segments.

A task works on a partition at a time, and does a bounded amount of work per round.  A job on a partition is due when
something about it has changed: its record, its log start, its settings (compared in memory).  It is also due when its
next deadline has come (``UpkeepQueue``).  An idle partition costs the comparison in memory alone.

The module finds the work, and the queue orders it:

| class | job |
|---|---|
| ``Retention`` | move the log start, and delete the files below it |
| ``Sweeper`` | delete temporary files of earlier owners, and journals that no record names any more |
| ``SegmentMerger`` | merge small neighbours into one file |
| ``FormerOwners`` | settle the drafts of former owners, before files are merged, cleaned or swept |
| ``LogCleanerManager`` | look at compacted logs, and have ``LogCleaner`` rewrite closed segments of one at a time |
| ``JobRounds`` | plan rounds for jobs outside the brokers, and swap their results |
| ``SegmentSwapper`` | complete swaps of cleaned segments, and delete their sources |

Deadlines are on the monotonic clock.  Wall time (``wall_ms``) is only compared with the times of records and files;
when the wall clock is set, expiry is computed again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from functools import partial

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.former_owners import FormerOwners, Unsettled
from bmq.broker.cleanup.job_rounds import JobRounds
from bmq.broker.cleanup.log_cleaner import LogCleaner
from bmq.broker.cleanup.log_cleaner_manager import CleaningState, LogCleanerManager
from bmq.broker.cleanup.orphans import Sweeper
from bmq.broker.cleanup.retention import HOUR_MS, Retention
from bmq.broker.cleanup.segment_merge import SegmentMerger
from bmq.broker.cleanup.segment_swap import SegmentSwapper
from bmq.broker.cleanup.upkeep_queue import Job, UpkeepQueue
from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.filesystem import StorageError
from bmq.storage.log_segments import FOR_EVER

_log = logging.getLogger(__name__)


_CLOCK_SET_MS = 1_000
"""A wall clock that moves this far against the monotonic one has been set; both are slewed together."""
COST_OF_NEW = 10
"""Cost of a partition that is new to the janitor, about 20 us, in comparisons of partitions that are not."""


class _PartitionCare(CleaningState):
    """State of one partition under one owner, as of the janitor's last round."""

    __slots__ = ("is_closed", "merge_again_ms", "record", "registered")

    def __init__(self, driver: PartitionDriver) -> None:
        super().__init__(driver)
        self.record = driver.machine.record
        self.is_closed = driver.machine.is_all_closed
        self.registered = 0  # segments registered since the last pass of merging
        self.merge_again_ms: int | None = None  # when merging goes back to ``unread_from``, on the monotonic clock


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
        self.queue: UpkeepQueue[_PartitionCare] = UpkeepQueue(context.now_ms, retry_ms=self.config.retry_ms)
        """The jobs, and the partitions that they are for."""
        self._failed = self.queue.report
        self._journals_due_ms: int | None = None
        self._wall_offset_ms: int | None = None  # the wall clock minus the monotonic one
        self._retention: Retention[_PartitionCare] = Retention(
            context.fs,
            interval_ms=self.config.interval_ms,
            names_per_job=self.config.names_per_job,
            deletes_per_job=self.config.deletes_per_job,
            merge_sources_max=self.config.merge_sources_max,
            retain_at=lambda care, due_ms: self.queue.schedule(care, Job.RETAIN, due_ms),
            delete_at=lambda care, due_ms: self.queue.schedule(care, Job.DELETE, due_ms),
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
        swapper = SegmentSwapper(
            context, names_per_job=self.config.names_per_job, deletes_per_job=self.config.deletes_per_job
        )
        self._former_owners = FormerOwners(context, self._merger, names_per_job=self.config.names_per_job)
        self.cleaning: LogCleanerManager[_PartitionCare] = LogCleanerManager(
            context,
            self.queue,
            cleaner=LogCleaner(
                context,
                swapper,
                failed=self._failed,
                buffer_bytes=self.config.clean_buffer_bytes // self.config.clean_threads,
                bytes_s=self.config.clean_bytes_s,
                piece_bytes=self.config.clean_piece_bytes,
            ),
            swapper=swapper,
            former_owners=self._former_owners,
            is_enabled=self.config.clean_enabled,
            threads=self.config.clean_threads,
            clean_ms=self.config.clean_ms,
            wait_ms=self.config.clean_wait_ms,
            retry_ms=self.config.retry_ms,
        )
        """The cleaning of compacted logs."""
        self.job_rounds: JobRounds[_PartitionCare] = JobRounds(
            context,
            self.queue,
            cleaning=self.cleaning,
            former_owners=self._former_owners,
            retry_ms=self.config.retry_ms,
        )
        """The cleaning of compacted logs by jobs outside the brokers."""
        self._perform = {
            Job.RETAIN: self._retention.retain,
            Job.DELETE: self._retention.delete,
            Job.SWEEP: self._sweep,
            Job.MERGE: self._merge,
            Job.SWAP: self.cleaning.complete_swap,
            Job.CLEAN: self.cleaning.clean,
            Job.HIDDEN: self.cleaning.delete_hidden,
        }

    def __repr__(self) -> str:
        return (
            f"<Janitor {len(self.queue.states)} partitions, deleted={self.files_deleted} swept={self.files_swept}"
            f" merged={self.files_merged} failures={self.failures}>"
        )

    @property
    def failures(self) -> int:
        """Jobs, and parts of jobs, that failed."""
        return self.queue.failures

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

    async def run(self) -> None:
        """Do a round every ``interval_ms``, without end."""
        try:
            await self._run()
        finally:
            await self.cleaning.stop()

    async def _run(self) -> None:
        while True:
            spread = 0.8 + 0.4 * self._rng.random()
            await asyncio.sleep(self.config.interval_ms * spread / 1000)
            await self.run_once()

    async def run_once(self) -> int:
        """Do one round, and return the number of jobs done, with rounds of cleaning that began.

        A job that fails is counted, logged and retried later.
        """
        now_ms = self._context.now_ms()
        await self._notice(now_ms)
        self._notice_clock(now_ms)
        done = 0
        while done < self.config.jobs_per_round and (due := self.queue.take()) is not None:
            done += 1
            await self._attempt(*due)
        done += await self.cleaning.begin_due()
        await self._attempt_journals()
        return done

    async def _attempt(self, care: _PartitionCare, job: Job) -> None:
        try:
            async with asyncio.timeout(self.config.step_timeout_ms / 1000):
                await self._perform[job](care, self._context.clock.now_ms())
        except (StorageError, KvError, RequestError, FormatError, TimeoutError) as error:
            self.queue.retry(care, job, error)

    # ------------------------------------------------------------------------------------------ what is to be done

    async def _notice(self, now_ms: int) -> None:
        """Compare each partition with its state in the last round, in turns of the loop, and schedule jobs.

        Does no I/O, and no work for an unchanged partition.
        """
        before, cares = self.queue.states, dict[PartitionKey, _PartitionCare]()
        known, turns = 0, Turns()
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
            known += 1
            if machine.record is not care.record:
                care.registered += _registrations(care.record, machine.record)
                care.record = machine.record
                self._schedule_retention(care, now_ms)
                self._retention.delete_leftovers(care)
                if care.registered >= self.config.merge_after:
                    self.queue.schedule(care, Job.MERGE, now_ms)
                self.cleaning.look_soon(care, now_ms)
            if care.is_leftover_closed:  # its record may never change again
                self._retention.delete_leftovers(care)
            if machine.is_all_closed is not care.is_closed:
                care.is_closed = not care.is_closed
                if care.is_closed:  # the last segment, which expires from now on; its record may never change again
                    self._schedule_retention(care, now_ms)
                    self.cleaning.look_soon(care, now_ms)  # its records reach max.compaction.lag.ms from now on
            if machine.config is not care.config:
                care.config = machine.config
                self._schedule_retention(care, now_ms)
                self.cleaning.reconfigured(care, now_ms)
            is_due = care.is_closed or machine.has_indexed_names
            if is_due and care.config.cleaning.is_compacted and machine.has_old_names:
                care.driver.drop_old_names()  # nothing is cleaned behind a name; a quiet log's record may never change
            self.cleaning.notice(care, now_ms)
            if machine.log_start != care.log_start:
                care.log_start = machine.log_start
                self._retention.delete_later(care, machine.log_start)
                self.cleaning.look_soon(care, now_ms)  # it may be too large no more
        self.queue.keep(cares)
        if known < len(before):
            for key, care in before.items():
                if cares.get(key) is not care:
                    self.cleaning.forget(care)

    def _notice_clock(self, now_ms: int) -> None:
        """Compute all expiries again if the wall clock was set: a deadline may lie years ahead of it now."""
        offset_ms = self._context.clock.now_ms() - now_ms
        if self._wall_offset_ms is not None and abs(offset_ms - self._wall_offset_ms) <= _CLOCK_SET_MS:
            return
        if self._wall_offset_ms is not None:
            _log.warning("the wall clock was set by %d ms", offset_ms - self._wall_offset_ms)
        self._wall_offset_ms = offset_ms
        for care in self.queue.states.values():
            self._schedule_retention(care, now_ms)
            self.cleaning.look_now(care, now_ms)

    def _begin(self, care: _PartitionCare, now_ms: int) -> None:
        """Schedule all jobs of a newly owned partition: its predecessor may have left any of them half done."""
        self._schedule_retention(care, now_ms)
        if care.driver.machine.record.swap is not None:
            self.queue.schedule(care, Job.SWAP, now_ms)
        self.queue.schedule(care, Job.MERGE, now_ms)
        self.cleaning.look_now(care, now_ms)
        grace_ms = self.config.grace_ms
        self.queue.schedule(care, Job.SWEEP, now_ms + grace_ms + self._rng.randrange(grace_ms + 1))
        if care.log_start > 0:
            self._retention.delete_later(care, care.log_start)

    def _schedule_retention(self, care: _PartitionCare, due_ms: int) -> None:
        if care.config.retention_ms != FOR_EVER or care.config.retention_bytes != FOR_EVER:
            self.queue.schedule(care, Job.RETAIN, due_ms)

    # --------------------------------------------------------------------------------- jobs that schedule other jobs

    async def _sweep(self, care: _PartitionCare, wall_ms: int) -> None:
        now_ms = self._context.now_ms()
        unsettled = None
        # A round settles the drafts at its beginning; then its own are there.
        if not self.cleaning.is_cleaning(care):
            async with care.names_lock:
                is_held = care.held_until(self._context.now_ms()) is not None
                unsettled = await self._former_owners.settle(care, may_append=not is_held)
            # Else the sweep may end the wait: it deletes old files, and old folders of jobs.  It leaves the drafts of
            # merges that are not settled.
            if unsettled is Unsettled.MERGE:
                self.queue.schedule(care, Job.SWEEP, now_ms + self.config.retry_ms)
                return
        job = care.hold.job if care.hold is not None and care.held_until(now_ms) is not None else None
        swept = self.files_swept
        if await self._sweeper.sweep(care, wall_ms, job):
            self.queue.schedule(care, Job.MERGE, now_ms)  # a file that was deleted may have blocked merging
        self._retention.delete_held(care)
        is_more = unsettled is Unsettled.MANY and self.files_swept > swept
        self.queue.schedule(care, Job.SWEEP, now_ms + (self.config.retry_ms if is_more else self.config.sweep_ms))

    async def _merge(self, care: _PartitionCare, wall_ms: int) -> None:
        care.registered = 0
        if not care.driver.machine.record.segments:
            return
        # A merged file might have a source's name: the cleaned segment would hide what was appended.
        now_ms = self._context.now_ms()
        if (held_until := care.held_until(now_ms)) is not None:
            self.queue.schedule(care, Job.MERGE, held_until)
            return
        async with care.names_lock:
            machine = care.driver.machine
            # Also beside a swap that the record is about to get: it hides all that is appended to its sources.
            is_busy = machine.swap is not None or machine.record.swap is not None or self.cleaning.is_cleaning(care)
            if is_busy or await self._former_owners.settle(care) is not None:
                # The record of a quiet log may not change after a round without a swap, or once a right is back.
                care.registered = self.config.merge_after
                self.queue.schedule(care, Job.MERGE, now_ms + self.config.retry_ms)
                return
            if care.merge_again_ms is not None and care.merge_again_ms <= now_ms:
                care.merge_from = care.unread_from or care.merge_from
                care.unread_from = care.merge_again_ms = None
            found = await self._merger.merge(care, care.merge_from)
            care.merge_from = found.merge_from
            care.unread_from = care.unread_from or found.unread_from
        if found.has_hidden:  # perhaps of an owner before, while the log was compacted
            delay_ms = care.config.file_delete_delay_ms
            self.queue.schedule(care, Job.HIDDEN, self._context.now_ms() + delay_ms)
        if found.is_more:
            self.queue.schedule(care, Job.MERGE, self._context.now_ms())
        elif found.is_blocked:
            care.registered = self.config.merge_after  # tried again at the record's next change
        if care.unread_from is not None and not found.is_more:
            # No change of the record tells that a datanode has come back, or that an index was repaired.
            if care.merge_again_ms is None:
                care.merge_again_ms = now_ms + HOUR_MS
            self.queue.schedule(care, Job.MERGE, care.merge_again_ms)

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
            self.queue.failures += 1
            _log.warning("cannot remove old journals, trying again later", extra=fields(error=repr(error)))


def _registrations(old: PartitionRecord, new: PartitionRecord) -> int:
    """Return about how many segments were registered between two records of one owner."""
    if not old.segments or not new.segments:
        return len(new.segments)
    first, last = old.segments[-1].name, new.segments[-1].name
    return last.n - first.n if last.epoch == first.epoch else last.n + 1
