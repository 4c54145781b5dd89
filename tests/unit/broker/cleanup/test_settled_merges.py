"""Merges of former owners that the present owner carries out, whole or from their middle on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from bmq.broker.cleanup.former_owners import Unsettled
from bmq.broker.cleanup.segment_merge import merged
from bmq.storage.filesystem import FileStatus, LeaseLost
from bmq.storage.layout import base_name
from bmq.storage.segment import encode_idx
from tests.unit.broker.cleanup.compacted_logs import BRISK, COMPACT, Found, compacted, contents, update
from tests.unit.broker.cleanup.late_merges import (
    HELD_MS,
    LAGGING,
    PATIENT,
    RETRY_S,
    begun_merge,
    drafts,
    indexes,
    names_of,
    write_draft,
)
from tests.unit.broker.cleanup.upkeep import KEY, PATH, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


async def test_the_index_of_a_merge_is_closed_though_its_writer_could_not_close_the_draft() -> None:
    """An index that stays open under its writer's name is replaced by no later merge."""
    world = World()
    first = await world.owner("a", COMPACT, PATIENT)
    last = await update(first, 14)
    names = await names_of(world)
    first.die()
    left = await world.reading.create(f"{PATH.folder}/.join-{names[0]}-a")
    left.write(encode_idx(merged(await indexes(world, names[:4]))))
    await left.flush()
    second = await world.owner("b", COMPACT, BRISK)
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor._former_owners.merges_ended == 1
    assert await drafts(world) == []
    index = await world.reading.append(PATH.idx(names[0]))
    await index.close()
    assert (await contents(world, 0, 14))[0] == last


def join(world: World, target: str, sources: Sequence[str]) -> None:
    """Change the target as a local root's concat does, and leave the sources."""
    file = world.storage.namespace.file(target)
    for source in sources:
        file.data += world.storage.namespace.file(source).data
    world.storage._settle(file, len(file.data))


