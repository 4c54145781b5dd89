"""Former owners that wake up inside a merge or a swap, beside the cleaning and the merges of their successors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.broker.cleanup.former_owners import Unsettled
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.cleanup.upkeep_queue import UpkeepState
from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta import ownership
from bmq.storage.cleaning.job_round import DRAFT_FOLDER
from bmq.storage.filesystem import NotAllowed, OutOfSpace, StorageUnavailable, write_once
from bmq.storage.layout import base_name
from bmq.storage.log_segments import walk
from tests.unit.broker.cleanup.compacted_logs import BRISK, COMPACT, allow, compacted, contents, hidden, update
from tests.unit.broker.cleanup.jobs import NEVER_DUE, CleaningJob, Story, refused
from tests.unit.broker.cleanup.late_merges import PATIENT, begun_merge, lose
from tests.unit.broker.cleanup.upkeep import CONFIG, KEY, PATH, SMALL, Owner, World, small_segments

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

RECORD_KEY = ownership.partition_key("bmq", KEY)
HELD_MS = 600_000
LAX = replace(BRISK, grace_ms=HELD_MS)
"""A janitor that sweeps nothing while the story lasts."""


async def test_a_merge_that_a_former_owner_ends_late_loses_no_record() -> None:
    """Append no file to a source of a cleaned segment, which hides the source with all its bytes."""
    world = World()
    first = await world.owner("a", COMPACT, PATIENT)  # it may not clean yet
    await update(first, 4)
    await asyncio.sleep(2 * HELD_MS / 1000)
    last = await update(first, 10)
    gate, concat = asyncio.Event(), first.steps.concat
    refused: list[Exception] = []

    async def late(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await gate.wait()
        try:
            await concat(target, sources, target_bytes)
        except Exception as error:
            refused.append(error)
            raise

    first.steps.concat = late  # type: ignore[method-assign]
    first.configure(segment_bytes=1_400)
    zombie = asyncio.create_task(first.rounds())
    await asyncio.sleep(1)
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_compaction_lag_ms=HELD_MS))
    second = await compacted(world, "b", config)
    await second.rounds()
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert len(refused) == 1
    assert second.janitor.files_merged == 0
    assert second.janitor._former_owners.merges_ended == 1
    assert await contents(world, 0, 14) == (last, 14)
    for _ in range(3):
        await second.rounds(HELD_MS / 1000)
    assert second.janitor.cleaning.cleaner.rounds > 0
    assert (await contents(world, 0, 14))[0] == last
    assert await hidden(world) == 0
    assert [name for name in await world.names() if name.startswith(".join")] == []


async def test_in_an_outage_the_merge_of_a_former_owner_is_still_to_come() -> None:
    world = World()
    _, last, gate, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    read = second.steps.read
    lose(second, StorageUnavailable("safe mode"), "")  # all files
    await second.rounds()
    assert [name[:6] for name in await world.names() if name.startswith(".join")] == [".join-"]
    assert second.janitor.failures > 0
    second.steps.read = read  # type: ignore[method-assign]
    for _ in range(3):
        await second.rounds(BRISK.retry_ms / 1000)
    assert second.janitor._former_owners.merges_ended == 1
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert (await contents(world, 0, 14))[0] == last


async def test_a_folder_full_of_temporary_files_is_swept_and_then_merged() -> None:
    """Take nothing for settled that was not listed: the sweep ends this wait."""
    world = World()
    config = replace(CONFIG, names_per_job=20, grace_ms=10_000)
    owner = await world.owner("a", replace(SMALL, segment_bytes=200), config)
    for _ in range(14):
        await owner.send(1)
    owner.configure(segment_bytes=2_000)
    for number in range(45):
        await owner.fs.make_folder(f"{PATH.folder}/{DRAFT_FOLDER}job-{number:04d}")
    await owner.round()
    assert await owner.janitor._former_owners.settle(owner.janitor.queue.states[KEY]) is Unsettled.MANY
    owner.clock.ahead_ms += 2 * 86_400_000
    for _ in range(10):
        await owner.round(61)
    assert [name for name in await world.names() if name.startswith(".")] == []
    assert owner.janitor.files_merged > 0
    assert await world.records(0, 14) == world.sent


CROWDED = "temporary files or more"


async def test_a_folder_full_of_files_that_no_sweep_deletes_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Count the log as uncleanable, and go on once an operator has deleted the files."""
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, names_per_job=50))
    allow(owner)
    last = await update(owner, 14)
    paths = [f"{PATH.folder}/.a{number}" for number in range(60)]
    await write_again(world, paths)
    for _ in range(40):
        await owner.round(61)
    assert owner.janitor.cleaning.cleaner.rounds == 0
    (line,) = [record for record in caplog.records if CROWDED in record.message]
    assert "delete other files" in line.message
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 1
    for path in paths:
        await world.reading.delete(path)
    for _ in range(3):
        await owner.round(61)
    assert owner.janitor.cleaning.cleaner.rounds > 0
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    assert (await contents(world, 0, 14))[0] == last
    await write_again(world, paths)
    assert await owner.janitor._former_owners.settle(owner.janitor.queue.states[KEY]) is Unsettled.MANY
    assert len([record for record in caplog.records if CROWDED in record.message]) == 2


