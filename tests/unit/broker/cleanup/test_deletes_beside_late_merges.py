"""Deletes of files that a merge may still come into: none of them takes a live record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from bmq.broker.cleanup.merge_drafts import MERGED, may_gain, targets_below
from bmq.broker.cleanup.retention import CHECK_MS
from bmq.broker.cleanup.upkeep_queue import Job
from bmq.broker.config import LogConfig
from bmq.core.errors import ErrorCode
from bmq.core.model import SegmentName
from bmq.storage.filesystem import (
    CorruptData,
    FileStatus,
    PipelineFailed,
    StorageUnavailable,
    write_once,
)
from bmq.storage.layout import base_name
from tests.unit.broker.cleanup.compacted_logs import COMPACT, Found, compacted, contents, update
from tests.unit.broker.cleanup.jobs import NEVER_DUE, CleaningJob, refused
from tests.unit.broker.cleanup.late_merges import (
    LATE,
    RETRY_S,
    begun_merge,
    drafts,
    lose,
    names_of,
    refuse,
)
from tests.unit.broker.cleanup.upkeep import CONFIG, KEY, PATH, SMALL, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


async def merge_of_files_to_delete(
    content: str, segment_bytes: int = 1_400, config: LogConfig = NEVER_DUE
) -> tuple[World, Owner, Found, asyncio.Event, asyncio.Task[None]]:
    """Return an owner with a draft whose target is below the log start, as the first source is not.

    Storage did not respond at first, so the merge is still to come.  The delay of deletes is over.
    """
    world = World()
    _, last, gate, zombie, _ = await begun_merge(world, segment_bytes=segment_bytes)
    second = await compacted(world, "b", config)
    concat, is_away = second.steps.concat, True

    async def maybe(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        if is_away:
            raise StorageUnavailable("the NameNode does not respond")
        await concat(target, sources, target_bytes)

    second.steps.concat = maybe  # type: ignore[method-assign]
    await second.round(1)
    await second.driver.delete_before(1)
    await second.round(0.1)
    if content == "lost":
        lose(second, CorruptData("no sound replica"), ".join-")
    await asyncio.sleep(COMPACT.file_delete_delay_ms / 1000)
    is_away = False
    return world, second, last, gate, zombie


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_a_merge_does_not_get_into_a_file_that_is_being_deleted(
    content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Let a job begin, which settles the merge, between the deletes of the target's index and log."""
    world, second, last, _, _ = await merge_of_files_to_delete(content)
    delete, at, go = second.steps.delete, asyncio.Event(), asyncio.Event()

    async def slow(path: str, *, recursive: bool = False) -> bool:
        if base_name(path).startswith("0" * 20) and path.endswith(".idx"):
            at.set()
            await go.wait()
        return await delete(path, recursive=recursive)

    second.steps.delete = slow  # type: ignore[method-assign]
    janitor = asyncio.create_task(second.janitor.run_once())
    await asyncio.wait({asyncio.create_task(at.wait())}, timeout=30)
    code, text = await refused(CleaningJob(world).begin(second))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "delete the draft" in text
    go.set()
    await asyncio.wait({janitor}, timeout=60)
    await second.round(1)
    assert second.janitor._former_owners.merges_ended == second.janitor.files_merged == 0
    assert (await contents(world, 1, 14))[0] == last
    reason = "the draft is lost or damaged" if content == "lost" else "is below the log start"
    (line,) = [record for record in caplog.records if LATE in record.message]
    assert reason in str(vars(line))


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_a_file_is_not_deleted_while_a_merge_into_it_may_come(content: str) -> None:
    """Let the former owner's call come at the moment of the delete; then the file is deleted with its last record."""
    world, second, last, gate, zombie = await merge_of_files_to_delete(content)
    target, *_ = before = await names_of(world)
    delete = second.steps.delete

    async def beside(path: str, *, recursive: bool = False) -> bool:
        if path in (PATH.log(target), PATH.idx(target)):
            gate.set()
            await asyncio.wait({zombie}, timeout=5)
        return await delete(path, recursive=recursive)

    second.steps.delete = beside  # type: ignore[method-assign]
    for _ in range(3):
        await second.round(RETRY_S)
    assert await names_of(world) == before
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    for _ in range(10):
        await second.round(RETRY_S)
    assert (await contents(world, 1, 14))[0] == last


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_a_file_that_has_gained_live_records_since_it_was_listed_is_not_deleted(content: str) -> None:
    """Let the former owner's call come behind the listing of the files to delete: the record names all that is left."""
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, is_compacted=False))
    world, second, last, gate, zombie = await merge_of_files_to_delete(content, 100_000, config)
    target, *_ = await names_of(world)
    listing, begins = second.steps.list, list[str]()

    async def then_late(path: str, *, after: str = "") -> AsyncGenerator[FileStatus, None]:
        begins.append(after)
        if MERGED in begins[:-2]:  # the drafts are listed, and the files
            gate.set()
            await asyncio.wait({zombie}, timeout=5)
        async for status in listing(path, after=after):
            yield status

    second.steps.list = then_late  # type: ignore[method-assign]
    await second.janitor.run_once()
    assert await drafts(world) == [], "the call has come"
    assert target in await names_of(world)
    for _ in range(3):
        await second.round(RETRY_S)
    assert (await contents(world, 1, 14))[0] == last


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_a_file_is_deleted_once_an_operator_has_deleted_the_draft(content: str) -> None:
    world, second, last, _, zombie = await merge_of_files_to_delete(content)
    target, *_ = await names_of(world)
    await second.round(RETRY_S)
    assert target in await names_of(world)
    zombie.cancel()
    (draft,) = await drafts(world)
    await world.reading.delete(f"{PATH.folder}/{draft}")
    for _ in range(2):
        await second.round(CHECK_MS / 1000 + 1)
    assert target not in await names_of(world)
    assert (await contents(world, 1, 14))[0] == last