async def half_done_merge(world: World) -> tuple[Owner, Found, asyncio.Event, asyncio.Task[None]]:
    """Return a former owner whose concat stands still behind the change of the target, as on a local root."""
    first = await world.owner("a", COMPACT, PATIENT)
    await update(first, 4)
    await asyncio.sleep(2 * HELD_MS / 1000)
    last = await update(first, 10)
    gate = asyncio.Event()

    async def local(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        join(world, target, sources)
        await gate.wait()
        for source in sources:
            await world.reading.delete(source)

    first.steps.concat = local  # type: ignore[method-assign]
    first.configure(segment_bytes=1_400)
    zombie = asyncio.create_task(first.rounds())
    await asyncio.sleep(1)
    return first, last, gate, zombie


@pytest.mark.parametrize("does", ["cleans", "merges"])
@pytest.mark.parametrize("gone", [0, 3])
async def test_a_merge_that_is_half_done_is_ended(does: str, gone: int) -> None:
    """Delete the sources, whose bytes the target has.  Else the late call deletes them, long after another round."""
    world = World()
    first, last, gate, zombie = await half_done_merge(world)
    for name in (await names_of(world))[1 : 1 + gone]:
        await world.reading.delete(PATH.log(name))
    config = replace(LAGGING, cleaning=replace(LAGGING.cleaning, is_compacted=does == "cleans"))
    second = await compacted(world, "b", replace(config, file_delete_delay_ms=1_000))
    if does == "merges":
        second.configure(segment_bytes=2_000)
    for _ in range(4):
        await second.round(RETRY_S)
    assert second.janitor._former_owners.merges_ended == 1
    assert await drafts(world) == []
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    last |= await update(second, 4)
    for _ in range(12):
        await second.round(RETRY_S)
    assert (second.janitor.cleaning.cleaner.rounds > 0, second.janitor.files_merged > 0) == (
        does == "cleans",
        does == "merges",
    )
    assert (await contents(world, 0, 18))[0] == last
    first.die()


@pytest.mark.parametrize("listed", ["target", "target and source"])
async def test_a_listing_beside_a_call_that_changes_the_target_settles_nothing(listed: str) -> None:
    """The listing shows the target before its change, and not the source that was deleted behind it."""
    world = World()
    first, last, gate, zombie, _ = await begun_merge(world)
    target, *sources = (await names_of(world))[:8]
    seen = PATH.log(target if listed == "target" else sources[0])
    deleted = sources[:1] if listed == "target" else sources[:2]
    second = await compacted(world, "b")
    listing, is_changed = second.steps.list, False

    async def torn(path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        nonlocal is_changed
        async for status in listing(path, after=after):
            if status.path not in map(PATH.log, deleted) or not is_changed:
                yield status
            if status.path == seen and not is_changed:
                is_changed = True
                join(world, PATH.log(target), [PATH.log(name) for name in sources])
                for name in deleted:
                    await world.reading.delete(PATH.log(name))

    second.steps.list = torn  # type: ignore[method-assign]
    await second.janitor._notice(second.broker.context.now_ms())
    state = second.janitor.queue.states[KEY]
    assert await second.janitor._former_owners.settle(state) is None
    assert is_changed
    assert second.janitor._former_owners.merges_ended == 1
    assert not {f"{name}.log" for name in sources} & set(await world.names())
    assert (await contents(world, 0, 14))[0] == last
    zombie.cancel()
    gate.set()
    first.die()


async def test_a_draft_that_fits_no_files_any_more_is_settled() -> None:
    """Wait for no writer that listed the files before the owner's merge: it cannot prove its ownership."""
    world = World()
    owner = await compacted(world)
    owner.wiring.may_clean = lambda: False
    last = await update(owner, 14)
    names = await names_of(world)
    draft = await write_draft(world, names[:3])
    await world.reading.concat(PATH.log(names[2]), [PATH.log(names[3])])
    await owner.janitor._notice(owner.broker.context.now_ms())
    state, settle = owner.janitor.queue.states[KEY], owner.janitor._former_owners.settle
    assert await settle(state) is None
    assert state.settled_merges == {draft}
    assert (await names_of(world))[:3] == names[:3]
    assert (await contents(world, 0, 14))[0] == last


async def test_a_merge_that_is_half_done_waits_while_another_call_holds_its_files() -> None:
    """The call that holds them may be about to put the target back, and to delete the sources."""
    world = World()
    first, last, gate, zombie = await half_done_merge(world)
    second = await compacted(world, "b", LAGGING)
    before = await names_of(world)

    async def held(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        raise LeaseLost(f"{target} has a writer")

    second.steps.delete_joined = held  # type: ignore[attr-defined]
    for _ in range(4):
        await second.round(RETRY_S)
    assert await names_of(world) == before
    assert (second.janitor.cleaning.cleaner.rounds, second.janitor._former_owners.merges_ended) == (0, 0)
    del second.steps.delete_joined  # type: ignore[attr-defined]
    for _ in range(4):
        await second.round(RETRY_S)
    assert second.janitor._former_owners.merges_ended == 1
    assert await drafts(world) == []
    gate.set()
    await asyncio.wait({zombie}, timeout=5)
    assert (await contents(world, 0, 14))[0] == last
    first.die()


async def test_a_merge_of_which_no_source_is_left_is_over() -> None:
    world = World()
    first, last, _, zombie = await half_done_merge(world)
    for name in (await names_of(world))[1:8]:
        await world.reading.delete(PATH.log(name))
    zombie.cancel()
    first.die()
    second = await compacted(world, "b")
    for _ in range(3):
        await second.round(RETRY_S)
    assert second.janitor._former_owners.merges_ended == 0
    assert second.janitor.cleaning.cleaner.rounds > 0
    assert (await contents(world, 0, 14))[0] == last


async def test_a_call_that_takes_the_sources_away_meanwhile_settles_nothing() -> None:
    """Look again: a local root's call may have deleted some sources, and be about to delete the others."""
    world = World()
    first, last, gate, zombie, _ = await begun_merge(world)
    second = await compacted(world, "b")
    concat, taken = second.steps.concat, list[str]()

    async def late(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        if not taken:
            taken.extend(sources)
            join(world, target, sources)
            await world.reading.delete(sources[0])
        await concat(target, sources, target_bytes)

    second.steps.concat = late  # type: ignore[method-assign]
    await second.janitor._notice(second.broker.context.now_ms())
    state, settle = second.janitor.queue.states[KEY], second.janitor._former_owners.settle
    assert await settle(state) is Unsettled.MERGE
    assert len(taken) > 1
    assert await settle(state) is None
    left = await world.names()
    assert not any(base_name(source) in left for source in taken)
    assert (await contents(world, 0, 14))[0] == last
    zombie.cancel()
    gate.set()
    first.die()
