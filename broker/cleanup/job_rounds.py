"""Rounds of cleaning by jobs outside the brokers: a partition's owner plans the round, and swaps the job's drafts in.

``storage.cleaning.job_round`` has the contract, and ``job_swap_checks`` the checks of a swap.  The job asks; only the
owner acts, by its record's compare::

    begin   drafts of former owners are settled, the round is planned, and the partition is held for the job
    swap    for each group of sources, in order: compare sources and drafts with the request, then swap
    end     the hold ends

While a job holds the partition, no local round and no merge begins there; retention, DeleteRecords and a takeover go
on.  A hold is in memory: after a takeover the job's next request makes another.  Correctness does not need the hold.
A digest names the sources of a group.  Once the log was cleaned, merged or cut, it has other files.  So a late request
of a dead job finds nothing to replace.

The order of groups counts.  A round removes a tombstone when it has removed all older records of the key, and they lie
in earlier groups.  So the first group that cannot be swapped ends the round.  A group is passed over if the log start
has passed some of its sources.  Behind its other sources no group is swapped whose draft may lack a tombstone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Generic, NamedTuple, TypeVar

from bmq.broker.cleanup.cleaning_status import LastCleaning, Outcome
from bmq.broker.cleanup.former_owners import FormerOwners
from bmq.broker.cleanup.job_hold import HOLD_MS, JobHold
from bmq.broker.cleanup.job_swap_checks import (
    PLAN_AGAIN,
    DraftGroup,
    SwapChecks,
    SwapRequest,
    SwapStopped,
    check_sources,
    missing_rights,
)
from bmq.broker.cleanup.log_cleaner import aborted_below, log_facts
from bmq.broker.cleanup.log_cleaner_manager import CleaningState, LogCleanerManager
from bmq.broker.cleanup.upkeep_queue import Job, UpkeepQueue
from bmq.broker.config import LogConfig
from bmq.broker.context import BrokerContext
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.job_round import (
    GROUPS_MAX,
    JOB,
    NOTHING_TO_CLEAN,
    SWAP_WITHIN_MS,
    RoundPlan,
    draft_folder,
)
from bmq.storage.cleaning.plan import CleaningPlan, Reason, plan_cleaning
from bmq.storage.cleaning.retention import ProducerEnd
from bmq.storage.filesystem import FileSystem, NoSuchFile, Unsupported
from bmq.storage.log_segments import ListedSegment, walk

_log = logging.getLogger(__name__)

ABORTED_MAX = PRODUCERS_MAX = 1_000_000
"""Most aborted transactions and producers of a plan: 32 and 18 MB."""


class SwapResult(NamedTuple):
    """The numbers of swapped and of expired groups, and the reason for which the others are not swapped, "" without it.

    The log start has passed an expired group, or some sources of it.  A group swapped by an earlier request counts as
    swapped.
    """

    swapped: int
    expired: int
    stopped: str = ""


L = TypeVar("L", bound=CleaningState)


class JobRounds(Generic[L]):
    """Jobs' rounds in one broker's partitions.

    Each operation raises RequestError: NOT_LEADER_OR_FOLLOWER if the partition is not open here,
    OPERATION_NOT_ATTEMPTED with the reason if it cannot be done now, INVALID_REQUEST if the request is wrong.  They
    raise StorageError and KvError too; then the job asks again.
    """

    def __init__(
        self,
        context: BrokerContext,
        queue: UpkeepQueue[L],
        *,
        cleaning: LogCleanerManager[L],
        former_owners: FormerOwners,
        retry_ms: int,
    ) -> None:
        self._context = context
        self._fs: FileSystem = context.fs
        self._queue = queue
        self._cleaning = cleaning
        self._checks = SwapChecks(context, queue.report)
        self._former_owners = former_owners
        self._retry_ms = retry_ms

    # ---------------------------------------------------------------------------------------------- the three requests

    async def begin(self, key: PartitionKey, job: str) -> RoundPlan:
        """Plan a round, whether the log is due or not, and hold the partition for the job."""
        state = self._state(key, job)
        before = state.hold
        hold = self._hold(state, job)
        try:
            async with state.names_lock:
                plan = await self._plan(state, hold)
        except BaseException:
            if hold is not before:  # else a request of the same round has made it
                self._release(state, hold)
            raise
        hold.begin()
        self._hold(state, job)
        text = "job %s begins to clean a compacted log up to offset %d: %d bytes clean, %d bytes dirty"
        about = fields(**state.driver.path.log_fields)
        _log.info(text, job, plan.end, plan.clean_bytes, plan.dirty_bytes, extra=about)
        return plan

    async def swap(
        self, key: PartitionKey, job: str, end: int, swap_until_ms: int, groups: Sequence[DraftGroup]
    ) -> SwapResult:
        """Swap the groups, in order; without groups only renew the hold.  ``end`` and ``swap_until_ms``: the plan's.

        A request that was carried out, and whose response was lost, may be sent again.
        """
        if len(groups) > GROUPS_MAX:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{len(groups)} groups: send at most {GROUPS_MAX} at a time")
        state = self._state(key, job)
        if not groups and (why_late := self._checks.why_late(swap_until_ms)):
            raise _refused(why_late)  # the job learns it before it has written all drafts
        hold = self._hold(state, job)
        swapped = expired = 0
        stopped = ""
        async with state.names_lock:
            if not groups:
                await self._check_rights(state, hold)
            segments = await self._prepare(state, hold, groups)
            request = SwapRequest(driver=state.driver, job=job, end=end, swap_until_ms=swap_until_ms, segments=segments)
            for group in groups:
                try:
                    is_swapped = await self._take(state, hold, request, group)
                except SwapStopped as reason:
                    stopped = f"{group.name}: {reason}"
                    break
                self._hold(state, job)
                swapped += is_swapped
                expired += not is_swapped
        if stopped:
            self._release(state, hold)
            text = "the round of job %s in a compacted log ends early, and the log is right: %s"
            _log.warning(text, job, stopped, extra=fields(**state.driver.path.log_fields))
        return SwapResult(swapped, expired, stopped)

    async def end(self, key: PartitionKey, job: str) -> None:
        """End the hold of this job, if it has one, and have the log looked at."""
        state = self._state(key, job)
        async with state.names_lock:  # behind a request of the job that is under way
            if state.hold is not None and state.hold.job == job:
                self._release(state, state.hold)

    # ------------------------------------------------------------------------------------------------------- the hold

    def _state(self, key: PartitionKey, job: str) -> L:
        """Return the state of a partition that is open here.  Raises RequestError, also for a wrong name of a job."""
        if JOB.fullmatch(job) is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{job!r} is not a job: 1 to 64 of a-z, 0-9 and -")
        state = self._queue.states.get(key)
        if state is None or not self._queue.is_held(state):
            text = "the partition is not open at this broker, or was opened some seconds ago"
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        return state

    def _hold(self, state: L, job: str) -> JobHold:
        """Hold the partition for ``HOLD_MS`` from now.  Raises RequestError if it cannot be cleaned by this job now."""
        why_not = self._why_not(state)
        if why_not:
            raise _refused(why_not)
        if self._cleaning.is_cleaning(state):
            raise _refused("its owner is cleaning the log; try again in some minutes")
        now_ms = self._context.now_ms()
        until_ms = now_ms + HOLD_MS
        if state.hold is not None and state.hold.job == job:
            state.hold.until_ms = until_ms
        elif (held_until := state.held_until(now_ms)) is not None:
            rest_s = -(-(held_until - now_ms) // 1000)
            other = state.hold.job if state.hold is not None else ""
            raise _refused(f"job {other} cleans the log; if it is dead, try again in {rest_s} s")
        else:
            state.hold = JobHold(job=job, until_ms=until_ms)
        self._cleaning.look_now(state, until_ms)
        return state.hold

    def _release(self, state: L, hold: JobHold) -> None:
        """End a hold, and look at the log."""
        if state.hold is hold:
            state.hold = None
            now_ms = self._context.now_ms()
            self._cleaning.look_now(state, now_ms)
            if Job.MERGE in state.due:
                self._queue.schedule(state, Job.MERGE, now_ms)

    def _why_not(self, state: L) -> str:
        """Return why no cleaned segment may be written in the partition; "" if it may."""
        if not state.driver.machine.config.cleaning.is_compacted:
            return Reason.NOT_COMPACTED.value
        if not self._context.wiring.may_clean():
            return (
                "compaction.version is 0: finish the upgrade, then see `bmq cluster features` (or `kafka-features.sh"
                " describe`)"
            )
        return ""

    # -------------------------------------------------------------------------------------------------------- the plan

    async def _plan(self, state: L, hold: JobHold) -> RoundPlan:
        machine = state.driver.machine
        if machine.swap is not None or machine.record.swap is not None:
            raise _refused(f"{Reason.SWAP_PENDING.value}; try again in a minute")
        hold.is_settled = False  # a round before has another plan
        await self._settle(state, hold)
        closed = await self._cleaning.closed_segments(state).look()
        config, wall_ms = machine.config, self._context.clock.now_ms()
        facts = log_facts(state, closed)
        plan = plan_cleaning(facts, config.cleaning, wall_ms)
        last = closed.last_cleaning
        state.cleaning = Outcome(plan=plan, damaged_at=closed.damaged_at, last=last)
        if state.last_cleaning is None:
            state.last_cleaning = last
        if facts.has_pending_swap:
            delay_s = -(-config.file_delete_delay_ms // 1000)
            text = f"they are deleted {delay_s} s after it (file.delete.delay.ms); try again then"
            raise _refused(f"{Reason.SWAP_PENDING.value}: {text}")
        state.hidden.clear()  # no source of an earlier swap is left
        if not plan.dirty_bytes and closed.damaged_at is not None:
            raise _refused(
                f"damage stops the cleaning: the segment at offset {closed.damaged_at}, or its index, cannot be read,"
                " and nothing before it can be cleaned now; `bmq segment repair TOPIC PARTITION --all` shows the"
                " damage, and what to do"
            )
        if not plan.dirty_bytes:
            raise _refused(f"{NOTHING_TO_CLEAN}: {plan.reason.value}")
        aborted = aborted_below([*(one.index for one in closed.segments), *closed.later], closed.recent, plan.end)
        producers = ProducerEnd.of(machine.producers.snapshot())
        for what, count, most in (
            ("aborted transactions", len(aborted), ABORTED_MAX),
            ("producers", len(producers), PRODUCERS_MAX),
        ):
            if count > most:
                raise _refused(
                    f"the log has {count} {what}, and a job's plan at most {most}: its owner has to clean it"
                )
        return _round_plan(config, plan, wall_ms, aborted, producers)

    async def _settle(self, state: L, hold: JobHold) -> None:
        """Settle the drafts of former owners, whose next step could change a source.  Raises RequestError.

        Merges are carried out once, before the round: later they would change files that the job has read.
        """
        if (unsettled := await self._former_owners.settle(state, may_append=not hold.is_settled)) is not None:
            raise _refused(unsettled.value)
        hold.is_settled = True

    # -------------------------------------------------------------------------------------------------------- the swap

    async def _prepare(self, state: L, hold: JobHold, groups: Sequence[DraftGroup]) -> Sequence[ListedSegment]:
        """Prepare the log as for a round; return the live segments that no record names, in order of offsets.

        The swap of the record is completed, and the drafts of former owners are settled: no source changes any more.
        A swap that the record is about to get is awaited, and completed too: its drafts have the owner's names, and
        the job would find none.  Without groups do nothing.
        """
        driver, found = state.driver, list[ListedSegment]()
        if not groups:
            return found
        wanted = driver.machine.swap
        if wanted is not None and wanted != driver.machine.record.swap:  # its request ended before the store responded
            await driver.store_swap(wanted)
        if driver.machine.record.swap is not None:
            await self._cleaning.finish_swap(state)
        await self._settle(state, hold)
        floor = min((entry.name.order for entry in driver.machine.record.segments), default=None)
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                if floor is None or listed.name.order >= floor:
                    break
                if listed.is_live and listed.end is not None:
                    found.append(listed)
        return found

    async def _take(self, state: L, hold: JobHold, request: SwapRequest, group: DraftGroup) -> bool:
        """Swap a group, if it is not swapped yet; return False if the log start has passed it.

        Raises SwapStopped, StorageError, and RequestError if this broker is not the owner any more.
        """
        driver = state.driver
        self._check_state(state)
        if group.end_offset <= driver.machine.log_start:
            self._ended(state, hold, request.end, group)
            return False
        sources = [one for one in request.segments if group.name.base <= one.name.base < group.end_offset]
        if request.is_swapped(group, sources):
            await self._checks.check_done(request, group)
            self._count(hold, group)
            self._ended(state, hold, request.end, group)
            return True
        if request.is_passed_over(group, sources):
            request.left_below = group.end_offset
            self._ended(state, hold, request.end, group)
            return False
        check_sources(group, sources)
        await self._checks.check_tombstones(request, group, sources)
        facts = await self._checks.check_drafts(request, group)
        self._check_state(state)
        if why_late := self._checks.why_late(request.swap_until_ms):
            raise SwapStopped(why_late)
        swap = await self._checks.take_drafts(self._cleaning.swapper, group)
        hold.swapping = group.end_offset, facts.bytes_before, facts.bytes_after
        try:
            with state.swapping():
                is_done = await self._cleaning.swapper.swap(driver, swap)
        except BaseException:
            self._queue.schedule(state, Job.SWAP, self._context.now_ms() + self._retry_ms)
            raise
        if not is_done:
            raise SwapStopped(f"its drafts were deleted meanwhile; {PLAN_AGAIN}")
        self._cleaning.swapped(state, group.end_offset)
        self._count(hold, group)
        self._ended(state, hold, request.end, group)
        return True

    def _check_state(self, state: L) -> None:
        if not self._queue.is_held(state):
            raise state.driver.machine.refusal()
        if why_not := self._why_not(state):
            raise SwapStopped(why_not)

    async def _check_rights(self, state: L, hold: JobHold) -> None:
        """Check the rights on the job's folder once, if the job has made it: it has not written drafts yet.

        Raises RequestError without the right to rename files out of the folder, and StorageError.
        """
        if hold.has_rights:
            return
        try:
            await self._checks.check_folder(draft_folder(state.driver.path.folder, hold.job))
        except NoSuchFile:
            return
        except Unsupported as error:
            raise _refused(missing_rights(error)) from None
        hold.has_rights = True

    def _count(self, hold: JobHold, group: DraftGroup) -> None:
        """Count the bytes of a swapped group once, whichever request or job of the janitor has completed its swap."""
        bytes_before, bytes_after = hold.count(group.end_offset)
        self._cleaning.cleaner.bytes_before += bytes_before
        self._cleaning.cleaner.bytes_after += bytes_after

    def _ended(self, state: L, hold: JobHold, end: int, group: DraftGroup) -> None:
        """Show the round as the log's last if this was its last group."""
        if group.end_offset != end or (state.cleaning is not None and state.cleaning.has_cleaned):
            return
        before, after = hold.bytes_before, hold.bytes_after
        if before is None or after is None:
            state.last_cleaning = None  # the next look finds it in the indexes
            return
        self._cleaning.cleaner.rounds += 1
        last = LastCleaning(ended_ms=self._context.clock.now_ms(), bytes_before=before, bytes_after=after)
        state.last_cleaning = last
        plan = state.cleaning.plan if state.cleaning is not None else None
        state.cleaning = Outcome(plan=plan, has_cleaned=True, last=last)
        text = "job %s has cleaned a compacted log up to offset %d: %d bytes became %d"
        _log.info(text, hold.job, end, before, after, extra=fields(**state.driver.path.log_fields))


# ------------------------------------------------------------------------------------------------- plain functions


def _refused(text: str) -> RequestError:
    return RequestError(ErrorCode.OPERATION_NOT_ATTEMPTED, text)


def _round_plan(
    config: LogConfig,
    plan: CleaningPlan,
    now_ms: int,
    aborted: Sequence[AbortedTransaction],
    producers: Mapping[int, ProducerEnd],
) -> RoundPlan:
    return RoundPlan(
        start=plan.groups[0][0].base,
        first_dirty=plan.first_dirty,
        end=plan.end,
        now_ms=now_ms,
        swap_until_ms=now_ms + SWAP_WITHIN_MS,
        delete_retention_ms=config.cleaning.delete_retention_ms,
        segment_bytes=config.cleaning.segment_bytes,
        index_interval_bytes=config.index_interval_bytes,
        clean_bytes=plan.clean_bytes,
        dirty_bytes=plan.dirty_bytes,
        aborted=tuple(aborted),
        producers=producers,
    )