async def write_again(world: World, paths: Sequence[str]) -> None:
    for path in paths:
        await write_once(world.reading, path, b"")


@pytest.mark.parametrize("name", [".spare-00000001-1{:03d}-a", ".zzz{}"])
async def test_files_behind_all_drafts_do_not_keep_a_log_from_being_cleaned(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    owner = await world.owner("a", COMPACT, replace(BRISK, names_per_job=50))
    allow(owner)
    last = await update(owner, 14)
    await write_again(world, [f"{PATH.folder}/{name.format(number)}" for number in range(60)])
    for _ in range(4):
        await owner.round(61)
    assert owner.janitor.cleaning.cleaner.rounds > 0
    assert [record for record in caplog.records if CROWDED in record.message] == []
    assert (await contents(world, 0, 14))[0] == last


@pytest.mark.parametrize(("name", "merges"), [(".spare-00000001-1{:03d}-b", False), (".zzz{}", True), (".a{}", False)])
async def test_merging_needs_the_names_of_all_spares(name: str, merges: bool) -> None:
    world = World()
    owner = await small_segments(world)
    owner.janitor = Janitor(
        replace(owner.broker.context, fs=owner.steps), owner.held, replace(CONFIG, names_per_job=30), random.Random(3)
    )
    await write_again(world, [f"{PATH.folder}/{name.format(number)}" for number in range(40)])
    for _ in range(4):
        await owner.round(61)
    assert (owner.janitor.files_merged > 0) == merges
    assert await world.records(0, 14) == world.sent


async def test_a_sweep_beside_a_look_that_hangs_leaves_the_draft_that_it_settles() -> None:
    """Delete no draft of a merge that may still come: its late call would append files to a hidden source."""
    world = World()
    _, last, gate, zombie, refusals = await begun_merge(world)
    second = await compacted(world, "b")
    second.janitor.cleaning._wait_ms = 1
    await asyncio.sleep(2 * BRISK.grace_ms / 1000)
    read, released = second.steps.read, asyncio.Event()

    async def hangs(path: str, position: int, length: int) -> bytes:
        if base_name(path).startswith(".join-"):
            await released.wait()
        return await read(path, position, length)

    second.steps.read = hangs  # type: ignore[method-assign]
    await second.janitor._notice(second.broker.context.now_ms())
    care = second.janitor.queue.states[KEY]
    await second.janitor.cleaning.clean(care, second.clock.now_ms())
    assert second.janitor.cleaning.is_cleaning(care)
    await second.janitor._sweep(care, second.clock.now_ms())
    assert [name[:6] for name in await world.names() if name.startswith(".join")] == [".join-"]
    released.set()
    for _ in range(3):
        await second.round(BRISK.retry_ms / 1000 + 1)
    assert second.janitor._former_owners.merges_ended == 1
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert len(refusals) == 1
    assert (await contents(world, 0, 14))[0] == last


async def test_a_merge_of_a_former_owner_waits_while_the_record_names_its_files() -> None:
    """A successor begins at the files that the record names; until then nothing is merged, cleaned or swept."""
    world = World()
    first = await world.owner("a", COMPACT, PATIENT)
    last = await update(first, 14)

    async def never(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await asyncio.Event().wait()

    first.steps.concat = never  # type: ignore[method-assign]
    first.configure(segment_bytes=1_400)
    dead = asyncio.create_task(first.rounds())
    await asyncio.sleep(1)
    dead.cancel()
    first.die()
    (draft,) = [name for name in await world.names() if name.startswith(".join")]
    second = await compacted(world, "b")
    machine = second.driver.machine
    entries = machine.record.segments
    named = entries[0].name._replace(base=0, epoch=1, n=3)
    machine._record = replace(machine.record, segments=(replace(entries[0], name=named), *entries[1:]))
    second.driver.drop_old_names = lambda: None  # type: ignore[method-assign]  # the log is quiet, and would let go
    for _ in range(5):
        await second.rounds(BRISK.grace_ms / 1000)
    assert draft in await world.names()
    assert (second.janitor.cleaning.cleaner.rounds, second.janitor.files_merged) == (0, 0)
    machine._record = replace(machine.record, segments=entries)
    last |= await update(second, 4)
    for _ in range(10):
        await second.rounds(BRISK.retry_ms / 1000)
    assert draft not in await world.names()
    assert second.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 18))[0] == last


