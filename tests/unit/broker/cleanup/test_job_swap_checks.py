"""The checks before a job's drafts replace segments: late plans, other sources, wrong drafts, missing rights."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.cleanup import job_rounds, job_swap_checks
from bmq.broker.cleanup.job_hold import HOLD_MS
from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.broker.cleanup.job_swap_checks import DraftGroup, SwapRequest
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.retention import DELETE_HORIZON
from bmq.storage.filesystem import (
    CorruptData,
    LeaseLost,
    NotAllowed,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    write_once,
)
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx, encode_idx
from tests.unit.broker.cleanup.compacted_logs import COMPACT, compacted, contents, put, update
from tests.unit.broker.cleanup.jobs import COUNT, JOB, NEVER_DUE, CleaningJob, Story, refused, replace_cleaning
from tests.unit.broker.cleanup.upkeep import CLOCK, HOUR_MS, KEY, PATH, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


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
    for module in (job_rounds, job_swap_checks):
        monkeypatch.setattr(module, "SWAP_WITHIN_MS", HOUR_MS)
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


def lose(owner: Owner, paths: Collection[str], error: StorageError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the blocks of files: their names stay."""
    read = owner.steps.read

    async def lost(path: str, position: int, length: int) -> bytes:
        if path in paths:
            raise error
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lost)


@pytest.mark.parametrize(
    ("lost", "stopped"),
    [
        (["draft"], "its draft cannot be read"),
        (["draft_index"], "the index of its draft is damaged"),
        (["draft", "draft_index"], "its draft cannot be read"),
    ],
)
async def test_a_damaged_draft_is_not_asked_for_again(
    lost: list[str], stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the swap: a job that gets an error of storage would ask again for nothing."""
    story = await Story.of()
    await story.drafted()
    first = story.job.groups[0]
    lose(story.owner, [getattr(first, name) for name in lost], CorruptData("no sound replica"), monkeypatch)
    assert await story.job.swap(story.owner) == SwapResult(0, 0, f"{first.name}: {stopped}")
    assert await story.cleaned() == []
    assert await story.is_right()


async def test_a_damaged_index_of_a_swapped_segment_shows_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again for a swap that is done."""
    story = await Story.of()
    await story.drafted()
    groups = story.job.groups[:1]
    assert await story.job.swap(story.owner, groups) == SwapResult(1, 0)
    lose(story.owner, [PATH.idx(groups[0].name)], CorruptData("no sound replica"), monkeypatch)
    result = await story.job.swap(story.owner, groups)
    assert (result.swapped, "cleaned by another round" in result.stopped) == (0, True)


@pytest.mark.parametrize("lost", ["draft", "draft_index", "swapped"])
async def test_a_job_asks_again_while_the_datanodes_of_one_file_restart(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raise the error of storage: a swap that stops ends the round, and the job deletes its drafts."""
    story = await Story.of()
    await story.drafted()
    first = story.job.groups[0]
    if lost == "swapped":
        await story.job.swap(story.owner, [first])  # its response is lost
    path = PATH.idx(first.name) if lost == "swapped" else getattr(first, lost)
    with monkeypatch.context() as patch:
        lose(story.owner, [path], StorageUnavailable("its datanodes restart"), patch)
        with pytest.raises(StorageUnavailable, match="restart"):
            await story.job.swap(story.owner)
    assert await story.job.swap(story.owner) == SwapResult(len(story.job.groups), 0)
    assert await story.is_right()


async def test_tombstones_are_judged_again_once_the_index_of_a_source_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the error of storage also for the index of a cleaned source, which tells its delete horizon."""
    story = await Story.of()
    await story.drafted()
    await story.job.swap(story.owner)
    listed = [one async for one in walk(story.world.reading, PATH) if one.is_live and one.name.cleaning]
    request = SwapRequest(driver=story.owner.driver, job=JOB, end=COUNT, swap_until_ms=0, segments=[], left_below=COUNT)
    checks = story.owner.janitor.job_rounds._checks
    with monkeypatch.context() as patch:
        lose(story.owner, [PATH.idx(listed[0].name)], StorageUnavailable("its datanodes restart"), patch)
        with pytest.raises(StorageUnavailable, match="restart"):
            await checks.check_tombstones(request, story.job.groups[0], listed)
    await checks.check_tombstones(request, story.job.groups[0], listed)


async def test_a_swap_in_an_outage_is_to_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    story = await Story.of()
    await story.drafted()

    async def away(path: str, position: int, length: int) -> bytes:
        raise StorageUnavailable("safe mode")

    with monkeypatch.context() as patch:
        patch.setattr(story.owner.steps, "read", away)
        with pytest.raises(StorageUnavailable, match="safe mode"):
            await story.job.swap(story.owner)
    assert await story.job.swap(story.owner) == SwapResult(len(story.job.groups), 0)
    assert await story.is_right()


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