async def test_a_deletion_that_waits_for_a_merge_holds_no_later_deletion_up() -> None:
    world, second, _, _, zombie = await merge_of_files_to_delete("complete")
    target, *_ = await names_of(world)
    await second.round(RETRY_S)
    assert target in await names_of(world)
    zombie.cancel()
    (draft,) = await drafts(world)
    await world.reading.delete(f"{PATH.folder}/{draft}")
    await second.driver.delete_before(13)
    for _ in range(4):
        await second.round(CHECK_MS / 1000 / 10)
    assert (await names_of(world))[0].base == 13


async def test_a_deletion_that_waits_for_a_merge_goes_on_behind_the_next_sweep() -> None:
    world, second, _, _, zombie = await merge_of_files_to_delete("complete")
    target, *_ = await names_of(world)
    await second.round(RETRY_S)
    zombie.cancel()
    (draft,) = await drafts(world)
    await world.reading.delete(f"{PATH.folder}/{draft}")
    second.janitor.queue.schedule(second.janitor.queue.states[KEY], Job.SWEEP, 0)
    for _ in range(2):
        await second.round(1)
    assert target not in await names_of(world)


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_files_are_deleted_once_the_log_start_has_passed_all_that_a_merge_may_bring(content: str) -> None:
    """Let retention go on by itself: no operator is needed."""
    world, second, last, _, zombie = await merge_of_files_to_delete(content)
    target, *_ = await names_of(world)
    await second.driver.delete_before(13)
    for _ in range(4):
        await second.round(CHECK_MS / 1000 + 1)
    found = await names_of(world)
    assert target not in found
    assert found[0].base == 13
    assert not second.janitor.queue.states[KEY].late_merges
    last = {key: (offset, value) for key, (offset, value) in last.items() if offset >= 13}
    assert (await contents(world, 13, 14))[0] == last
    zombie.cancel()


@pytest.mark.parametrize("how", ["unanswered", "torn"])
async def test_an_owners_own_draft_does_not_keep_files_from_being_deleted(how: str) -> None:
    """Delete a settled draft of this process: the sweep leaves it to a successor."""
    world = World()
    config = replace(SMALL, segment_bytes=200, file_delete_delay_ms=1_000)
    owner = await world.owner("a", config, replace(CONFIG, grace_ms=10_000, sweep_ms=60_000))
    await owner.send(8)
    concat, create = owner.steps.concat, owner.steps.create

    async def torn(path: str, *options: object) -> object:
        if base_name(path).startswith(".join-"):
            await write_once(world.reading, path, b"BMQIDX1\n half an index")
            raise PipelineFailed("broken")
        return await create(path, *options)  # type: ignore[arg-type]

    if how == "unanswered":
        refuse(owner, StorageUnavailable("no response"))
    else:
        owner.steps.create = torn  # type: ignore[method-assign,assignment]
    owner.configure(segment_bytes=2_000)
    await owner.round(1)
    assert len(await drafts(world)) == 1
    owner.steps.concat, owner.steps.create = concat, create  # type: ignore[method-assign]
    owner.configure(segment_bytes=200)
    await owner.send(20)
    await owner.driver.delete_before(12)
    for _ in range(10):
        await owner.round(RETRY_S)
    assert await drafts(world) == []
    assert (await world.logs())[0] == 12
    assert await world.records(12, 28) == world.sent[12:]


async def test_the_sources_of_a_lost_draft_are_bounded() -> None:
    """Count at most so many files behind the target, of its epoch, no cleaned file, and none that the record names."""
    world = World()
    owner = await compacted(world)
    await update(owner, 14)
    names = await names_of(world)

    async def gains(offset: int, *, floor: SegmentName | None = None, most: int = 32) -> bool:
        limit = None if floor is None else floor.order
        return await may_gain(world.reading, PATH, names[2], offset, floor=limit, most=most)

    assert await gains(5)
    assert [await gains(offset, most=3) for offset in (5, 6)] == [True, False]
    assert [await gains(offset, floor=names[8]) for offset in (7, 8)] == [True, False]
    for end in names[6]._replace(epoch=2), names[6]._replace(cleaning=1):
        await write_once(world.reading, PATH.log(end), b"")
        assert [await gains(offset) for offset in (5, 6)] == [True, False]
        await world.reading.delete(PATH.log(end))


async def test_the_targets_below_an_offset_are_those_of_all_drafts_there() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 6)
    names = await names_of(world)
    for number in 1, 2, 4:
        await write_once(world.reading, f"{PATH.folder}/.join-{names[number]}-a", b"")
    for other in ".join-", ".join-7", ".idx-7", ".spare-7":
        await write_once(world.reading, f"{PATH.folder}/{other}", b"")
    assert await targets_below(world.reading, PATH.folder, names[4].base) == {names[1], names[2]}
    assert await targets_below(world.reading, PATH.folder, 100) == {names[1], names[2], names[4]}
