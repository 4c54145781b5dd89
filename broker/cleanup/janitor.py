"""Upkeep of the partitions that this broker owns: retention, the sweeper, and joining small segments.

One task, one partition at a time, a bounded amount of work a round.  A partition is looked at when something about it
has changed (its record, its log start, its settings: compared in memory) or when its next deadline has come (a heap);
an idle one costs that comparison and nothing else.

What the jobs do is said where they are: ``Retention`` (moving the log start, deleting what lies below it), ``Sweeper``
(scaffolding and journals that nobody names any more) and ``SegmentMerger`` (one file of small neighbours).  Here is
when.

Deadlines are on the monotonic clock.  Only what is compared with records' and files' times is wall time (``wall_ms``);
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

from bmq.broker.cleanup.orphans import Sweeper
from bmq.broker.cleanup.retention import HOUR_MS, Ledger, Retention
from bmq.broker.cleanup.segment_merge import SegmentMerger
from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.transitions import State
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord
from bmq.storage.filesystem import StorageError
from bmq.storage.log_segments import FOR_EVER

_log = logging.getLogger("bmq.broker.cleanup.janitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class JanitorConfig:
    """How often, how much, how late."""

    interval_ms: int = 30_000
    """Between rounds, jittered by a fifth so that brokers started together spread.  Kafka checks retention every five
    minutes; a round here costs a comparison a partition."""
    jobs_per_round: int = 64
    """Partitions' jobs done in one round; the others wait for the next."""
    names_per_job: int = 2_000
    """Names listed by one job; the rest of a long folder follows in later rounds."""
    deletes_per_job: int = 64
    grace_ms: int = 600_000
    """Age of scaffolding before it is swept: longer than any outage that its maker may wait out."""
    sweep_ms: int = 6 * HOUR_MS
    """Between sweeps of one partition: a paused predecessor may still leave something."""
    journal_grace_ms: int = 24 * HOUR_MS
    journal_sweep_ms: int = HOUR_MS
    """Between looks at the journals; only if some are old enough are all partition records read, page by page."""
    journals_per_sweep: int = 64
    """Dead brokers' journals removed at once."""
    join_after: int = 8
    """Segments registered in a partition before its new neighbours are looked at."""
    joins_per_job: int = 4
    join_sources_max: int = 32
    """Files appended by one concat."""
    retry_ms: int = 60_000
    """After a step that failed."""
    step_timeout_ms: int = 120_000
    """For one partition's job, so that a stuck one holds nobody up."""

    def validate(self) -> None:
        """ValueError naming the setting."""
        if min(self.interval_ms, self.jobs_per_round, self.names_per_job, self.deletes_per_job) < 1:
            raise ValueError("interval_ms, jobs_per_round, names_per_job and deletes_per_job must be at least 1")
        if self.join_after < 1 or self.join_sources_max < 1:
            raise ValueError("join_after and join_sources_max must be at least 1")


_CLOCK_SET_MS = 1_000
"""A wall clock that moves so far against the monotonic one has been set; both are slewed together."""
COST_OF_NEW = 10
"""To begin with a partition takes some 20 us, in partitions that are unchanged."""


class Job(Enum):
    RETAIN = "move the log start"
    DELETE = "delete files below the log start"
    SWEEP = "remove scaffolding"
    JOIN = "join small segments"


class _Care(Ledger):
    """What the janitor remembers of one ownership of a partition, beside what retention does."""

    __slots__ = ("closings", "due", "join_from", "record")

    def __init__(self, writer: PartitionDriver) -> None:
        super().__init__(writer)
        self.record = writer.partition.record
        self.due: dict[Job, int] = {}
        self.join_from: SegmentName | None = None
        self.closings = 0  # segments registered since the last pass of joining