@pytest.mark.parametrize("step", ["replace", "rename"])
@pytest.mark.parametrize("does", ["merges", "cleans"])
@pytest.mark.parametrize("writer", ["owner", "job"])
async def test_a_draft_of_which_a_rebuilt_store_knows_nothing_gets_no_name(writer: str, step: str, does: str) -> None:
    """Hide no file that was merged meanwhile, and replace no index of another draft."""
    world = World()
    first = await compacted(world, config=COMPACT if writer == "owner" else NEVER_DUE)
    first.janitor.config = PATIENT
    last = await update(first, 14)
    job = CleaningJob(world)
    if writer == "job":
        await first.janitor._notice(first.broker.context.now_ms())
        await job.begin(first)
        await job.write()
    gate, call = asyncio.Event(), getattr(first.steps, step)

    async def late(source: str, target: str) -> None:
        if not base_name(target).startswith("."):
            await gate.wait()
        await call(source, target)

    setattr(first.steps, step, late)
    zombie = asyncio.create_task(first.rounds() if writer == "owner" else job.swap(first))
    await asyncio.sleep(1)
    await forget_swap(world, first)
    config = replace(COMPACT, segment_bytes=100_000) if does == "merges" else COMPACT
    second = await world.owner("b", config, LAX)
    if does == "cleans":
        allow(second)
    last |= await update(second, 7)
    for _ in range(3):
        await second.rounds(10)
    gate.set()
    await asyncio.wait({zombie}, timeout=30)
    assert zombie.done()
    if writer == "job":
        assert isinstance(zombie.exception(), RequestError)
    assert (second.janitor.files_merged > 0, second.janitor.cleaning.cleaner.rounds > 0) == (
        does == "merges",
        does == "cleans",
    )
    assert (await contents(world, 0, 21))[0] == last
    for listed in [one async for one in walk(world.reading, PATH) if one.name.cleaning]:
        assert listed.has_log
        assert listed.is_live
        assert listed.has_idx
    assert [name for name in await world.names() if name.startswith(".clean")] == []


async def forget_swap(world: World, owner: Owner) -> None:
    """Store the record as ``bmq cluster rebuild`` makes it: without the swap, at a much higher epoch."""
    record, revision = await ownership.read(owner.kv, RECORD_KEY)
    assert record.swap is not None
    forgotten = replace(record, swap=None, epoch=record.epoch + 1_000, owner="")
    await ownership.store(owner.kv, RECORD_KEY, forgotten, revision)


async def test_a_merge_for_which_a_disk_is_full_is_still_to_come() -> None:
    """A full disk refuses nothing for good: the former owner's call succeeds once there is room."""
    world = World()
    first = await world.owner("a", COMPACT, PATIENT)
    last = await update(first, 14)
    gate, concat = asyncio.Event(), first.steps.concat

    async def late(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await gate.wait()
        await concat(target, sources, target_bytes)

    first.steps.concat = late  # type: ignore[method-assign]
    first.configure(segment_bytes=1_400)
    zombie = asyncio.create_task(first.rounds())
    await asyncio.sleep(1)
    second = await compacted(world, "b")
    joined = second.steps.concat

    async def full(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        raise OutOfSpace("no space left on device")

    second.steps.concat = full  # type: ignore[method-assign]
    await second.rounds()
    assert len(second.janitor.queue.states[KEY].late_merges) == 1
    assert (second.janitor.cleaning.cleaner.rounds, second.janitor._former_owners.merges_ended) == (0, 0)
    second.steps.concat = joined  # type: ignore[method-assign]
    for _ in range(3):
        await second.rounds(BRISK.retry_ms / 1000 + 1)
    assert (second.janitor.cleaning.cleaner.rounds, second.janitor._former_owners.merges_ended) == (1, 1)
    gate.set()
    await asyncio.wait({zombie}, timeout=30)
    assert (await contents(world, 0, 14))[0] == last


async def test_a_draft_without_its_index_gets_no_name() -> None:
    """A cleaned segment without an index would end the cleaning of the log there, for good."""
    world = World()
    first = await compacted(world)
    last = await update(first, 14)
    (name,) = [one.name async for one in walk(world.reading, PATH) if one.name.base == 0]
    swap = first.janitor.cleaning.swapper.drafts(first.driver, name._replace(cleaning=1))
    await write_once(first.fs, swap.draft, await world.reading.read(PATH.log(name), 0, 1 << 20))
    await first.driver.store_swap(swap)
    assert not await first.janitor.cleaning.swapper.complete(first.driver)
    assert first.driver.machine.record.swap is None
    assert [each for each in await world.names() if each.startswith(".clean")] == []
    await first.rounds()
    assert first.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 14))[0] == last


