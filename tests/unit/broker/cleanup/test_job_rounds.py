"""Rounds of jobs: the owner's refusals, the hold, the checks of each group, and what befalls a log between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.cleanup import job_rounds
from bmq.broker.cleanup.former_owners import Unsettled
from bmq.broker.cleanup.job_hold import HOLD_MS
from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.broker.cleanup.upkeep_queue import Job
from bmq.broker.repair.scan import read_folder
from bmq.cli.segment.targets import list_partition
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.storage.cleaning.job_round import GROUPS_MAX, NOTHING_TO_CLEAN
from bmq.storage.cleaning.plan import NOT_COMPACTED
from bmq.storage.filesystem import StorageUnavailable, write_once
from bmq.storage.log_segments import walk
from tests.unit.broker.cleanup.compacted_logs import COMPACT, compacted, contents, hidden, put_again, update, work_held
from tests.unit.broker.cleanup.jobs import (
    COUNT,
    JOB,
    NEVER_DUE,
    CleaningJob,
    Story,
    is_temporary,
    refused,
    replace_cleaning,
)
from tests.unit.broker.cleanup.upkeep import KEY, PATH

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

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

    async def settled(state: Any, *, may_append: bool = True) -> Unsettled | None:
        return await settle(state, may_append=may_append) if is_settled else Unsettled.MERGE

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


# ----------------------------------------------------------------------------------------------------------- refusals


async def test_a_log_that_is_not_compacted_or_whose_cluster_is_of_level_0_is_refused() -> None:
    story = await Story.of()
    story.owner.wiring.may_clean = lambda: False
    code, text = await refused(story.job.begin(story.owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "compaction.version is 0: finish the upgrade, then see `bmq cluster features` (or `kafka-" in text
    story.owner.wiring.may_clean = lambda: True
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

    async def never(state: object, *, may_append: bool = True) -> Unsettled:
        return Unsettled.MERGE

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
    owner = story.owner
    gate = work_held(owner)
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

    async def late(target: str, sources: Any, target_bytes: int | None = None) -> None:
        await gate.wait()
        await concat(target, sources, target_bytes)

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


async def test_a_swap_that_storage_interrupts_is_completed_by_the_next_request() -> None:
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    rename = owner.steps.rename

    async def fails(source: str, target: str) -> None:
        if is_temporary(target):
            await rename(source, target)
            return
        owner.steps.rename = rename  # type: ignore[method-assign]
        raise StorageUnavailable("safe mode")

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await job.swap(owner)
    assert owner.driver.machine.record.swap is not None
    assert "still on storage" in (await refused(job.begin(owner)))[1]
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    assert await story.is_right()


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_draft_that_was_taken_in_vain_is_the_jobs_again(taken: int) -> None:
    """Storage fails before the record has the swap: the next request takes both drafts again."""
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    rename, renamed = owner.steps.rename, list[str]()

    async def fails(source: str, target: str) -> None:
        renamed.append(target)
        if len(renamed) > taken:
            owner.steps.rename = rename  # type: ignore[method-assign]
            raise StorageUnavailable("safe mode")
        await rename(source, target)

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await job.swap(owner)
    assert all(is_temporary(target) for target in renamed)
    assert owner.driver.machine.record.swap is None
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    assert await story.is_right()


async def test_a_swap_that_storage_interrupts_is_completed_without_another_request() -> None:
    story = await Story.of()
    owner = story.owner
    await story.drafted()
    rename = owner.steps.rename

    async def fails(source: str, target: str) -> None:
        if is_temporary(target):
            await rename(source, target)
            return
        owner.steps.rename = rename  # type: ignore[method-assign]
        raise StorageUnavailable("safe mode")

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await story.job.swap(owner)
    await owner.rounds(owner.janitor.config.retry_ms / 1000)
    assert owner.driver.machine.record.swap is None
    assert await story.cleaned() == [story.job.groups[0].name]
    assert await story.is_right()


@pytest.mark.parametrize("is_compacted", [True, False])
async def test_a_swap_that_the_record_gets_late_is_completed(*, is_compacted: bool) -> None:
    """The metadata store stands still for longer than the request, and no look at the log follows."""
    story = await Story.of()
    owner = story.owner
    await story.drafted()
    owner.janitor.cleaning._is_enabled = False
    owner.kv.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await story.job.swap(owner)
    await asyncio.sleep(61)
    round_ = asyncio.create_task(owner.janitor.run_once())
    await asyncio.sleep(30)
    assert owner.driver.machine.record.swap is None
    owner.kv.resume()
    await round_
    await asyncio.sleep(1)
    assert owner.driver.machine.record.swap is not None
    if not is_compacted:
        owner.configure(cleaning=NOT_COMPACTED)
    await owner.rounds(61)
    assert owner.driver.machine.record.swap is None
    assert await story.cleaned() == [story.job.groups[0].name]
    assert await story.is_right()


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_request_that_ends_before_the_store_responds_is_carried_out_by_the_next(requests: int) -> None:
    """The drafts have the owner's names, and the record has no swap yet: the job's round goes on."""
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    owner.kv.pause()
    for _ in range(requests):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120):
                await job.swap(owner)
    assert owner.driver.machine.record.swap is None
    following = asyncio.create_task(job.swap(owner))
    await asyncio.sleep(1)
    owner.kv.resume()
    assert await following == SwapResult(len(job.groups), 0)
    assert owner.driver.machine.record.swap is None
    assert await story.cleaned() == [group.name for group in job.groups]
    assert await story.is_right()
    state, cleaner = owner.janitor.cleaning.state_of(KEY), owner.janitor.cleaning.cleaner
    assert state is not None
    assert state.last is not None
    assert state.last.bytes_before == job.plan.dirty_bytes == cleaner.bytes_before, "all swaps are counted once"
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    assert (cleaner.bytes_before, cleaner.bytes_after) == (job.plan.dirty_bytes, state.last.bytes_after)


async def test_nothing_is_merged_beside_a_swap_that_the_record_is_about_to_get() -> None:
    """The hold ends while the metadata store stands still; the swap would hide all that is appended to a source."""
    story = await Story.of()
    owner = story.owner
    await story.drafted()
    owner.janitor.cleaning._is_enabled = False
    owner.configure(segment_bytes=2_000)
    await owner.janitor._notice(owner.broker.context.now_ms())
    owner.kv.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await story.job.swap(owner, story.job.groups[:1])
    await asyncio.sleep(HOLD_MS / 1000)
    round_ = asyncio.create_task(owner.janitor.run_once())
    await asyncio.sleep(30)
    owner.kv.resume()
    await round_
    for _ in range(3):
        await owner.rounds(61)
    assert owner.janitor.files_merged > 0
    assert await story.cleaned() == [story.job.groups[0].name]
    assert await story.is_right()


async def test_merging_begins_at_the_first_name_after_a_swap_whose_end_was_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metadata store responds after the step's time-out: no step of the janitor sees the swap's end."""
    story = await Story.of()
    owner, rename = story.owner, story.owner.steps.rename
    await story.drafted()
    owner.janitor.cleaning._is_enabled = False
    owner.configure(segment_bytes=2_000)

    async def fails(source: str, target: str) -> None:
        if is_temporary(target):
            await rename(source, target)
            return
        monkeypatch.setattr(owner.steps, "rename", rename)
        raise StorageUnavailable("safe mode")

    monkeypatch.setattr(owner.steps, "rename", fails)
    with pytest.raises(StorageUnavailable):
        await story.job.swap(owner, story.job.groups[:1])
    await story.job.end(owner)
    state = owner.janitor.queue.states[KEY]
    names = [one.name async for one in walk(story.world.reading, PATH) if one.is_live]
    state.merge_from = names[4]  # as after a pass over a shorter log: the group's last source
    await asyncio.sleep(61)
    commit, gate = owner.kv.commit, asyncio.Event()

    async def slow(compares: Any, writes: Any) -> Any:
        await gate.wait()
        return await commit(compares, writes)

    monkeypatch.setattr(owner.broker.context.kv, "commit", slow)
    await owner.janitor.run_once()
    assert owner.driver.machine.record.swap is not None
    gate.set()
    await asyncio.sleep(1)
    assert owner.driver.machine.record.swap is None
    for _ in range(3):
        await owner.round(15)
    assert owner.janitor.files_merged > 0
    assert await story.is_right()