class Janitor:
    """One broker's.  ``run`` is a task of whoever starts it; ``partitions`` gives the writers that the broker holds."""

    def __init__(
        self,
        shared: BrokerContext,
        partitions: Callable[[], Iterable[PartitionDriver]],
        config: JanitorConfig | None = None,
        rng: random.Random | None = None,
        is_alive: Callable[[str], bool] | None = None,
    ) -> None:
        self.config = config or JanitorConfig()
        self.config.validate()
        self._shared = shared
        self._partitions = partitions
        self._rng = rng or random.Random(random.getrandbits(64))  # so a seeded process is seeded wholly
        self._cares: dict[PartitionKey, _Care] = {}
        self._heap: list[tuple[int, int, _Care, Job]] = []
        self._serial = itertools.count()
        self._journals_due_ms: int | None = None
        self._wall_offset_ms: int | None = None  # of the wall clock to the monotonic one
        self._retention: Retention[_Care] = Retention(
            shared.fs,
            interval_ms=self.config.interval_ms,
            names_per_job=self.config.names_per_job,
            deletes_per_job=self.config.deletes_per_job,
            retain_at=lambda care, due_ms: self._schedule(care, Job.RETAIN, due_ms),
            delete_at=lambda care, due_ms: self._schedule(care, Job.DELETE, due_ms),
            now_ms=shared.now_ms,
            failed=partial(self._failed, "an index is damaged, and not used"),
        )
        self._sweeper = Sweeper(
            shared,
            names_per_job=self.config.names_per_job,
            grace_ms=self.config.grace_ms,
            journal_grace_ms=self.config.journal_grace_ms,
            journals_per_sweep=self.config.journals_per_sweep,
            is_alive=is_alive,
        )
        self._joiner = SegmentMerger(
            shared,
            names_per_job=self.config.names_per_job,
            joins_per_job=self.config.joins_per_job,
            join_sources_max=self.config.join_sources_max,
            failed=self._failed,
        )
        self._perform = {
            Job.RETAIN: self._retention.retain,
            Job.DELETE: self._retention.delete,
            Job.SWEEP: self._sweep,
            Job.JOIN: self._join,
        }
        self.failures = 0

    def __repr__(self) -> str:
        return (
            f"<Janitor {len(self._cares)} partitions, deleted={self.files_deleted} swept={self.files_swept}"
            f" joined={self.files_joined} failures={self.failures}>"
        )

    @property
    def files_deleted(self) -> int:
        return self._retention.files_deleted

    @property
    def files_swept(self) -> int:
        return self._sweeper.files_swept

    @property
    def files_joined(self) -> int:
        return self._joiner.files_joined

    async def run(self) -> None:
        """Rounds for ever."""
        while True:
            spread = 0.8 + 0.4 * self._rng.random()
            await asyncio.sleep(self.config.interval_ms * spread / 1000)
            await self.run_once()

    async def run_once(self) -> int:
        """One round; how many jobs it did.  What fails is counted, logged and tried again later."""
        now_ms = self._shared.now_ms()
        await self._notice(now_ms)
        self._notice_clock(now_ms)
        done = 0
        while self._heap and self._heap[0][0] <= self._shared.now_ms() and done < self.config.jobs_per_round:
            due_ms, _, care, job = heapq.heappop(self._heap)
            if care.due.get(job) != due_ms or not self._is_held(care):
                continue  # rescheduled or gone
            del care.due[job]
            done += 1
            await self._attempt(care, job)
        await self._attempt_journals()
        return done

    async def _attempt(self, care: _Care, job: Job) -> None:
        try:
            async with asyncio.timeout(self.config.step_timeout_ms / 1000):
                await self._perform[job](care, self._shared.clock.now_ms())
        except (StorageError, KvError, RequestError, FormatError, TimeoutError) as error:
            self.failures += 1
            text = "cannot %s of a partition, trying again later"
            _log.warning(text, job.value, extra=fields(**care.writer.path.log_fields, error=repr(error)))
            self._schedule(care, job, self._shared.now_ms() + self.config.retry_ms)

    def _failed(self, text: str, path: str, error: Exception) -> None:
        self.failures += 1
        _log.warning(text, extra=fields(path=path, error=repr(error)))

    # ------------------------------------------------------------------------------------------ what is to be done

    async def _notice(self, now_ms: int) -> None:
        """Compare what each partition is with what it was in the last round, in turns of the loop.

        No I/O, no work for those unchanged.
        """
        before, cares = self._cares, dict[PartitionKey, _Care]()
        turns = Turns()
        for writer in tuple(self._partitions()):
            partition = writer.partition
            is_known = partition.key in before and before[partition.key].writer is writer
            if turns.is_over(1 if is_known else COST_OF_NEW):
                await next_turn()
            if partition.state is not State.WRITE:
                continue
            if not is_known:
                care = cares[partition.key] = _Care(writer)
                self._begin(care, now_ms)
                continue
            care = cares[partition.key] = before[partition.key]
            if partition.record is not care.record:
                care.closings += _registrations(care.record, partition.record)
                care.record = partition.record
                self._schedule_retention(care, now_ms)
                if care.has_leftovers:
                    care.has_leftovers = False
                    self._retention.doom(care, care.log_start)
                if care.closings >= self.config.join_after:
                    self._schedule(care, Job.JOIN, now_ms)
            if partition.config is not care.config:
                care.config = partition.config
                self._schedule_retention(care, now_ms)
            if partition.log_start != care.log_start:
                care.log_start = partition.log_start
                self._retention.doom(care, partition.log_start)
        self._cares = cares
        if len(self._heap) > 8 * len(self._cares) + 64:
            self._rebuild_heap()

    def _notice_clock(self, now_ms: int) -> None:
        """Compute again what expires when, if the wall clock was set: a deadline may lie years ahead of it now."""
        offset_ms = self._shared.clock.now_ms() - now_ms
        if self._wall_offset_ms is not None and abs(offset_ms - self._wall_offset_ms) <= _CLOCK_SET_MS:
            return
        if self._wall_offset_ms is not None:
            _log.warning("the wall clock was set by %d ms", offset_ms - self._wall_offset_ms)
        self._wall_offset_ms = offset_ms
        for care in self._cares.values():
            self._schedule_retention(care, now_ms)

    def _begin(self, care: _Care, now_ms: int) -> None:
        """A partition newly owned: its predecessor may have left anything half done."""
        self._schedule_retention(care, now_ms)
        self._schedule(care, Job.JOIN, now_ms)
        self._schedule(care, Job.SWEEP, now_ms + self.config.grace_ms + self._rng.randrange(self.config.grace_ms + 1))
        if care.log_start > 0:
            self._retention.doom(care, care.log_start)

    def _schedule_retention(self, care: _Care, due_ms: int) -> None:
        if care.config.retention_ms != FOR_EVER or care.config.retention_bytes != FOR_EVER:
            self._schedule(care, Job.RETAIN, due_ms)

    def _schedule(self, care: _Care, job: Job, due_ms: int) -> None:
        """Do ``job`` at ``due_ms``, unless it is to be done before."""
        if care.due.get(job, due_ms + 1) > due_ms:
            care.due[job] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._serial), care, job))

    def _rebuild_heap(self) -> None:
        """Drop what was rescheduled or is gone."""
        self._heap = [
            (due_ms, next(self._serial), care, job) for care in self._cares.values() for job, due_ms in care.due.items()
        ]
        heapq.heapify(self._heap)

    def _is_held(self, care: _Care) -> bool:
        partition = care.writer.partition
        return self._cares.get(partition.key) is care and partition.state is State.WRITE

    # -------------------------------------------------------------------------------- jobs that call for other jobs

    async def _sweep(self, care: _Care, wall_ms: int) -> None:
        now_ms = self._shared.now_ms()
        if await self._sweeper.sweep(care.writer, wall_ms):
            self._schedule(care, Job.JOIN, now_ms)  # what was swept may have stood in its way
        self._schedule(care, Job.SWEEP, now_ms + self.config.sweep_ms)

    async def _join(self, care: _Care, wall_ms: int) -> None:
        care.closings = 0
        if not care.writer.partition.record.segments:
            return
        care.join_from, is_more, is_blocked = await self._joiner.join(care, care.join_from)
        if is_more:
            self._schedule(care, Job.JOIN, self._shared.now_ms())
        elif is_blocked:
            care.closings = self.config.join_after  # at the next change

    async def _attempt_journals(self) -> None:
        now_ms = self._shared.now_ms()
        if self._journals_due_ms is None:  # not at once: brokers start together
            self._journals_due_ms = now_ms + self._rng.randrange(self.config.journal_sweep_ms + 1)
        if now_ms < self._journals_due_ms:
            return
        self._journals_due_ms = now_ms + self.config.journal_sweep_ms
        try:
            await self._sweeper.sweep_journals(self._shared.clock.now_ms())
        except (StorageError, KvError, FormatError) as error:
            self.failures += 1
            _log.warning("cannot remove old journals, trying again later", extra=fields(error=repr(error)))


def _registrations(old: PartitionRecord, new: PartitionRecord) -> int:
    """How many segments were registered between two records of one owner, about."""
    if not old.segments or not new.segments:
        return len(new.segments)
    first, last = old.segments[-1].name, new.segments[-1].name
    return last.n - first.n if last.epoch == first.epoch else last.n + 1
