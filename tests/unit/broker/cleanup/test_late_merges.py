"""Merges that may still come and that the present owner cannot settle: the log waits, and loses no record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.broker.cleanup.former_owners import LOCKED_MS, Unsettled
from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode
from bmq.meta.ownership import Swap
from bmq.storage.filesystem import (
    CorruptData,
    LeaseLost,
    NotAllowed,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
    Unjoinable,
    Unsupported,
    write_once,
)
from bmq.storage.layout import base_name
from tests.unit.broker.cleanup.compacted_logs import BRISK, COMPACT, allow, compacted, contents, update
from tests.unit.broker.cleanup.jobs import NEVER_DUE, CleaningJob, Story, refused
from tests.unit.broker.cleanup.late_merges import (
    HELD_MS,
    LAGGING,
    LATE,
    PATIENT,
    RETRY_S,
    begun_merge,
    drafts,
    lose,
    names_of,
    refuse,
    write_draft,
)
from tests.unit.broker.cleanup.upkeep import HOUR_MS, KEY, PATH, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


@pytest.mark.parametrize("error", [CorruptData("no sound replica"), StorageUnavailable("no live replica")], ids=repr)
async def test_a_log_with_a_lost_draft_of_a_merge_waits_for_an_operator(
    error: StorageError, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither merge nor clean, warn once, count the log; go on once the draft is deleted."""
    world = World()
    first, last, _, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    (draft,) = await drafts(world)
    lose(second, error, ".join-")
    before = await names_of(world)
    for _ in range(60):
        await second.round(RETRY_S)
    assert await names_of(world) == before
    assert await drafts(world) == [draft], "the sweep leaves the draft"
    (line,) = [record for record in caplog.records if LATE in record.message]
    assert draft in str(vars(line))
    assert "the draft is lost or damaged" in str(vars(line))
    assert finish_steps(second.janitor.cleaning.totals()).uncleanable == 1
    code, text = await refused(CleaningJob(world).begin(second))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert "delete the draft" in text
    zombie.cancel()
    first.die()
    await world.reading.delete(f"{PATH.folder}/{draft}")
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor.cleaning.cleaner.rounds == 1
    assert finish_steps(second.janitor.cleaning.totals()).uncleanable == 0
    assert (await contents(world, 0, 14))[0] == last
    assert not second.janitor.queue.states[KEY].late_merges, "the next lost draft is warned of again"


