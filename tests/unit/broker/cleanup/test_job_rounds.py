"""Rounds of jobs: the owner's refusals, the hold, the checks of each group, and what befalls a log between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from bmq.broker.cleanup import job_rounds
from bmq.broker.cleanup.job_hold import HOLD_MS
from bmq.broker.cleanup.job_rounds import DraftGroup, SwapResult
from bmq.broker.cleanup.upkeep_queue import Job
from bmq.broker.repair.scan import read_folder
from bmq.cli.segment.targets import list_partition
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.job_round import GROUPS_MAX, NOTHING_TO_CLEAN
from bmq.storage.cleaning.plan import NOT_COMPACTED
from bmq.storage.cleaning.retention import DELETE_HORIZON
from bmq.storage.filesystem import LeaseLost, NotAllowed, PipelineFailed, StorageUnavailable, write_once
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx, encode_idx
from tests.unit.broker.cleanup.compacted_logs import COMPACT, Found, compacted, contents, hidden, put, put_again, update
from tests.unit.broker.cleanup.jobs import JOB, NEVER_DUE, CleaningJob
from tests.unit.broker.cleanup.upkeep import CLOCK, HOUR_MS, KEY, PATH, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

T = TypeVar("T")
COUNT = 24


class Story:
    """A compacted log of ``COUNT`` updates, its owner, and a job."""

    world: World
    owner: Owner
    job: CleaningJob
    last: Found

    @classmethod
    async def of(cls, config: Any = NEVER_DUE) -> Story:
        story = cls()
        story.world = World()
        story.owner = await compacted(story.world, config=config)
        story.last = await update(story.owner, COUNT)
        await asyncio.sleep(1)
        await story.owner.janitor._notice(story.owner.broker.context.now_ms())
        story.job = CleaningJob(story.world)
        return story

    async def drafted(self) -> None:
        await self.job.begin(self.owner)
        await self.job.write()

    async def is_right(self) -> bool:
        return (await contents(self.world, self.owner.log_start, COUNT))[0] == self.last

    async def cleaned(self) -> list[SegmentName]:
        return [one.name async for one in walk(self.world.reading, PATH) if one.is_live and one.name.cleaning]


async def refused(call: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestError) as caught:
        await call
    return caught.value.code, caught.value.message


# ----------------------------------------------------------------------------------------------------- a whole round


async def test_a_job_cleans_a_log_group_by_group() -> None:
    story = await Story.of()
    owner, job = story.owner, story.job
    plan = await job.begin(owner)
    assert (plan.start, plan.first_dirty, plan.clean_bytes) == (0, 0, 0)
    assert 0 < plan.end <= owner.watermark
    assert plan.segment_bytes == 1_000
    await job.write()
    assert len(job.groups) > 3
    before = (await contents(story.world, 0, COUNT))[1]
    assert await job.swap(owner, job.groups[:2]) == SwapResult(2, 0)
    assert await job.swap(owner, job.groups[2:]) == SwapResult(len(job.groups) - 2, 0)
    assert await story.cleaned() == [group.name for group in job.groups]
    found, count = await contents(story.world, 0, COUNT)
    assert found == story.last
    assert count < before
    state = owner.janitor.cleaning.state_of(KEY)
    assert state is not None
    assert state.last is not None
    assert state.last.bytes_before == plan.dirty_bytes
    assert 0 < state.last.bytes_after < state.last.bytes_before
    assert owner.janitor.cleaning.cleaner.rounds == 1
    await job.end(owner)
    for _ in range(4):
        await owner.rounds(1.5)
    assert await hidden(story.world) == 0
    assert await story.is_right()
    assert owner.janitor.failures == 0
    shown = owner.janitor.cleaning.state_of(KEY)
    assert shown is not None
    assert shown.last == state.last
    assert shown.dirty_percent == 0.0
    code, text = await refused(job.begin(owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "all closed segments are clean" in text


async def test_a_request_that_is_repeated_is_answered_as_done() -> None:
    """The response to the first was lost."""
    story = await Story.of()
    await story.drafted()
    all_of_them = SwapResult(len(story.job.groups), 0)
    assert await story.job.swap(story.owner) == all_of_them
    done = story.owner.janitor.cleaning.swapper.swaps_done
    state = story.owner.janitor.cleaning.state_of(KEY)
    assert await story.job.swap(story.owner) == all_of_them
    assert story.owner.janitor.cleaning.swapper.swaps_done == done
    assert story.owner.janitor.cleaning.state_of(KEY) == state
    assert story.owner.janitor.cleaning.cleaner.rounds == 1


async def test_a_round_goes_on_at_the_next_owner() -> None:
    story = await Story.of()
    job = story.job
    await story.drafted()
    await job.swap(story.owner, job.groups[:1])
    await story.owner.broker.move(KEY)
    assert (await refused(job.swap(story.owner)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    second = await compacted(story.world, "b", NEVER_DUE)
    assert (await refused(job.swap(second)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER, "its janitor has not noticed it"
    await second.janitor._notice(second.broker.context.now_ms())
    assert await job.swap(second) == SwapResult(len(job.groups), 0)
    await job.end(second)
    for _ in range(4):
        await second.rounds(1.5)
    assert await story.cleaned() == [group.name for group in job.groups]
    assert await hidden(story.world) == 0
    assert (await contents(story.world, 0, COUNT))[0] == story.last
    state = second.janitor.cleaning.state_of(KEY)
    assert state is not None
    assert state.last is not None
    assert state.last.bytes_before == job.plan.dirty_bytes, "as the indexes show it"


async def test_the_next_owner_settles_former_owners_before_it_swaps() -> None:
    """A late concat would put records into a source, which the cleaned segment hides."""
    story = await Story.of()
    await story.drafted()
    await story.owner.broker.move(KEY)
    second = await compacted(story.world, "b", NEVER_DUE)
    await second.janitor._notice(second.broker.context.now_ms())
    settle, is_settled = second.janitor._former_owners.settle, False

    async def settled(state: Any) -> bool:
        return await settle(state) and is_settled

    second.janitor._former_owners.settle = settled  # type: ignore[method-assign]
    code, text = await refused(story.job.swap(second))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "not settled" in text
    assert await story.cleaned() == []
    is_settled = True
    assert await story.job.swap(second) == SwapResult(len(story.job.groups), 0)


async def test_sources_wait_for_the_delay_of_their_own_swap() -> None:
    """A job swaps for longer than the delay; readers know the sources of a later swap for as long as of the first."""
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    await job.swap(owner, job.groups[:1])
    first = await hidden(story.world)
    await owner.round(0.9)
    assert await hidden(story.world) == first
    await job.swap(owner, job.groups[1:])
    left = await hidden(story.world) - first
    assert left > 0
    await owner.round(0.2)
    assert await hidden(story.world) == left, "of the first swap none, of the second all"
    await owner.round(0.5)
    assert await hidden(story.world) == left
    await owner.round(0.5)
    assert await hidden(story.world) == 0


async def test_tombstones_stay_for_their_time_after_the_swap_of_a_long_job() -> None:
    """Swap late: a reader that has just read the deleted value needs the tombstone from then on."""
    retention_ms = HOLD_MS // 10
    story = await Story.of(replace(NEVER_DUE, cleaning=replace(NEVER_DUE.cleaning, delete_retention_ms=retention_ms)))
    owner, job = story.owner, story.job
    await put(owner, b"gone", b"value")
    gone = build_batch([Record(key=b"gone", value=None)], base_timestamp=CLOCK.now_ms())
    await owner.driver.append(memoryview(gone))
    await update(owner, COUNT)
    await asyncio.sleep(1)
    await owner.janitor._notice(owner.broker.context.now_ms())
    await story.drafted()
    await asyncio.sleep(HOLD_MS * 9 // 10_000)
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    swapped_ms = owner.broker.context.clock.now_ms()
    assert swapped_ms > job.plan.now_ms + retention_ms
    log = LogReader(BlockCache(story.world.reading, ReadConfig(block_bytes=256)), PATH)
    found = [
        batch
        for group in job.groups
        for batch in read_batches(memoryview(await log.read(group.name.base, 1 << 20, group.end_offset)))
    ]
    horizons = [batch.base_timestamp for batch in found if batch.attributes & DELETE_HORIZON]
    assert horizons
    assert min(horizons) >= swapped_ms + retention_ms


async def test_drafts_whose_delete_horizons_are_too_early_are_not_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the latest time of a swap with each request: the owner may be another than the owner of the plan."""
    monkeypatch.setattr(job_rounds, "SWAP_WITHIN_MS", HOUR_MS)
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    for _ in range(6):
        await asyncio.sleep(HOUR_MS / 6_000 - 1)
        await job.swap(owner, [])
    assert await job.swap(owner, job.groups[:1]) == SwapResult(1, 0)
    await asyncio.sleep(7)
    code, text = await refused(job.swap(owner, []))
    assert (code, "run the job again" in text) == (ErrorCode.OPERATION_NOT_ATTEMPTED, True)
    before = await story.cleaned()
    result = await job.swap(owner)
    assert (result.swapped, result.expired) == (1, 0), "the first was swapped in time"
    assert "within 1 h" in result.stopped
    assert "--partitions" in result.stopped
    assert await story.cleaned() == before
    assert await story.is_right()


