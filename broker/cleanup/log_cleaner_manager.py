"""The choice of compacted logs to clean, as Kafka's class of this name: when a log is looked at, and what was found.

A log is looked at after its record, its settings or its log start has changed, and when the next record reaches a lag.
A log that is due waits for its turn (``due_logs``): looks come first, and the dirtiest log is cleaned before others.
At most ``threads`` rounds are under way, also behind other jobs of the janitor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

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
from bmq.broker.cleanup.due_logs import DueLogs
from bmq.broker.cleanup.former_owners import FormerOwners, Unsettled
from bmq.broker.cleanup.job_hold import JobHold
from bmq.broker.cleanup.log_cleaner import CleaningStopped, LogCleaner
from bmq.broker.cleanup.retention import HOUR_MS
from bmq.broker.cleanup.segment_swap import SegmentSwapper
from bmq.broker.cleanup.upkeep_queue import Job, UpkeepQueue, UpkeepState
from bmq.broker.context import BrokerContext
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.kv import KvError
from bmq.storage.cleaning.cleaned_file import DraftFull
from bmq.storage.cleaning.plan import Reason
from bmq.storage.filesystem import PipelineFailed, StorageError, StorageUnavailable

_log = logging.getLogger(__name__)

END_S = 2.0
"""Time for a stopped round to delete its drafts; the sweeper deletes the rest."""
SWAPS_MAX = 64
"""Most swaps of a partition whose sources are waited for apart; more of them wait for the last."""
FAR_MS = 1 << 50
"""A wait of this length never ends."""
LEFT_COST = 10
"""Cost of a log that is due and may not begin, about 20 us, in elements of a turn."""
_OUTAGES = StorageUnavailable, PipelineFailed, KvError, TimeoutError
"""Failures of a round that time heals: storage or the metadata store is away."""
_FAILED = Outcome(plan=None, obstacle=Obstacle.FAILED)
_DISABLED = Outcome(plan=None, obstacle=Obstacle.DISABLED)
_COMPILING = Outcome(plan=None, obstacle=Obstacle.COMPILING)


class CleaningState(UpkeepState):
    """The cleaning state of a partition under an owner, beside the state that its jobs share.

    ``cleaning``: the result of the last look, None before the first.  ``closed``: the segments that looks have found.
    ``last_cleaning``: the last round that is known.  ``waits_for``: the last stable offset from which on the log may be
    cleaned further, -1 if no transaction holds it up.

    ``hold``: the hold of a job that cleans the log, None without any; it may be over.  ``hidden``: the ends of the
    delays of deletes (monotonic) after swaps, with the end offsets of a job's sources, else 0, in order.

    ``failed_rounds``: consecutive failed rounds, without failures by an outage.
    ``paused_until``: the end of the pause after the last failure, in milliseconds of the monotonic clock.
    """

    __slots__ = (
        "_names_lock", "cleaning", "closed", "failed_rounds", "hidden", "hold", "last_cleaning", "paused_until",
        "waits_for",
    )  # fmt: skip

    def __init__(self, driver: PartitionDriver) -> None:
        super().__init__(driver)
        self.cleaning: Outcome | None = None
        self.closed: ClosedSegments | None = None
        self.last_cleaning: LastCleaning | None = None
        self.waits_for = -1
        self.failed_rounds = self.paused_until = 0
        self.hold: JobHold | None = None
        self.hidden: deque[tuple[int, int]] = deque()
        self._names_lock: asyncio.Lock | None = None

    @property
    def names_lock(self) -> asyncio.Lock:
        """The lock of steps that change names or contents of closed segments: of the janitor, and of jobs' requests.

        Every partition has a state, and few have such steps, so the lock is made at its first use.
        """
        if self._names_lock is None:
            self._names_lock = asyncio.Lock()
        return self._names_lock

    @property
    def are_names_locked(self) -> bool:
        """True while a step has ``names_lock``; does not make the lock."""
        return self._names_lock is not None and self._names_lock.locked()

    def held_until(self, now_ms: int) -> int | None:
        """Return the time until which a job holds the partition; None without a hold."""
        return self.hold.until_ms if self.hold is not None and self.hold.until_ms > now_ms else None


L = TypeVar("L", bound=CleaningState)


class LogCleanerManager(Generic[L]):
    """Cleaning of one broker's compacted logs, as jobs of the janitor's ``queue``.

    ``is_enabled``: logs are cleaned at all.  ``threads``: most logs that are cleaned at once.  ``clean_ms``: the least
    time between two looks at a log.  ``wait_ms``: the time after which other jobs go on beside a round.  ``retry_ms``:
    the pause after a round that was given up, or failed.  Each further failure doubles it, up to an hour; a failure by
    an outage leaves it, since the next round succeeds once the outage is over.
    """

    def __init__(
        self,
        context: BrokerContext,
        queue: UpkeepQueue[L],
        *,
        cleaner: LogCleaner,
        swapper: SegmentSwapper,
        former_owners: FormerOwners,
        is_enabled: bool,
        threads: int,
        clean_ms: int,
        wait_ms: int,
        retry_ms: int,
    ) -> None:
        self.cleaner = cleaner
        """The cleaner, with its counters."""
        self.swapper = swapper
        """The swaps, with their counters."""
        self._context = context
        self._queue = queue
        self._failed = queue.report
        self._former_owners = former_owners
        self._is_enabled = is_enabled
        self._threads = threads
        self._clean_ms = clean_ms
        self._wait_ms = wait_ms
        self._retry_ms = retry_ms
        self._rounds: dict[L, asyncio.Task[None]] = {}
        """The rounds of cleaning that are under way, also behind other jobs, and looks at logs before their turns."""
        self._being_cleaned: set[L] = set()
        """The logs of ``_rounds`` that have their turn to be cleaned; other logs are looked at."""
        self._due: DueLogs[L] = DueLogs()

    def is_cleaning(self, state: L) -> bool:
        """Return whether a round of this process is under way in this partition."""
        return state in self._rounds

    def closed_segments(self, state: L) -> ClosedSegments:
        """Return the closed segments of the partition, with the indexes that are known."""
        if state.closed is None:
            failed = partial(self._failed, "an index is damaged, and not used")
            state.closed = ClosedSegments(self._context.fs, state.driver, self._context.now_ms, failed)
        return state.closed

    def totals(self) -> Steps[CleaningTotals]:
        """Return the numbers of the compacted logs, and of waiting logs, as of the last looks, in steps."""
        waiting = 0

        def log(state: L) -> tuple[Outcome, int] | None:
            nonlocal waiting
            waiting += len(state.late_merges) > 0
            cleaning = state.config.cleaning
            outcome = self._outcome(state) if cleaning.is_compacted else None
            return None if outcome is None else (outcome, cleaning.max_compaction_lag_ms)

        counted = yield from count_logs(map(log, tuple(self._queue.states.values())), self._context.clock.now_ms())
        return replace(counted, waiting=waiting)

    def state_of(self, key: PartitionKey) -> LogCleaning | None:
        """Return the state of cleaning of a compacted log that is owned here; None for any other partition."""
        state = self._queue.states.get(key)
        if state is None or not state.config.cleaning.is_compacted or not self._queue.is_held(state):
            return None
        return cleaning_state(self._outcome(state), state.last_cleaning)

    def _outcome(self, state: L) -> Outcome | None:
        """Return the result of the last look; while the filters are compiled, all logs wait for them."""
        return _COMPILING if self.cleaner.is_compiling else state.cleaning

    # --------------------------------------------------------------------------------------- when a log is looked at

    def look_now(self, state: L, now_ms: int) -> None:
        """Schedule a look at a log for now, if it is compacted."""
        if state.config.cleaning.is_compacted:
            self._queue.schedule(state, Job.CLEAN, now_ms)

    def look_soon(self, state: L, now_ms: int) -> None:
        """Schedule a look at a log after ``clean_ms``, if it is compacted."""
        self.look_now(state, now_ms + self._clean_ms)

    def reconfigured(self, state: L, now_ms: int) -> None:
        """End the pause of a failed round, and look at the log: the change of its settings may be the remedy."""
        state.failed_rounds = state.paused_until = 0
        self.look_now(state, now_ms)

    def notice(self, state: L, now_ms: int) -> None:
        """Look at a log again if the transaction that held it up has ended."""
        if 0 <= state.waits_for <= state.driver.machine.last_stable_offset:
            state.waits_for = -1
            self.look_now(state, now_ms)

    def _schedule_lags(self, state: L, now_ms: int, wall_ms: int) -> None:
        outcome = state.cleaning
        if outcome is None or outcome.obstacle is Obstacle.LEVEL:
            self.look_now(state, now_ms + self._retry_ms)
            return
        if outcome.damaged_at is not None:
            # No change of the record tells that an index was written late, or that a datanode has come back.
            # From the end of this look on, so that the next reads all unreadable indexes again.
            lost_until_ms = None if state.closed is None else state.closed.lost_until_ms
            self.look_now(state, self._context.now_ms() + HOUR_MS if lost_until_ms is None else lost_until_ms)
        plan = outcome.plan
        if plan is None:
            return  # too large: the log is looked at again when its record changes
        state.waits_for = plan.waits_for
        if 0 <= plan.newest_due_ms <= wall_ms:
            # The change of the record brings the next look; none comes if storage refuses the file.
            state.driver.roll_empty()
            self.look_now(state, now_ms + self._retry_ms)
        elif wall_ms < plan.newest_due_ms < FAR_MS:
            self.look_now(state, now_ms + max(plan.newest_due_ms - wall_ms, self._clean_ms))
        if plan.reason is Reason.SWAP_PENDING:
            self._queue.schedule(state, Job.HIDDEN, now_ms + state.config.file_delete_delay_ms)
            return
        waits_ms = [plan.lag_ends_ms - wall_ms] if plan.lag_ends_ms >= 0 else []
        max_lag_ends_ms = plan.max_lag_ends_ms(state.config.cleaning)
        if plan.reason is Reason.BELOW_RATIO and max_lag_ends_ms is not None:
            waits_ms.append(max_lag_ends_ms - wall_ms)
        wait_ms = min(waits_ms, default=FAR_MS)
        if wait_ms < FAR_MS:
            self.look_now(state, now_ms + max(wait_ms, self._clean_ms))

    # ------------------------------------------------------------------------------------------------ the three jobs

    async def complete_swap(self, state: L, wall_ms: int) -> None:
        """Complete the swap of the partition's record.  Raises as ``SegmentSwapper.complete``."""
        if self.is_cleaning(state):
            return  # its round completes the swap, and has swaps of its own later
        async with state.names_lock:
            await self.finish_swap(state)
            if state.driver.machine.swap is not None:  # the record gets it once the metadata store responds
                self._queue.schedule(state, Job.SWAP, self._context.now_ms() + self._retry_ms)

    async def finish_swap(self, state: L) -> None:
        """Complete the swap of the partition's record, as ``complete_swap``; the caller sees to other steps."""
        with state.swapping():
            await self.swapper.complete(state.driver)
        self.swapped(state)

    async def clean(self, state: L, wall_ms: int) -> None:
        """Look whether the log is due: then ``begin_due`` begins its round.  A long look goes on behind other jobs.

        At most ``threads`` looks are under way.  A job that cleans the log is waited for.
        """
        now_ms = self._context.now_ms()
        if not self._may_look(state, now_ms):
            return
        if len(self._rounds) - len(self._being_cleaned) >= self._threads or self._is_busy(state):
            self.look_soon(state, now_ms)
            return
        await self._begin(state, wall_ms)

    async def begin_due(self) -> int:
        """Begin rounds while fewer than ``threads`` are under way, the dirtiest log's first; return their number.

        A long round goes on behind other jobs, and after many short rounds other jobs have their turn.
        """
        begun, now_ms = 0, self._context.now_ms()
        ends_ms, turns = now_ms + self._wait_ms, Turns()
        while len(self._being_cleaned) < self._threads and now_ms <= ends_ms:
            state = self._due.take(now_ms, lambda state: self._queue.is_held(state) and not self._is_busy(state))
            if state is None:
                break
            if self._may_look(state, now_ms):
                self._being_cleaned.add(state)
                begun += 1
                await self._begin(state, self._context.clock.now_ms())
            elif turns.is_over(LEFT_COST):
                await next_turn()
            now_ms = self._context.now_ms()
        return begun

    def forget(self, state: L) -> None:
        """Forget that a log is due: its partition is not owned here any more."""
        self._due.forget(state)

    def _may_look(self, state: L, now_ms: int) -> bool:
        """Return whether the log may be looked at and cleaned now; else schedule the next look."""
        if (held_until := state.held_until(now_ms)) is not None:
            self.look_now(state, held_until)
            return False
        if now_ms < state.paused_until:  # a change of the record has asked for a look
            self.look_now(state, state.paused_until)
            return False
        if not self._is_enabled:
            self._leave(state)
        return self._is_enabled

    async def _begin(self, state: L, wall_ms: int) -> None:
        """Begin a look, or a round of a log that has its turn, and wait for its end for some time."""
        task = self._rounds[state] = asyncio.create_task(self._clean_log(state, wall_ms))
        task.add_done_callback(partial(self._ended, state))
        await asyncio.wait({task}, timeout=self._wait_ms / 1000)

    def _is_busy(self, state: L) -> bool:
        """Return whether names change now, or a round or look is under way, perhaps of an ownership before.

        Such a round ends at its next step, and deletes its drafts: the drafts of another round have the same names.
        """
        key = state.driver.machine.key
        return state.are_names_locked or any(one.driver.machine.key == key for one in self._rounds)

    def _leave(self, state: L) -> None:
        """Leave a log as it is, but for sources that a swap of an earlier owner left."""
        if state.cleaning is None:
            self._queue.schedule(state, Job.HIDDEN, self._context.now_ms() + state.config.file_delete_delay_ms)
        state.cleaning = _DISABLED

    async def delete_hidden(self, state: L, wall_ms: int) -> None:
        """Delete sources of cleaned segments.  Raises as ``SegmentSwapper.delete_hidden``.

        A job swaps for as long as the delay of deletes and longer: sources of its later swaps stay for a later call.
        """
        now_ms, below, following_ms = self._context.now_ms(), None, FAR_MS
        while len(state.hidden) > 1 and state.hidden[1][0] <= now_ms:
            state.hidden.popleft()
        if state.hidden and state.hidden[-1][0] > now_ms:
            is_due = state.hidden[0][0] <= now_ms
            below = state.hidden[0][1] if is_due else 0
            following_ms = state.hidden[is_due][0]
        if await self.swapper.delete_hidden(state.driver, below):
            self._queue.schedule(state, Job.HIDDEN, now_ms)
        elif following_ms < FAR_MS:
            self._queue.schedule(state, Job.HIDDEN, following_ms)
        else:
            self.look_soon(state, now_ms)

    async def stop(self) -> None:
        """End the rounds that are under way: they delete their drafts."""
        self.cleaner.stop()
        rounds = list(self._rounds.values())
        for task in rounds:
            task.cancel()
        if rounds:
            await asyncio.wait(rounds, timeout=END_S)

    def _ended(self, state: L, task: asyncio.Task[None]) -> None:
        del self._rounds[state]
        self._being_cleaned.discard(state)
        if not task.cancelled():
            task.result()  # an error of the program: the loop's handler reports it

    async def _clean_log(self, state: L, wall_ms: int) -> None:
        """Do one round, and look again when the next record reaches a lag; a failure is counted and tried again."""
        try:
            await self._clean_once(state, wall_ms)
            if state not in self._due:  # a look is no remedy
                state.failed_rounds = 0
        except CleaningStopped:
            self.look_now(state, self._context.now_ms() + self._retry_ms)
        except (StorageError, KvError, RequestError, FormatError, TimeoutError, DraftFull) as error:
            state.cleaning = _FAILED
            pause_ms = self._retry_ms
            if not isinstance(error, _OUTAGES):
                pause_ms = min(self._retry_ms << state.failed_rounds, HOUR_MS)
                state.failed_rounds += pause_ms < HOUR_MS
            state.paused_until = self._context.now_ms() + pause_ms
            self._queue.retry(state, Job.CLEAN, error, pause_ms)
        except Exception as error:
            state.cleaning = _FAILED
            self._queue.failures += 1
            text = "bug: a round of compaction of a partition failed, trying again in an hour"
            _log.error(text, extra=fields(**state.driver.path.log_fields, error=repr(error)))
            state.paused_until = self._context.now_ms() + HOUR_MS
            self.look_now(state, state.paused_until)
            raise

    async def _clean_once(self, state: L, wall_ms: int) -> None:
        now_ms = self._context.now_ms()
        if state.driver.machine.record.swap is not None:
            await self.finish_swap(state)
        unsettled = await self._former_owners.settle(state)
        if unsettled is not None:
            if unsettled is not Unsettled.MERGE:
                state.cleaning = _FAILED  # for an operator: it may not end by itself
            self.look_now(state, now_ms + self._retry_ms)
            return
        before = state.swaps_done
        last = state.cleaning
        try:
            closed, has_turn = self.closed_segments(state), state in self._being_cleaned
            state.cleaning = await self.cleaner.clean(state, closed, wall_ms, may_begin=has_turn)
        finally:
            if state.swaps_done != before:
                state.hidden.clear()  # a round begins once the sources before are deleted
                self.swapped(state)
        if state.cleaning.has_cleaned or state.last_cleaning is None:
            state.last_cleaning = state.cleaning.last
        plan = None if has_turn or not self._queue.is_held(state) else state.cleaning.plan
        max_lag_ends_ms = None if plan is None else plan.max_lag_ends_ms(state.config.cleaning)  # on the wall clock
        self._due.put(state, plan, now_ms, None if max_lag_ends_ms is None else now_ms + max_lag_ends_ms - wall_ms)
        if state in self._due:
            state.cleaning = state.cleaning.after(last)
        damaged_at = state.cleaning.damaged_at
        if damaged_at is not None and (last is None or last.damaged_at != damaged_at):
            text = "a damaged segment or index at or behind offset %d stops the cleaning of a compacted log"
            _log.warning(text, damaged_at, extra=fields(**state.driver.path.log_fields))
        self._schedule_lags(state, now_ms, wall_ms)

    def swapped(self, state: L, below: int = 0) -> None:
        """Have the sources deleted after file.delete.delay.ms.

        ``below``: the end of the last source of a job's swaps; swaps that follow have a delay of their own.  With 0 the
        sources wait for the delay of the next swap, if there is another.
        """
        due_ms = self._context.now_ms() + state.config.file_delete_delay_ms
        if len(state.hidden) == SWAPS_MAX:
            state.hidden.pop()
        state.hidden.append((due_ms, below))
        self._queue.schedule(state, Job.HIDDEN, due_ms)