@pytest.mark.parametrize("gone", [[], [1]], ids=repr)
async def test_a_late_call_of_a_merge_whose_draft_is_lost_loses_no_record(gone: list[int]) -> None:
    """Let the call come long after the owner could have cleaned, also beside indexes that are deleted."""
    world = World()
    _, last, gate, zombie, refusals = await begun_merge(world, 2 * HELD_MS // 1000)
    second = await compacted(world, "b", LAGGING)
    indexes = [PATH.idx((await names_of(world))[at]) for at in gone]
    lose(second, CorruptData("no sound replica"), ".join-", *map(base_name, indexes))
    await second.round(RETRY_S)
    for path in indexes:
        await world.reading.delete(path)
    for _ in range(6):
        await second.round(RETRY_S)
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert refusals == []
    assert (await contents(world, 0, 14))[0] == last


async def test_a_late_call_of_a_merge_whose_draft_is_damaged_loses_no_record() -> None:
    """A local root returns damaged bytes.  An incomplete draft is the beginning of a whole one."""
    world = World()
    _, last, gate, zombie, refusals = await begun_merge(world, 2 * HELD_MS // 1000)
    (draft,) = await drafts(world)
    content = world.storage.namespace.file(f"{PATH.folder}/{draft}").data
    content[len(content) // 2] ^= 1
    second = await compacted(world, "b", LAGGING)
    for _ in range(6):
        await second.round(RETRY_S)
    assert second.janitor.queue.states[KEY].late_merges == {f"{PATH.folder}/{draft}"}
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert refusals == []
    assert (await contents(world, 0, 14))[0] == last


async def test_other_leftovers_are_swept_while_there_is_no_room_for_a_merge(caplog: pytest.LogCaptureFixture) -> None:
    """Only the sweep may give the bytes free that the merge lacks."""
    world = World()
    await begun_merge(world)
    (draft,) = await drafts(world)
    old = f"{PATH.folder}/.{(await names_of(world))[0]}.log.concat"
    await write_once(world.reading, old, b"x" * 1_000)
    second = await compacted(world, "b")
    second.steps.concat = full  # type: ignore[method-assign]
    for _ in range(30):
        await second.round(600)
    assert base_name(old) not in await world.names()
    assert await drafts(world) == [draft]
    (line,) = [record for record in caplog.records if LATE in record.message]
    assert "no room" in str(vars(line))


async def full(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
    raise OutOfSpace("no room")


async def test_a_lost_draft_is_read_some_times_an_hour_and_its_deletion_ends_the_wait() -> None:
    """Remember the verdict: three jobs look each minute, and a failing read holds the janitor up for ten seconds."""
    world = World()
    first, last, _, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    reads = lose(second, StorageUnavailable("no live replica"), ".join-")
    for _ in range(60):
        await second.round(RETRY_S)
    assert 4 <= reads.total() <= 7
    zombie.cancel()
    first.die()
    (draft,) = await drafts(world)
    await world.reading.delete(f"{PATH.folder}/{draft}")
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 14))[0] == last


async def test_a_log_that_waits_is_counted_and_swept_though_it_is_not_compacted() -> None:
    """Count the log for operators, and delete other leftovers of the former owner beside the draft."""
    world = World()
    await begun_merge(world)
    deleting = replace(COMPACT, cleaning=replace(COMPACT.cleaning, is_compacted=False), segment_bytes=1_400)
    second = await world.owner("b", deleting, BRISK)
    lose(second, CorruptData("no sound replica"), ".join-")
    await write_once(world.reading, f"{PATH.folder}/.spare-00000001-0099-a", b"")
    for _ in range(8):  # a sweep comes every six hours
        await second.round(HOUR_MS / 1000)
    assert finish_steps(second.janitor.cleaning.totals()).waiting == 1
    assert [name[:6] for name in await world.names() if name.startswith(".")] == [".join-"]
    (draft,) = await drafts(world)
    await world.reading.delete(f"{PATH.folder}/{draft}")
    for _ in range(3):
        await second.round(RETRY_S)
    assert finish_steps(second.janitor.cleaning.totals()).waiting == 0
    assert second.janitor.files_merged > 0


async def test_a_lost_draft_whose_file_is_gone_holds_nothing_up() -> None:
    """A call without its target is refused."""
    world = World()
    first, last, _, zombie, _ = await begun_merge(world)
    zombie.cancel()
    first.die()
    second = await compacted(world, "b")
    target, *_ = await names_of(world)
    lose(second, CorruptData("no sound replica"), ".join-")
    await second.driver.delete_before(1)
    await world.reading.delete(PATH.log(target))
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor.cleaning.cleaner.rounds > 0
    assert not second.janitor.queue.states[KEY].late_merges
    assert (await contents(world, 1, 14))[0] == last


async def test_an_owners_own_merge_whose_draft_is_lost_is_not_begun_again() -> None:
    """Keep the draft of an unanswered concat, also while a new draft could not be written."""
    world = World()
    owner = await compacted(world, "a", replace(LAGGING, segment_bytes=200))
    owner.wiring.may_clean = lambda: False
    await update(owner, 4)
    await asyncio.sleep(2 * HELD_MS / 1000)
    last = await update(owner, 10)
    calls, concat = list[tuple[str, Sequence[str]]](), owner.steps.concat

    async def unanswered(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        calls.append((target, sources))
        raise StorageUnavailable("no response within 10 s")

    owner.steps.concat = unanswered  # type: ignore[method-assign]
    owner.configure(segment_bytes=1_400)
    await owner.round(1)
    owner.steps.concat = concat  # type: ignore[method-assign]
    owner.configure(segment_bytes=200)
    (draft,) = await drafts(world)
    read, create = owner.steps.read, owner.steps.create
    lose(owner, CorruptData("no sound replica"), ".join-")

    async def broken(path: str, *options: object) -> object:
        if base_name(path).startswith(".join-"):
            await write_once(world.reading, path, b"BMQIDX1\n half an index")
            owner.steps.read = read  # type: ignore[method-assign]
            raise StorageUnavailable("the pipeline broke")
        return await create(path, *options)  # type: ignore[arg-type]

    owner.steps.create = broken  # type: ignore[method-assign,assignment]
    allow(owner)
    for _ in range(4):
        await owner.round(RETRY_S)
    assert await drafts(world) == [draft]
    assert owner.janitor.cleaning.cleaner.rounds == 0
    await concat(*calls[0])
    assert (await contents(world, 0, 14))[0] == last


# ----------------------------------------------------------------------------------------------------- refusals


PASSING = [
    NotAllowed("user=bmq, access=WRITE"),
    Unsupported("an encryption zone"),
    StorageError("SnapshotException: referred by some other reference in some snapshot"),
    PipelineFailed("broken"),
    CorruptData("no sound replica"),
    LeaseLost("another process holds the file"),
]
"""Refusals that are not for good: the same call may succeed later."""


@pytest.mark.parametrize("error", PASSING, ids=repr)
async def test_a_refusal_that_may_pass_settles_no_merge(error: StorageError, caplog: pytest.LogCaptureFixture) -> None:
    """Let the refusal end for the former owner first: its late call loses no record."""
    world = World()
    _, last, gate, zombie, refusals = await begun_merge(world, 2 * HELD_MS // 1000)
    second = await compacted(world, "b", LAGGING)
    concat, calls = second.steps.concat, refuse(second, error)
    for _ in range(4):
        await second.round(RETRY_S)
    second.steps.concat = concat  # type: ignore[method-assign]
    assert sum(calls.values()) > 1, "the owner tries again"
    assert second.janitor.cleaning.cleaner.rounds == 0
    lines = [str(vars(record)) for record in caplog.records if LATE in record.message]
    assert len(lines) == (not isinstance(error, LeaseLost))
    assert all(str(error) in line for line in lines)
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert refusals == []
    for _ in range(4):
        await second.round(RETRY_S)
    assert (await contents(world, 0, 14))[0] == last
    assert await drafts(world) == []
    assert not second.janitor.queue.states[KEY].late_merges


async def test_an_operator_hears_of_a_merge_whose_files_another_call_holds_for_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that stands still keeps its locks; a call that is under way ends soon."""
    world = World()
    _, last, _, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    concat, _ = second.steps.concat, refuse(second, LeaseLost("another process holds the file"))
    for _ in range(int(LOCKED_MS / 1000 / RETRY_S)):
        await second.round(RETRY_S)
    assert [record for record in caplog.records if LATE in record.message] == []
    for _ in range(3):
        await second.round(RETRY_S)
    (line,) = [record for record in caplog.records if LATE in record.message]
    assert "another call holds the files" in str(vars(line))
    assert finish_steps(second.janitor.cleaning.totals()).uncleanable == 1
    second.steps.concat = concat  # type: ignore[method-assign]
    for _ in range(4):
        await second.round(RETRY_S)
    assert second.janitor.cleaning.cleaner.rounds == 1
    assert not second.janitor.queue.states[KEY].locked_merges, "the next lock is waited for as long"
    assert (await contents(world, 0, 14))[0] == last
    zombie.cancel()


async def test_a_refusal_for_good_settles_a_merge() -> None:
    """Storage joins these files for no process, whenever it is asked."""
    world = World()
    _, last, gate, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    refuse(second, Unjoinable("smaller blocks"))
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor.cleaning.cleaner.rounds > 0
    assert (await contents(world, 0, 14))[0] == last
    zombie.cancel()
    gate.set()


async def test_a_draft_stays_while_another_call_holds_the_files() -> None:
    """The draft is that call's, too: without it the call would come unannounced."""
    world = World()
    owner = await world.owner("a", COMPACT, PATIENT)
    last = await update(owner, 14)
    concat, calls = owner.steps.concat, refuse(owner, LeaseLost("another call holds the file"))
    owner.configure(segment_bytes=1_400)
    await owner.rounds()
    assert sum(calls.values()) > 0
    (draft,) = await drafts(world)
    for _ in range(3):
        await owner.round(RETRY_S)
    assert await drafts(world) == [draft]
    owner.steps.concat = concat  # type: ignore[method-assign]
    await owner.round(RETRY_S)
    assert await drafts(world) == []
    assert owner.janitor._former_owners.merges_ended == 1
    assert (await contents(world, 0, 14))[0] == last


@pytest.mark.parametrize("seconds", [60, 400])
async def test_an_owners_own_call_that_goes_on_behind_its_deadline_loses_no_record(seconds: int) -> None:
    """Let the call hold locks meanwhile, as another process's on a local root does."""
    world = World()
    owner = await world.owner("a", LAGGING, BRISK)
    await update(owner, 4)
    await asyncio.sleep(2 * HELD_MS / 1000)
    last = await update(owner, 10)
    concat, begun = owner.steps.concat, list[asyncio.Task[None]]()

    async def call(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await asyncio.sleep(seconds)
        await concat(target, sources, target_bytes)

    async def local(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        if any(not one.done() for one in begun):
            raise LeaseLost(f"{target} has a writer")
        begun.append(asyncio.create_task(call(target, sources, target_bytes)))
        await asyncio.shield(begun[-1])

    owner.steps.concat = local  # type: ignore[method-assign]
    owner.configure(segment_bytes=1_400)
    allow(owner)
    for _ in range(14):
        await owner.round(RETRY_S)
    assert len(begun) > 0
    await asyncio.wait(begun)
    assert (await contents(world, 0, 14))[0] == last


# ------------------------------------------------------------------------------------------------ swaps and jobs


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_nothing_is_appended_while_a_swap_waits_in_the_record(content: str) -> None:
    """A swap that waits for storage hides all that the sweep would append to its sources."""
    story = await Story.of()
    owner, job = story.owner, story.job
    names = await names_of(story.world)
    await story.drafted()
    group = job.groups[0]
    target = max((name for name in names if name.base < group.end_offset), key=lambda name: name.base)
    behind = min((name for name in names if name.base >= group.end_offset), key=lambda name: name.base)
    rename, is_away = owner.steps.rename, True

    async def fails(source: str, target: str) -> None:
        if is_away and base_name(target).startswith("0"):
            raise StorageUnavailable("failover of the NameNode")
        await rename(source, target)

    owner.steps.rename = fails  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await job.swap(owner, [group])
    assert owner.driver.machine.record.swap is not None
    draft = await write_draft(story.world, [target, behind])
    if content == "lost":
        lose(owner, CorruptData("no sound replica"), ".join-")
    await job.end(owner)
    state = owner.janitor.queue.states[KEY]
    await owner.janitor._sweep(state, owner.clock.now_ms())
    assert (owner.janitor.files_merged, owner.janitor._former_owners.merges_ended) == (0, 0)
    assert base_name(draft) in await drafts(story.world)
    is_away = False
    for _ in range(4):
        await owner.round(RETRY_S)
    assert await story.cleaned() == [group.name]
    assert await story.is_right()


@pytest.mark.parametrize("where", ["to come", "to go"])
async def test_nothing_is_appended_beside_a_swap_that_the_record_is_about_to_get_or_to_lose(where: str) -> None:
    story = await Story.of()
    owner, (target, behind, *_) = story.owner, await names_of(story.world)
    draft = await write_draft(story.world, [target, behind])
    machine, state = owner.driver.machine, owner.janitor.queue.states[KEY]
    swap, record = Swap(name=target._replace(cleaning=1), draft="draft", draft_index="index"), machine.record
    if where == "to come":
        machine._swap = swap
    else:
        machine._record = replace(record, swap=swap)
    assert await owner.janitor._former_owners.settle(state) is Unsettled.MERGE
    assert base_name(draft) in await drafts(story.world)
    machine._swap, machine._record = None, record
    assert await owner.janitor._former_owners.settle(state) is None
    assert owner.janitor._former_owners.merges_ended == 1
    assert await story.is_right()


@pytest.mark.parametrize("content", ["complete", "lost"])
async def test_the_sources_of_a_job_stay_as_they_are_while_it_holds_the_partition(content: str) -> None:
    """Wait for the end of the hold: a merge would end the round of hours.  The swap is refused until then."""
    story = await Story.of()
    owner, job = story.owner, story.job
    names = await names_of(story.world)
    await story.drafted()
    draft = await write_draft(story.world, names[3:5])
    read = owner.steps.read
    if content == "lost":
        lose(owner, CorruptData("no sound replica"), ".join-")
    state = owner.janitor.queue.states[KEY]
    await owner.janitor._sweep(state, owner.clock.now_ms())
    assert (owner.janitor.files_merged, owner.janitor._former_owners.merges_ended) == (0, 0)
    code, text = await refused(job.swap(owner))
    assert code is ErrorCode.OPERATION_NOT_ATTEMPTED
    assert ("delete the draft" if content == "lost" else "not settled") in text
    assert (owner.janitor.files_merged, owner.janitor._former_owners.merges_ended) == (0, 0)
    await story.world.reading.delete(draft)  # by its writer, which cannot prove its ownership
    owner.steps.read = read  # type: ignore[method-assign]
    assert await job.swap(owner) == SwapResult(len(job.groups), 0)
    assert await story.is_right()


async def test_a_merge_is_carried_out_before_a_round_of_the_same_job_begins_again() -> None:
    story = await Story.of()
    await story.drafted()
    await write_draft(story.world, (await names_of(story.world))[3:5])
    await CleaningJob(story.world).begin(story.owner)
    assert story.owner.janitor._former_owners.merges_ended == 1
    assert await story.is_right()


async def test_a_job_that_goes_on_at_another_owner_waits_for_no_merge_of_the_owner_before() -> None:
    """The hold is new there: the merge is carried out, and groups without its files are swapped."""
    story = await Story.of()
    job = story.job
    await story.drafted()
    names = await names_of(story.world)
    await story.owner.broker.move(KEY)
    second = await compacted(story.world, "b", NEVER_DUE)
    await second.janitor._notice(second.broker.context.now_ms())
    group = job.groups[-1]
    behind = [name for name in names if name.base < group.name.base][-2:]
    await write_draft(story.world, behind, "a")
    assert (await job.swap(second, job.groups[:1])).swapped == 1
    assert second.janitor._former_owners.merges_ended == 1
    assert await story.is_right()