async def test_the_sweeper_leaves_the_drafts_that_the_record_names() -> None:
    """A swap that waits for storage is older than any grace."""
    world = World()
    first = await compacted(world)
    await update(first, 14)
    (name,) = [one.name async for one in walk(world.reading, PATH) if one.name.base == 0]
    swap = first.janitor.cleaning.swapper.drafts(first.driver, name._replace(cleaning=1))
    for path in swap.drafts:
        await write_once(first.fs, path, b"")
    await first.driver.store_swap(swap)
    second = await compacted(world, "b")
    await asyncio.sleep(10 * BRISK.grace_ms / 1000)
    assert not await second.janitor._sweeper.sweep(UpkeepState(second.driver), second.clock.now_ms())
    assert sorted(map(base_name, swap.drafts)) == [each for each in await world.names() if each.startswith(".clean")]


async def test_a_merge_is_proven_behind_its_draft() -> None:
    """A successor that lists the folder finds the draft of each merge whose writer has proven its ownership."""
    world = World()
    first = await world.owner("a", COMPACT, PATIENT)
    last = await update(first, 14)
    names, prove = list[list[str]](), first.driver.prove

    async def refused() -> None:
        names.append([name for name in await world.names() if name.startswith(".join")])
        await prove()
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another process has it")

    first.driver.prove = refused  # type: ignore[method-assign]
    first.configure(segment_bytes=1_400)
    await first.rounds()
    assert [len(found) for found in names] == [1]
    assert first.janitor.files_merged == 0
    assert [name for name in await world.names() if name.startswith(".join")] == []
    assert await contents(world, 0, 14) == (last, 14)


@pytest.mark.parametrize("step", ["replace", "rename"])
@pytest.mark.parametrize("does", ["merges", "cleans"])
async def test_a_right_that_comes_back_to_a_former_owner_first_loses_no_record(step: str, does: str) -> None:
    """Let the operator give the right back, as the warning says: the former owner's call gets it too."""
    world = World()
    first = await compacted(world, config=NEVER_DUE)
    first.janitor.config = PATIENT
    last = await update(first, 14)
    job = CleaningJob(world)
    await first.janitor._notice(first.broker.context.now_ms())
    await job.begin(first)
    await job.write()
    gate, call = asyncio.Event(), getattr(first.steps, step)

    async def late(source: str, target: str) -> None:
        if not base_name(target).startswith("."):
            await gate.wait()
        await call(source, target)

    setattr(first.steps, step, late)
    zombie = asyncio.create_task(job.swap(first))
    await asyncio.sleep(1)
    await forget_swap(world, first)
    config = replace(COMPACT, segment_bytes=100_000) if does == "merges" else COMPACT
    second = await world.owner("b", config, LAX)
    if does == "cleans":
        allow(second)
    rename, is_denied = second.steps.rename, True

    async def denied(source: str, target: str) -> None:
        if is_denied and source.startswith(f"{job.folder}/"):
            raise NotAllowed(f"{source}: user=bmq, access=WRITE")
        await rename(source, target)

    second.steps.rename = denied  # type: ignore[method-assign]
    last |= await update(second, 7)
    for _ in range(3):
        await second.rounds(10)
    assert (second.janitor.files_merged, second.janitor.cleaning.cleaner.rounds) == (0, 0)
    is_denied = False
    gate.set()
    await asyncio.wait({zombie}, timeout=30)
    assert isinstance(zombie.exception(), RequestError)
    assert (await contents(world, 0, 21))[0] == last
    last |= await update(second, 4)
    for _ in range(6):
        await second.round(BRISK.retry_ms / 1000 + 1)
    assert (second.janitor.files_merged > 0, second.janitor.cleaning.cleaner.rounds > 0) == (
        does == "merges",
        does == "cleans",
    )
    assert (await contents(world, 0, 25))[0] == last