async def test_sources_stay_for_their_delay_also_beside_a_delete_of_an_earlier_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response of the last delete was lost, so the delete is due again soon."""
    story = await Story.of(replace(NEVER_DUE, file_delete_delay_ms=120_000))
    world, owner = story.world, story.owner
    await story.drafted()
    await story.job.swap(owner)
    await story.job.end(owner)
    delete = owner.steps.delete

    async def is_lost(path: str, *, recursive: bool = False) -> bool:
        is_deleted = await delete(path, recursive=recursive)
        if await hidden(world):
            return is_deleted
        monkeypatch.setattr(owner.steps, "delete", delete)
        raise StorageUnavailable("the response is lost")

    monkeypatch.setattr(owner.steps, "delete", is_lost)
    await owner.round(121)
    assert await hidden(world) == 0
    story.last |= await update(owner, 12)
    await owner.rounds()
    job = CleaningJob(world, "job-2")
    await job.begin(owner)
    await job.write()
    await job.swap(owner)
    count = await hidden(world)
    assert count > 0
    await owner.round(60)
    assert await hidden(world) == count
    await owner.round(61)
    assert await hidden(world) == 0


async def test_the_next_owner_completes_a_swap_of_a_jobs_drafts() -> None:
    """The record has the paths of the drafts, wherever they lie."""
    story = await Story.of()
    owner = story.owner
    await story.drafted()
    rename = owner.steps.rename

    async def never(source: str, target: str) -> None:
        if is_temporary(target):
            await rename(source, target)
            return
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
    assert await story.owner.janitor._former_owners.settle(state) is None
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