# ----------------------------------------------------------------------------------------------------------- refusals


async def test_a_log_that_is_not_compacted_or_whose_cluster_is_of_level_0_is_refused() -> None:
    story = await Story.of()
    context = story.owner.janitor.cleaning.cleaner._context
    context.may_clean = lambda: False
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "compaction.version" in text
    context.may_clean = lambda: True
    driver = story.owner.driver
    driver.machine.reconfigure(replace(driver.machine.config, cleaning=NOT_COMPACTED))
    assert "cleanup.policy" in (await refused(story.job.begin(story.owner)))[1]


async def test_a_wrong_request_is_refused() -> None:
    story = await Story.of()
    rounds = story.owner.janitor.job_rounds
    for name in ("", "a/b", "..", "A", "x" * 65, "a\n"):
        assert (await refused(rounds.begin(KEY, name)))[0] is ErrorCode.INVALID_REQUEST
    await story.drafted()
    many = [story.job.groups[0]] * (GROUPS_MAX + 1)
    assert (await refused(story.job.swap(story.owner, many)))[0] is ErrorCode.INVALID_REQUEST
    elsewhere = PartitionKey(KEY.topic_id, 5)
    assert (await refused(rounds.begin(elsewhere, JOB)))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_nothing_is_planned_while_files_of_the_last_cleaning_are_left() -> None:
    story = await Story.of()
    await story.drafted()
    await story.job.swap(story.owner)
    await story.job.end(story.owner)
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "still on storage" in text
    assert "file.delete.delay.ms" in text
    other = CleaningJob(story.world, "other")
    assert "still on storage" in (await refused(other.begin(story.owner)))[1], "a refused job holds nothing"