@pytest.mark.parametrize("step", ["rename", "delete", "list"])
async def test_a_draft_that_may_not_be_given_back_holds_up_its_log_and_is_warned_of_once(
    step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sweep, but neither merge nor clean, beside a job's folder whose rights were taken away."""
    story = await Story.of()
    owner, job = story.owner, story.job
    await story.drafted()
    await take_in_vain(owner, job)
    taken = [name for name in await story.world.names(job.folder) if name.startswith(".taken-")]
    assert len(taken) == 1
    if step == "delete":  # the job has written its draft again
        await write_once(job.fs, f"{job.folder}/{taken[0].rpartition('@')[2]}", b"draft")
    await job.end(owner)
    real = getattr(owner.steps, step)

    def denied(path: str, *rest: object, **options: object) -> object:
        if f"{path}/".startswith(f"{job.folder}/"):
            raise NotAllowed(f"{path}: user=bmq, access=WRITE")
        return real(path, *rest, **options)

    monkeypatch.setattr(owner.steps, step, denied)
    state, settle = owner.janitor.queue.states[KEY], owner.janitor._former_owners.settle
    orphan = f"{PATH.folder}/.concat-test.concat"
    await write_once(owner.fs, orphan, b"")
    owner.configure(segment_bytes=2_000)
    for _ in range(60):
        await owner.round(61)
    assert (owner.janitor.files_merged, owner.janitor.failures) == (0, 0)
    assert base_name(orphan) not in await story.world.names(), "the sweep goes on"
    assert taken[0] in await story.world.names(job.folder)
    (line,) = [record for record in caplog.records if "give the drafts in a job's folder back" in record.message]
    assert job.folder in str(vars(line))
    cleaning = owner.janitor.cleaning.state_of(KEY)
    assert cleaning is not None
    assert cleaning.reason == "failed"
    code, text = await refused(job.begin(owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "rights to read and to write" in text
    assert await story.is_right()
    monkeypatch.setattr(owner.steps, step, real)
    for _ in range(3):
        await owner.round(61)
    assert owner.janitor.files_merged > 0, "a quiet log, too"
    assert await settle(state) is None
    assert [name for name in await story.world.names(job.folder) if name.startswith(".taken-")] == []
    assert not state.denied_folders, "the next refusal is warned of again"


DENIED = "give the drafts in a job's folder back"


async def deny_folders(owner: Owner, count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make folders of jobs, and have storage refuse to list them."""
    folders = [f"{PATH.folder}/{DRAFT_FOLDER}job-{number:05d}" for number in range(count)]
    for folder in folders:
        await owner.fs.make_folder(folder)
    listing = owner.steps.list

    def denied(path: str, *rest: object, **options: object) -> object:
        if path in folders:
            raise NotAllowed(f"{path}: user=bmq, access=READ_EXECUTE")
        return listing(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(owner.steps, "list", denied)
    return folders


async def test_a_deleted_folder_is_warned_of_again_once_it_is_back_without_rights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Keep nothing of a folder that was deleted while its rights were missing."""
    owner = (await Story.of()).owner
    (folder,) = await deny_folders(owner, 1, monkeypatch)
    state, settle = owner.janitor.queue.states[KEY], owner.janitor._former_owners.settle
    for warnings in 1, 2:
        assert await settle(state) is Unsettled.DRAFT
        assert len([record for record in caplog.records if DENIED in record.message]) == warnings
        await owner.fs.delete(folder, recursive=True)
        assert await settle(state) is None
        await owner.fs.make_folder(folder)


async def test_each_of_very_many_folders_without_rights_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = (await Story.of()).owner
    await deny_folders(owner, 1_001, monkeypatch)
    state, settle = owner.janitor.queue.states[KEY], owner.janitor._former_owners.settle
    for _ in range(3):
        assert await settle(state) is Unsettled.DRAFT
    assert len([record for record in caplog.records if DENIED in record.message]) == 1_001


async def take_in_vain(owner: Owner, job: CleaningJob) -> None:
    """Let storage fail between the two drafts that the owner takes for a swap."""
    rename, taken = owner.steps.rename, list[str]()

    async def fails(source: str, target: str) -> None:
        if taken:
            raise StorageUnavailable("safe mode")
        taken.append(target)
        await rename(source, target)

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await job.swap(owner)
    owner.steps.rename = rename  # type: ignore[method-assign]
