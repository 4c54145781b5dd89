"""Rounds of cleaning by jobs outside the brokers: a partition's owner plans the round, and swaps the job's drafts in.

``storage.cleaning.job_round`` has the contract.  The job asks; only the owner acts, by its record's compare::

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
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from bmq.broker.cleanup.cleaning_status import LastCleaning, Outcome
from bmq.broker.cleanup.former_owners import FormerOwners
from bmq.broker.cleanup.job_hold import HOLD_MS, JobHold
from bmq.broker.cleanup.log_cleaner import aborted_below, log_facts
from bmq.broker.cleanup.log_cleaner_manager import CleaningState, LogCleanerManager
from bmq.broker.cleanup.retention import read_idx
from bmq.broker.cleanup.upkeep_queue import Job, UpkeepQueue
from bmq.broker.config import LogConfig
from bmq.broker.context import BrokerContext
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.file_access import Access
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey, SegmentName, cleaned_name
from bmq.meta.ownership import Swap
from bmq.storage.access import REFUSALS
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, Cleaned
from bmq.storage.cleaning.job_round import (
    GROUPS_MAX,
    JOB,
    NOTHING_TO_CLEAN,
    SWAP_WITHIN_MS,
    RoundPlan,
    draft_folder,
    sources_digest,
)
from bmq.storage.cleaning.plan import CleaningPlan, Reason, plan_cleaning
from bmq.storage.cleaning.retention import ProducerEnd
from bmq.storage.filesystem import FileSystem, Lease, NoSuchFile, Unsupported
from bmq.storage.log_segments import ListedSegment, walk

_log = logging.getLogger(__name__)

ABORTED_MAX = PRODUCERS_MAX = 1_000_000
"""Most aborted transactions and producers of a plan: 32 and 18 MB."""
INDEX_BYTES_MAX = 256 << 20
"""Most bytes of a draft's index: those of a million producers, and of the index of the largest segment."""
_FILE_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}", re.ASCII)
PLAN_AGAIN = "begin a new round"
_RIGHTS_NEEDED = "the broker's user has to read the drafts, and to rename them out of the job's folder"
_RIGHTS_ADVICE = (
    "Run the job as the brokers' user; or give the topic a storage.group that has both users, and a storage.mode with"
    " write and execute rights for the group, as 770"
)


class DraftGroup(NamedTuple):
    """A group of sources, and the drafts of the cleaned segment that replaces them, as a job sends them.

    ``sources``: their ``sources_digest``.  ``draft`` and ``draft_index``: paths on storage.
    """

    name: SegmentName
    end_offset: int
    sources: str
    draft: str
    draft_index: str


class SwapResult(NamedTuple):
    """The numbers of swapped and of expired groups, and the reason for which the others are not swapped, "" without it.

    The log start has passed an expired group, or some sources of it.  A group swapped by an earlier request counts as
    swapped.
    """

    swapped: int
    expired: int
    stopped: str = ""


class _Stopped(Exception):
    """The reason for which a group is not swapped, nor any behind it; ``str`` says what to do."""


L = TypeVar("L", bound=CleaningState)