async def test_damage_is_no_clean_log() -> None:
    """Refuse with a text of its own where damage stops the log: the job counts the partition as failed."""
    story = await Story.of()
    names = [one.name async for one in walk(story.world.reading, PATH) if one.is_live]
    path = PATH.idx(names[0])
    sound = await story.world.reading.read(path, 0, 1 << 20)
    await put_again(story.world, path, sound[:20])
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert not text.startswith(NOTHING_TO_CLEAN)
    assert f"the segment at offset {names[0].base}, or its index, cannot be read" in text
    assert "bmq segment repair" in text
    await asyncio.sleep(1)
    await put_again(story.world, path, sound)
    assert (await story.job.begin(story.owner)).dirty_bytes > 0


@pytest.mark.parametrize("bound", ["ABORTED_MAX", "PRODUCERS_MAX"])
async def test_a_plan_that_is_too_large_is_refused(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = await Story.of()
    monkeypatch.setattr(job_rounds, bound, -1)
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "at most -1" in text


async def test_a_merge_of_a_former_owner_that_cannot_be_settled_is_waited_for() -> None:
    story = await Story.of()

    async def never(state: object) -> bool:
        return False

    story.owner.janitor._former_owners.settle = never  # type: ignore[method-assign]
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "not settled" in text


# ----------------------------------------------------------------------------------------------------------- the hold


async def test_a_second_job_waits_for_the_end_of_the_first_hold() -> None:
    story = await Story.of()
    other = CleaningJob(story.world, "other")
    await story.job.begin(story.owner)
    code, text = await refused(other.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert f"job {JOB} cleans the log" in text
    await story.job.begin(story.owner)
    await other.end(story.owner)
    assert (await refused(other.begin(story.owner)))[0] is ErrorCode.OPERATION_NOT_ATTEMPTED
    await asyncio.sleep(HOLD_MS / 2000)
    await story.job.swap(story.owner, [])
    await asyncio.sleep(HOLD_MS / 2000 + 1)
    assert "try again in" in (await refused(other.begin(story.owner)))[1], "the second request renewed it"
    await asyncio.sleep(HOLD_MS / 2000)
    await other.begin(story.owner)
    await other.end(story.owner)
    await story.job.begin(story.owner)


async def test_no_local_round_and_no_merge_begin_while_a_job_holds_the_partition() -> None:
    story = await Story.of(replace(COMPACT, cleaning=replace(COMPACT.cleaning, segment_bytes=1_000)))
    owner = story.owner
    owner.configure(segment_bytes=2_000)
    await story.job.begin(owner)
    (state,) = owner.janitor.queue.states.values()
    owner.janitor.queue.schedule(state, Job.MERGE, 0)
    before = await story.world.logs()
    for _ in range(5):
        await owner.rounds(60)
    assert await story.world.logs() == before
    assert (owner.janitor.cleaning.cleaner.rounds, owner.janitor.files_merged) == (0, 0)
    await story.job.end(owner)
    for _ in range(3):
        await owner.rounds(2)
    assert owner.janitor.cleaning.cleaner.rounds + owner.janitor.files_merged > 0
    assert await story.is_right()


async def test_local_rounds_and_merges_go_on_after_a_job_that_died() -> None:
    story = await Story.of(COMPACT)
    await story.job.begin(story.owner)
    for _ in range(4):
        await story.owner.round((HOLD_MS / 1000 - 2) / 4)
    assert story.owner.janitor.cleaning.cleaner.rounds == 0
    for _ in range(3):
        await story.owner.round(2)
    assert story.owner.janitor.cleaning.cleaner.rounds == 1


async def test_a_job_is_refused_while_a_local_round_is_under_way() -> None:
    story = await Story.of(COMPACT)
    owner, gate = story.owner, asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await gate.wait()
        return call()

    owner.janitor.cleaning.cleaner._context.offload = slow
    await owner.rounds()
    code, text = await refused(story.job.begin(owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "is cleaning the log" in text
    gate.set()
    await asyncio.sleep(1)
    assert owner.janitor.cleaning.cleaner.rounds == 1


async def test_a_round_is_planned_behind_a_merge_that_is_under_way() -> None:
    """Wait for the merge: it changes names, and the plan has its result."""
    story = await Story.of()
    owner, gate = story.owner, asyncio.Event()
    concat = owner.steps.concat

    async def late(target: str, sources: Any) -> None:
        await gate.wait()
        await concat(target, sources)

    owner.steps.concat = late  # type: ignore[method-assign]
    owner.configure(segment_bytes=2_000)
    (state,) = owner.janitor.queue.states.values()
    owner.janitor.queue.schedule(state, Job.MERGE, 0)
    upkeep = asyncio.create_task(owner.rounds())
    await asyncio.sleep(1)
    begun = asyncio.create_task(story.job.begin(owner))
    await asyncio.sleep(1)
    assert not begun.done()
    gate.set()
    await begun
    await upkeep
    assert owner.janitor.files_merged > 0
    await story.job.write()
    assert await story.job.swap(owner) == SwapResult(len(story.job.groups), 0)
    assert await story.is_right()


# ------------------------------------------------------------------------------------- what befalls the log in between


async def test_groups_below_the_log_start_are_expired() -> None:
    story = await Story.of()
    job = story.job
    await story.drafted()
    await story.owner.driver.delete_before(job.groups[1].end_offset)
    await story.owner.rounds(2)
    await story.owner.rounds(2)
    assert min(await story.world.logs()) == job.groups[1].end_offset, "retention goes on"
    assert await job.swap(story.owner) == SwapResult(len(job.groups) - 2, 2)


async def test_a_log_start_in_a_group_whose_sources_are_left_does_no_harm() -> None:
    story = await Story.of()
    job = story.job
    await story.drafted()
    await story.owner.driver.delete_before(job.groups[0].end_offset - 1)
    assert await job.swap(story.owner) == SwapResult(len(job.groups), 0)
    await job.end(story.owner)
    for _ in range(4):
        await story.owner.rounds(1.5)
    assert await hidden(story.world) == 0
    left = {key: found for key, found in story.last.items() if found[0] >= story.owner.log_start}
    assert (await contents(story.world, story.owner.log_start, COUNT))[0] == left


@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_a_group_of_which_sources_have_expired_is_passed_over(*, is_one_by_one: bool) -> None:
    story = await Story.of()
    job = story.job
    await story.drafted()
    await story.owner.driver.delete_before(job.groups[0].end_offset - 1)
    await story.owner.rounds(2)
    await story.owner.rounds(2)
    if is_one_by_one:
        found = [await job.swap(story.owner, [group]) for group in job.groups]
        assert found == [SwapResult(0, 1), *[SwapResult(1, 0)] * (len(job.groups) - 1)]
    else:
        assert await job.swap(story.owner) == SwapResult(len(job.groups) - 1, 1)
    assert await story.cleaned() == [group.name for group in job.groups[1:]]
    left = {key: found for key, found in story.last.items() if found[0] >= story.owner.log_start}
    assert (await contents(story.world, story.owner.log_start, COUNT))[0] == left
    other = CleaningJob(story.world, "other")
    await job.end(story.owner)
    for _ in range(4):
        await story.owner.rounds(1.5)
    assert (await other.begin(story.owner)).dirty_bytes > 0, "what is left of the group is dirty"


@pytest.mark.parametrize("is_one_by_one", [False, True])
async def test_no_tombstone_goes_before_a_value_that_is_left(
    *, is_one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pass over the group of a value in two rounds: the second would remove the tombstone, whose time is over."""
    monkeypatch.setattr(job_rounds, "SWAP_WITHIN_MS", HOLD_MS)
    world = World()
    owner = await compacted(
        world, config=replace(NEVER_DUE, cleaning=replace(NEVER_DUE.cleaning, delete_retention_ms=0))
    )
    for number in range(COUNT):
        if number == 4:
            value_at = await put(owner, b"gone", b"value")
        elif number == 8:
            gone = build_batch([Record(key=b"gone", value=None, headers=[("h", bytes(80))])])
            tombstone_at = await owner.driver.append(memoryview(gone))
        else:
            await put(owner, b"of its own %d" % number, b"value")
    await asyncio.sleep(1)
    await owner.janitor._notice(owner.broker.context.now_ms())

    async def drafted_and_cut(name: str, log_start: int) -> CleaningJob:
        job = CleaningJob(world, name)
        await job.begin(owner)
        await job.write()
        await owner.driver.delete_before(log_start)
        for _ in range(3):
            await owner.rounds(2)
        return job

    first = await drafted_and_cut("first", 2)
    assert first.groups[0].end_offset > value_at
    assert first.groups[0].end_offset <= tombstone_at
    assert await first.swap(owner) == SwapResult(len(first.groups) - 1, 1)
    await first.end(owner)
    for _ in range(4):
        await owner.rounds(HOLD_MS / 2000)
    second = await drafted_and_cut("second", 3)
    assert second.groups[0].end_offset <= tombstone_at
    before = await world.logs()
    if is_one_by_one:
        assert await second.swap(owner, second.groups[:1]) == SwapResult(0, 1)
        result = await second.swap(owner, second.groups[1:])
        assert (result.swapped, result.expired) == (0, 0)
    else:
        result = await second.swap(owner)
        assert (result.swapped, result.expired) == (0, 1)
    assert "may lack tombstones" in result.stopped
    assert await world.logs() == before
    third = CleaningJob(world, "third")
    await third.begin(owner)
    await third.write()
    assert await third.swap(owner) == SwapResult(len(third.groups), 0)
    log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=256)), PATH)
    keys = [
        bytes(record.key or b"")
        for group in third.groups
        for batch in read_batches(memoryview(await log.read(group.name.base, 1 << 20, group.end_offset)))
        for record in read_records(batch)
    ]
    assert keys
    assert b"gone" not in keys, "neither the value nor the tombstone"


async def test_a_dead_job_that_asks_late_changes_nothing() -> None:
    """Ask after the end of the hold, when the owner has cleaned the log and deleted the sources."""
    story = await Story.of(replace(COMPACT, cleaning=replace(COMPACT.cleaning, segment_bytes=3_000)))
    zombie = story.job
    await story.drafted()
    zombie.groups[0] = zombie.groups[0]._replace(name=replace_cleaning(zombie.groups[0].name))
    await asyncio.sleep(HOLD_MS / 1000)
    for _ in range(4):
        await story.owner.rounds(2)
    assert story.owner.janitor.cleaning.cleaner.rounds == 1
    before = await story.world.names()
    result = await zombie.swap(story.owner)
    assert (result.swapped, bool(result.stopped)) == (0, True)
    assert await story.world.names() == before
    assert await story.is_right()


def replace_cleaning(name: SegmentName) -> SegmentName:
    return name._replace(cleaning=name.cleaning + 7)


async def test_a_local_round_over_fewer_records_does_not_count_as_the_jobs() -> None:
    """Give the first cleaned segment the same name, with records that a later group of the job replaces."""
    story = await Story.of(replace(COMPACT, cleaning=replace(COMPACT.cleaning, segment_bytes=1_000)))
    await story.drafted()
    await asyncio.sleep(HOLD_MS / 1000)
    for _ in range(4):
        await story.owner.rounds(2)
    assert story.owner.janitor.cleaning.cleaner.rounds == 1
    names = {group.name for group in story.job.groups} & set(await story.cleaned())
    assert story.job.groups[0].name in names
    plan = story.job.plan
    story.job.plan = replace(plan, end=COUNT + 1)
    result = await story.job.swap(story.owner)
    assert (result.swapped, "another round" in result.stopped) == (0, True)
    story.job.plan = plan
    assert (await story.job.swap(story.owner, story.job.groups[:1])).swapped == 1, "it is as clean as the job's"


async def test_a_swap_that_storage_interrupts_is_completed_by_the_next_request() -> None:
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    rename = owner.steps.rename

    async def fails(source: str, target: str) -> None:
        owner.steps.rename = rename  # type: ignore[method-assign]
        raise StorageUnavailable("safe mode")

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await job.swap(owner)
    assert owner.driver.machine.record.swap is not None
    assert "still on storage" in (await refused(job.begin(owner)))[1]
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    assert await story.is_right()


async def test_a_swap_that_storage_interrupts_is_completed_without_another_request() -> None:
    story = await Story.of()
    owner = story.owner
    await story.drafted()
    rename = owner.steps.rename

    async def fails(source: str, target: str) -> None:
        owner.steps.rename = rename  # type: ignore[method-assign]
        raise StorageUnavailable("safe mode")

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await story.job.swap(owner)
    await owner.rounds(owner.janitor.config.retry_ms / 1000)
    assert owner.driver.machine.record.swap is None
    assert await story.cleaned() == [story.job.groups[0].name]
    assert await story.is_right()


async def test_the_next_owner_completes_a_swap_of_a_jobs_drafts() -> None:
    """The record has the paths of the drafts, wherever they lie."""
    story = await Story.of()
    owner = story.owner
    await story.drafted()

    async def never(source: str, target: str) -> None:
        owner.die()
        await asyncio.Event().wait()

    owner.steps.rename = never  # type: ignore[method-assign]
    dead = asyncio.create_task(story.job.swap(owner))
    await asyncio.sleep(1)
    second = await compacted(story.world, "b", NEVER_DUE)
    assert second.driver.machine.record.swap is not None
    await second.rounds(1)
    assert second.driver.machine.record.swap is None
    assert await story.cleaned() == [story.job.groups[0].name]
    assert (await contents(story.world, 0, COUNT))[0] == story.last
    assert await story.job.swap(second) == SwapResult(len(story.job.groups), 0)
    dead.cancel()


# ---------------------------------------------------------------------------------------------------- wrong drafts


async def stopped(story: Story, **changes: Any) -> str:
    """Ask for the first group with these changes; return why it is not swapped."""
    before = [name for name in await story.world.names() if not name.startswith(".")]
    group = story.job.groups[0]._replace(**changes)
    result = await story.job.swap(story.owner, [group, *story.job.groups[1:]])
    assert (result.swapped, result.expired) == (0, 0)
    assert [name for name in await story.world.names() if not name.startswith(".")] == before
    assert story.owner.driver.machine.record.swap is None
    return result.stopped


async def test_drafts_lie_in_the_jobs_own_folder() -> None:
    story = await Story.of()
    await story.drafted()
    group: DraftGroup = story.job.groups[0]
    name, folder = group.draft.rpartition("/")[2], story.job.folder
    (first, *_) = [each for each in await story.world.names() if each.endswith(".log")]
    for path in (
        f"{PATH.folder}/{first}",
        f"{PATH.folder}/.compact-other/{name}",
        f"{folder}/../{first}",
        f"{folder}/sub/{name}",
        f"{folder}/..",
        f"{folder}/.",
        f"{folder}/",
        name,
        "",
        f"{folder}/part-0.log\n",
    ):
        assert "not a file of the job's folder" in await stopped(story, draft=path), path
    assert "one file" in await stopped(story, draft=group.draft_index)


async def test_a_group_has_the_digest_and_the_name_of_its_sources() -> None:
    story = await Story.of()
    await story.drafted()
    group = story.job.groups[0]
    assert "not the files" in await stopped(story, sources="0" * 64)
    assert "not the files" in await stopped(story, end_offset=group.end_offset - 1)
    assert "has the name" in await stopped(story, name=replace_cleaning(group.name))


async def test_drafts_of_another_group_or_round_are_not_taken() -> None:
    story = await Story.of()
    await story.drafted()
    second = story.job.groups[1]
    wrong = "not of this group and round"
    assert wrong in await stopped(story, draft=second.draft, draft_index=second.draft_index)
    assert wrong in await stopped(story, draft_index=second.draft_index)
    story.job.plan = replace(story.job.plan, end=story.job.plan.end + 1)
    assert wrong in await stopped(story)


@pytest.mark.parametrize("change", ["is_closed", "is_full", "position", "cleaned", "key", "clean_to"])
async def test_the_index_of_a_draft_is_as_an_owner_would_write_it(change: str) -> None:
    story = await Story.of()
    await story.drafted()
    group, fs = story.job.groups[0], story.job.fs
    index = decode_idx(await fs.read(group.draft_index, 0, 1 << 20))
    assert index.cleaned is not None
    by_name: dict[str, dict[str, Any]] = {
        "is_closed": {"is_closed": False},
        "is_full": {"is_full": False},
        "position": {"position": index.position + 1},
        "cleaned": {"cleaned": None},
        "key": {"key": PartitionKey(KEY.topic_id, 1)},
        "clean_to": {"cleaned": replace(index.cleaned, clean_to=story.job.plan.end - 1)},
    }
    data = encode_idx(replace(index, **by_name[change]))
    await fs.delete(group.draft_index)
    await write_once(fs, group.draft_index, data)
    text = await stopped(story)
    assert "not of this group and round" in text or "is damaged" in text


async def test_a_damaged_index_and_missing_drafts_are_not_taken() -> None:
    story = await Story.of()
    await story.drafted()
    group, fs = story.job.groups[0], story.job.fs
    data = bytearray(await fs.read(group.draft_index, 0, 1 << 20))
    data[len(data) // 2] ^= 1
    await write_once(fs, f"{story.job.folder}/flipped", bytes(data))
    assert "is damaged" in await stopped(story, draft_index=f"{story.job.folder}/flipped")
    assert "gone" in await stopped(story, draft=f"{story.job.folder}/none")
    assert "gone" in await stopped(story, draft_index=f"{story.job.folder}/none")
    await fs.make_folder(f"{story.job.folder}/sub")
    assert "gone" in await stopped(story, draft=f"{story.job.folder}/sub")
    await fs.delete(story.job.folder, recursive=True)
    assert "gone" in await stopped(story)
    assert not any(name.startswith(".compact") for name in await story.world.names())


async def test_the_writer_of_a_draft_is_fenced() -> None:
    """A draft that an executor still writes is shorter than its index says, and never grows again."""
    story = await Story.of()
    await story.drafted()
    group, fs = story.job.groups[0], story.job.fs
    data = await fs.read(group.draft, 0, 1 << 20)
    path = f"{story.job.folder}/open"
    writer = await fs.create(path)
    writer.write(data[:-10])
    await writer.flush()
    assert "not of this group" in await stopped(story, draft=path)
    writer.write(data[-10:])
    with pytest.raises((LeaseLost, PipelineFailed)):
        await writer.flush()
    assert await fs.visible_length(path) == len(data) - 10


async def test_a_folder_out_of_which_the_owner_may_not_rename_is_refused_before_the_record_has_a_swap() -> None:
    story = await Story.of()
    await story.drafted()

    async def denied(path: str, *rest: object) -> None:
        raise NotAllowed(f"{path}: no right to write")

    story.owner.steps.make_folder = denied  # type: ignore[method-assign, assignment]
    assert "rename them out of the job's folder" in await stopped(story)


async def test_a_job_learns_of_missing_rights_before_it_writes_drafts() -> None:
    """Check the folder that the job has made at its first request, hours before the first swap."""
    story = await Story.of()
    await story.job.begin(story.owner)
    await story.job.swap(story.owner, [])
    await story.job.fs.make_folder(story.job.folder)
    make_folder = story.owner.steps.make_folder

    async def denied(path: str, *rest: object) -> None:
        raise NotAllowed(f"{path}: user=bmq, access=WRITE")

    story.owner.steps.make_folder = denied  # type: ignore[method-assign, assignment]
    code, text = await refused(story.job.swap(story.owner, []))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert f"{story.job.folder}/" in text
    assert "user=bmq, access=WRITE" in text
    assert "storage.mode" in text
    story.owner.steps.make_folder = make_folder  # type: ignore[method-assign]
    await story.job.swap(story.owner, [])
    assert await story.world.names(story.job.folder) == []


async def test_a_topic_that_is_not_compacted_any_more_is_not_swapped() -> None:
    story = await Story.of()
    await story.drafted()
    driver = story.owner.driver
    driver.machine.reconfigure(replace(driver.machine.config, cleaning=NOT_COMPACTED))
    assert "cleanup.policy" in (await refused(story.job.swap(story.owner)))[1]


async def test_a_jobs_folder_is_no_part_of_the_log() -> None:
    """Upkeep, a takeover, a rebuild, checks and readers see the log only, with files named like segments in it."""
    story = await Story.of()
    await story.drafted()
    name = story.job.groups[0].name
    for suffix in (".log", ".idx"):
        await write_once(story.job.fs, f"{story.job.folder}/{name}{suffix}", b"no segment")
    assert story.job.folder.rpartition("/")[2] in await story.world.names()
    fs = story.world.reading
    logs = await story.world.logs()
    assert len(logs) == COUNT
    folder = await read_folder(fs, PATH)
    assert len(folder.files) == COUNT
    assert len((await list_partition(fs, PATH.folder)).segments) == COUNT
    state = story.owner.janitor.queue.states[KEY]
    assert await story.owner.janitor._former_owners.settle(state)
    story.owner.configure(segment_bytes=2_000)
    await story.job.end(story.owner)
    for _ in range(3):
        await story.owner.rounds(1)
    assert story.owner.janitor.files_merged > 0
    second = await compacted(story.world, "b", NEVER_DUE)
    await second.rounds(2)
    assert (await contents(story.world, 0, COUNT))[0] == story.last
    assert await fs.read(f"{story.job.folder}/{name}.log", 0, 99) == b"no segment"
    assert (story.owner.janitor.failures, second.janitor.failures) == (0, 0)