@dataclass(slots=True, kw_only=True)
class _SwapRequest(Generic[L]):
    """A request under way.  ``segments``: live segments that no record names.  ``has_folder``: its check is done.

    ``end`` and ``swap_until_ms`` are the plan's.  ``left_below``: below it, sources of a group that was passed over may
    be left; None until it is known.
    """

    state: L
    hold: JobHold
    end: int
    swap_until_ms: int
    segments: Sequence[ListedSegment]
    has_folder: bool = False
    left_below: int | None = None

    @property
    def folder(self) -> str:
        """The job's folder."""
        return draft_folder(self.state.driver.path.folder, self.hold.job)


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
        self._failed = queue.report
        self._cleaning = cleaning
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
                plan = await self._plan(state)
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
        if not groups and (why_late := self._why_late(swap_until_ms)):
            raise _refused(why_late)  # the job learns it before it has written all drafts
        hold = self._hold(state, job)
        swapped = expired = 0
        stopped = ""
        async with state.names_lock:
            if not groups:
                await self._check_rights(state, hold)
            segments = await self._prepare(state, groups)
            request = _SwapRequest(state=state, hold=hold, end=end, swap_until_ms=swap_until_ms, segments=segments)
            for group in groups:
                try:
                    is_swapped = await self._take(request, group)
                except _Stopped as reason:
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
        if not self._context.may_clean():
            return "compaction.version is 0: finish the upgrade, then see `kafka-features.sh describe`"
        return ""

    def _why_late(self, swap_until_ms: int) -> str:
        """Return why drafts of a plan may not be swapped any more; "" if they may.

        Delete horizons of the drafts count from ``swap_until_ms``.  After a later swap, tombstones would be gone before
        a reader of the deleted values has had ``delete.retention.ms`` to read them.
        """
        if self._context.clock.now_ms() <= swap_until_ms:
            return ""
        return (
            f"its plan had to be swapped within {SWAP_WITHIN_MS // 3_600_000} h, and this time is over: tombstones"
            " could go earlier than delete.retention.ms after the swap; run the job again, with more executors or fewer"
            " partitions (--partitions)"
        )

    # -------------------------------------------------------------------------------------------------------- the plan

    async def _plan(self, state: L) -> RoundPlan:
        machine = state.driver.machine
        if machine.swap is not None or machine.record.swap is not None:
            raise _refused(f"{Reason.SWAP_PENDING.value}; try again in a minute")
        await self._settle(state)
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
        if not plan.dirty_bytes and closed.damaged_at is not None:
            raise _refused(
                f"damage stops the cleaning: the segment at offset {closed.damaged_at}, or its index, cannot be read,"
                " and nothing before it can be cleaned now; `bmq segment repair TOPIC PARTITION` shows the damage, and"
                " what to do"
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

    async def _settle(self, state: L) -> None:
        """Settle the drafts of former owners, whose next step could change a source.  Raises RequestError."""
        if not await self._former_owners.settle(state):
            raise _refused("a former owner's merge is not settled yet; try again in a minute")

    # -------------------------------------------------------------------------------------------------------- the swap

    async def _prepare(self, state: L, groups: Sequence[DraftGroup]) -> Sequence[ListedSegment]:
        """Prepare the log as for a round; return the live segments that no record names, in order of offsets.

        The swap of the record is completed, and the drafts of former owners are settled: no source changes any more.
        Without groups do nothing.
        """
        driver, found = state.driver, list[ListedSegment]()
        if not groups:
            return found
        if driver.machine.record.swap is not None:
            await self._cleaning.finish_swap(state)
        await self._settle(state)
        floor = min((entry.name.order for entry in driver.machine.record.segments), default=None)
        async with aclosing(walk(self._fs, driver.path)) as listing:
            async for listed in listing:
                if floor is None or listed.name.order >= floor:
                    break
                if listed.is_live and listed.end is not None:
                    found.append(listed)
        return found

    async def _take(self, request: _SwapRequest[L], group: DraftGroup) -> bool:
        """Swap a group, if it is not swapped yet; return False if the log start has passed it.

        Raises _Stopped, StorageError, and RequestError if this broker is not the owner any more.
        """
        state, driver = request.state, request.state.driver
        self._check_state(state)
        if group.end_offset <= driver.machine.log_start:
            self._ended(request, group)
            return False
        sources = [one for one in request.segments if group.name.base <= one.name.base < group.end_offset]
        if [(one.name, one.end) for one in sources] == [(group.name, group.end_offset)]:
            await self._check_done(request, group)
            self._ended(request, group)
            return True
        if group.name.base < driver.machine.log_start and _digest(sources) != group.sources:
            request.left_below = group.end_offset
            self._ended(request, group)
            return False
        _check_sources(group, sources)
        await self._check_tombstones(request, group, sources)
        facts = await self._check_drafts(request, group)
        self._check_state(state)
        if why_late := self._why_late(request.swap_until_ms):
            raise _Stopped(why_late)
        swap = Swap(name=group.name, draft=group.draft, draft_index=group.draft_index)
        try:
            with state.swapping():
                is_done = await self._cleaning.swapper.swap(driver, swap)
        except BaseException:
            self._queue.schedule(state, Job.SWAP, self._context.now_ms() + self._retry_ms)
            raise
        if not is_done:
            raise _Stopped(f"its drafts were deleted meanwhile; {PLAN_AGAIN}")
        self._cleaning.swapped(state, group.end_offset)
        request.hold.add(facts.bytes_before, facts.bytes_after)
        self._cleaning.cleaner.bytes_before += facts.bytes_before
        self._cleaning.cleaner.bytes_after += facts.bytes_after
        self._ended(request, group)
        return True

    def _check_state(self, state: L) -> None:
        if not self._queue.is_held(state):
            raise state.driver.machine.refusal()
        if why_not := self._why_not(state):
            raise _Stopped(why_not)

    async def _check_done(self, request: _SwapRequest[L], group: DraftGroup) -> None:
        """Check that the present segment of the group's name is of this round, or cleaner.  Raises _Stopped.

        A local round gives the same name, after a hold that was over: records below the job's end may be left in it.
        """
        index = await self._index(request.state.driver.path.idx(group.name))
        if index is None or index.cleaned is None or index.cleaned.clean_to < request.end:
            raise _Stopped(f"its sources were cleaned by another round; {PLAN_AGAIN}")

    async def _check_tombstones(
        self, request: _SwapRequest[L], group: DraftGroup, sources: Sequence[ListedSegment]
    ) -> None:
        """Check that the group's draft has all tombstones of its sources if older records may be left before it.

        Older records are left in a group that was passed over.  A draft lacks a tombstone whose delete horizon is over,
        and only cleaned sources have horizons.  Raises _Stopped.
        """
        driver = request.state.driver
        if request.left_below is None:
            request.left_below = await self._left_below(request, group)
        if request.left_below <= driver.machine.log_start:
            return
        now_ms = self._context.clock.now_ms()
        for source in sources:
            if not source.name.cleaning:
                continue
            index = await self._index(driver.path.idx(source.name))
            if index is None or index.cleaned is None or _may_lose_tombstones(index.cleaned, now_ms):
                raise _Stopped(
                    "its draft may lack tombstones whose older records are left: the log start has moved into a group"
                    f" before it; {PLAN_AGAIN}"
                )

    async def _left_below(self, request: _SwapRequest[L], group: DraftGroup) -> int:
        """Return the offset below which sources may be left as they were, judged by the log's first segment.

        The group that was passed over last has the log start, or lies below it.
        """
        driver = request.state.driver
        first = next((one for one in request.segments if (one.end or 0) > driver.machine.log_start), None)
        if first is None or first.name.base >= group.name.base:
            return 0
        index = await self._index(driver.path.idx(first.name)) if first.name.cleaning else None
        is_of_round = index is not None and index.cleaned is not None and index.cleaned.clean_to >= request.end
        return 0 if is_of_round else group.name.base

    async def _check_drafts(self, request: _SwapRequest[L], group: DraftGroup) -> Cleaned:
        """Check that the group's drafts are complete, closed, and the job's; return the facts of the cleaned segment.

        The writers of both files are fenced: the files never change again.  Raises _Stopped.
        """
        _check_paths(request.folder, group)
        try:
            if not request.has_folder:
                await self._check_folder(request.folder)
                request.has_folder = True
            length = await self._closed(group.draft)
            if await self._closed(group.draft_index) > INDEX_BYTES_MAX:
                raise _Stopped(f"its index has more than {INDEX_BYTES_MAX} bytes")
            index = await self._index(group.draft_index)
            if length and not await self._fs.read(group.draft, 0, 1):
                raise _Stopped("its draft cannot be read")
        except NoSuchFile as error:
            raise _Stopped(f"a draft is gone ({error}); {PLAN_AGAIN}") from None
        except Unsupported as error:
            raise _Stopped(f"{_RIGHTS_NEEDED}: {error}. {_RIGHTS_ADVICE}") from None
        machine, end = request.state.driver.machine, request.end
        if index is None:
            raise _Stopped("the index of its draft is damaged")
        is_right = (
            index.key == machine.key
            and index.segment == group.name
            and index.end_offset == group.end_offset
            and index.position == length
            and index.is_closed
            and index.is_full
        )
        if not is_right or index.cleaned is None or index.cleaned.clean_to != end:
            raise _Stopped(f"its draft of {length} bytes, or the index of the draft, is not of this group and round")
        bound = min(machine.high_watermark, machine.last_stable_offset)
        if not group.end_offset <= end <= bound:
            raise _Stopped(
                f"the round's end {end} is not between the group's end and {bound}, up to where it is stable"
            )
        for path in (group.draft, group.draft_index):
            await self._give_access(path, request.state.driver.segments.access)
        return index.cleaned

    async def _check_rights(self, state: L, hold: JobHold) -> None:
        """Check the rights on the job's folder once, if the job has made it: it has not written drafts yet.

        Raises RequestError without the right to rename files out of the folder, and StorageError.
        """
        if hold.has_rights:
            return
        try:
            await self._check_folder(draft_folder(state.driver.path.folder, hold.job))
        except NoSuchFile:
            return
        except Unsupported as error:
            raise _refused(f"{_RIGHTS_NEEDED}: {error}. {_RIGHTS_ADVICE}") from None
        hold.has_rights = True

    async def _check_folder(self, folder: str) -> None:
        """Check that this process may rename files out of the folder: a swap of the record must not get stuck.

        Raises NoSuchFile, Unsupported (NotAllowed), and other StorageErrors.
        """
        await self._fs.status(folder)
        trial = f"{folder}/.trial-{self._context.incarnation}"
        await self._fs.make_folder(trial)
        await self._fs.delete(trial)

    async def _closed(self, path: str) -> int:
        """Return the length of a file, on disk, after the end of any writer.  Raises StorageError."""
        status = await self._fs.status(path)
        if status.is_dir:
            raise NoSuchFile(f"{path} is a folder")
        return await self._fs.fence(Lease(paths=(path,), holder="", file_id=status.file_id), sync=True)

    async def _give_access(self, path: str, access: Access) -> None:
        """Give a draft the rights of the topic's files, as far as storage lets this process do it."""
        if not access.is_given:
            return
        status = await self._fs.status(path)
        missing = access.of_file().missing(status.owner, status.group, status.mode)
        try:
            if missing.is_given:
                await self._fs.set_access(path, missing)
        except Unsupported as error:
            REFUSALS.note(path, error)

    async def _index(self, path: str) -> Checkpoint | None:
        return await read_idx(self._fs, path, partial(self._failed, "an index is damaged, and not used"))

    def _ended(self, request: _SwapRequest[L], group: DraftGroup) -> None:
        """Show the round as the log's last if this was its last group."""
        state, hold = request.state, request.hold
        if group.end_offset != request.end or (state.cleaning is not None and state.cleaning.has_cleaned):
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
        _log.info(text, hold.job, request.end, before, after, extra=fields(**state.driver.path.log_fields))


# ------------------------------------------------------------------------------------------------- plain functions


def _refused(text: str) -> RequestError:
    return RequestError(ErrorCode.OPERATION_NOT_ATTEMPTED, text)


def _digest(sources: Sequence[ListedSegment]) -> str:
    return sources_digest((one.name, one.length) for one in sources)


def _may_lose_tombstones(cleaned: Cleaned, now_ms: int) -> bool:
    """Return whether a round that began before ``now_ms`` may remove tombstones of a cleaned source."""
    if cleaned.tombstones < 0:
        return True  # unknown, as after a repair
    return cleaned.tombstones > 0 and 0 <= cleaned.horizon <= now_ms


def _check_sources(group: DraftGroup, sources: Sequence[ListedSegment]) -> None:
    """Compare the live segments of the group with the files of the job's plan.  Raises _Stopped."""
    digest = _digest(sources)
    if not sources or sources[-1].end != group.end_offset or digest != group.sources:
        raise _Stopped(f"its sources are not the files that the job read: the log has changed; {PLAN_AGAIN}")
    try:
        name = cleaned_name([one.name for one in sources])
    except ValueError as error:
        raise _Stopped(str(error)) from None
    if name != group.name:
        raise _Stopped(f"the cleaned segment of its sources has the name {name}")


def _check_paths(folder: str, group: DraftGroup) -> None:
    """Check that the drafts are two files in the job's folder, by their paths.  Raises _Stopped."""
    if group.draft == group.draft_index:
        raise _Stopped("draft and index are one file")
    for path in (group.draft, group.draft_index):
        parent, _, name = path.rpartition("/")
        if parent != folder or _FILE_NAME.fullmatch(name) is None:
            raise _Stopped(f"{path[:300]!r} is not a file of the job's folder {folder}")


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
