"""Small neighbours that are merged into one file, and that a crash at any step changes no record."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.cleanup.segment_merge import Merge, Pass, RepairIndex, merged, plan_merges
from bmq.broker.cleanup.upkeep_queue import Job
from bmq.core.model import SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.storage import layout
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable, write_once
from bmq.storage.index import SegmentIndex
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import ListedSegment
from bmq.storage.segment import decode_idx
from tests.harness.loop import run
from tests.unit.broker.cleanup.upkeep import (
    CONFIG,
    HOUR_MS,
    KEY,
    PATH,
    SMALL,
    Owner,
    S,
    StepFileSystem,
    World,
    life,
    small_segments,
)
from tests.unit.storage.layouts import Layouts, spans

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

BRISK = replace(CONFIG, grace_ms=10_000)
"""A successor tidies up in seconds: each of them costs what the timers of two brokers cost."""


async def test_small_neighbours_become_one_file_with_one_index() -> None:
    world = World()
    owner = await small_segments(world)
    await owner.rounds()
    names = await world.names()
    assert await world.logs() == [0, 11, 12, 13]  # the last three are the record's
    assert await world.records(0, 14) == world.sent
    head = S(0, 1, 0)
    checkpoint = decode_idx(await world.reading.read(PATH.idx(head), 0, 1 << 20))
    assert checkpoint.segment == head
    assert checkpoint.end_offset == 11
    assert checkpoint.position == (await world.reading.status(PATH.log(head))).length
    assert [name for name in names if name.startswith(".")] == []
    assert len([name for name in names if name.endswith(".idx")]) == 3
    assert owner.janitor.files_merged == 10
    second = await world.owner("b")
    assert (second.log_start, second.watermark) == (0, 14)


async def test_merging_continues_where_it_ended() -> None:
    world = World()
    owner = await small_segments(world, 5)
    await owner.rounds()
    assert await world.logs() == [0, 2, 3, 4]
    owner.configure(segment_bytes=200)
    for _ in range(20):
        await owner.send(1)
    owner.configure(segment_bytes=100_000)
    await owner.rounds()
    assert await world.logs() == [0, 22, 23, 24]
    assert await world.records(0, 25) == world.sent


async def test_a_few_new_segments_cost_no_listing() -> None:
    world = World()
    owner = await small_segments(world, 5)
    await owner.rounds()
    owner.configure(segment_bytes=200)
    await owner.send(5)
    assert await owner.round() == 0
    await owner.send(5)
    assert await owner.round() == 1


async def test_files_with_leftovers_inside_are_not_merged() -> None:
    """A file longer than its index: what lies behind was never acknowledged, and must not come into the middle."""

    world = World()
    owner = await small_segments(world)
    appender = await world.reading.append(PATH.log(S(5, 1, 5)))
    appender.write(build_batch([Record(value=b"never acknowledged")], base_offset=6))
    await appender.close()
    await owner.rounds()
    assert await world.logs() == [0, 5, 6, 11, 12, 13]
    assert await world.records(0, 14) == world.sent


@pytest.mark.parametrize("error", [CorruptData, StorageUnavailable])
async def test_a_segment_whose_index_storage_has_lost_ends_a_run_and_others_are_merged(
    error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    owner = await small_segments(world)
    read = owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == PATH.idx(S(5, 1, 5)):
            raise error(f"{path}: no replica")
        return await read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    await owner.rounds()
    assert await world.logs() == [0, 5, 6, 11, 12, 13]
    assert owner.janitor.failures == 1, "it is reported, and not tried again"
    assert await world.records(0, 14) == world.sent


async def an_hour_later(owner: Owner) -> None:
    """Run rounds until one finds nothing to do, an hour later."""
    await asyncio.sleep(HOUR_MS / 1000 + 1)
    await owner.rounds()


@pytest.mark.parametrize("cure", ["blocks", "repair"])
async def test_files_around_an_index_that_was_away_are_merged_an_hour_later(
    cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin at the file that its neighbours were merged into, in a log whose record changes no more."""
    world = World()
    owner = await small_segments(world)
    idx, read = PATH.idx(S(5, 1, 5)), owner.steps.read
    sound = await world.reading.read(idx, 0, 1 << 20)

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == idx:
            raise StorageUnavailable(f"{path}: no datanode has the block")
        return await read(path, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", lossy)
        await owner.rounds()
        await an_hour_later(owner)
        assert owner.janitor.failures == 2, "it is tried once an hour"
    if cure == "repair":
        await owner.fs.delete(idx)
        await an_hour_later(owner)
        await write_once(owner.fs, idx, sound)
    assert await world.logs() == [0, 5, 6, 11, 12, 13]
    await an_hour_later(owner)
    assert len(await world.logs()) < 6
    assert await world.records(0, 14) == world.sent
    assert Job.MERGE not in owner.janitor.queue.states[KEY].due, "all indexes were read"


async def test_a_swap_before_the_hour_is_over_has_merging_begin_at_the_first_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Put no live records into a hidden file: the merge would begin at a source of the cleaned segment."""
    world = World()
    owner = await small_segments(world)
    read = owner.steps.read

    async def lossy(path: str, position: int, length: int) -> bytes:
        if path == PATH.idx(S(5, 1, 5)):
            raise StorageUnavailable(f"{path}: no datanode has the block")
        return await read(path, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", lossy)
        await owner.rounds()
    begun, merge = list[SegmentName | None](), owner.janitor._merger.merge

    async def noted(state: RetentionState, merge_from: SegmentName | None) -> Pass:
        begun.append(merge_from)
        return await merge(state, merge_from)

    monkeypatch.setattr(owner.janitor._merger, "merge", noted)
    care = owner.janitor.queue.states[KEY]
    assert care.unread_from == S(0, 1, 0)
    with care.swapping():
        pass
    owner.janitor.queue.schedule(care, Job.MERGE, 0)
    await owner.rounds()
    await an_hour_later(owner)
    assert begun[0] is None
    assert S(0, 1, 0) not in begun


async def test_in_an_outage_of_reads_merging_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    owner = await small_segments(world)

    async def away(path: str, position: int, length: int) -> bytes:
        raise StorageUnavailable(f"{path}: no datanode")

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", away)
        await owner.round()
    assert len(await world.logs()) == 14
    await owner.rounds(CONFIG.retry_ms / 1000)
    assert await world.logs() == [0, 11, 12, 13]


async def test_epochs_with_a_spare_left_are_not_merged_until_it_is_swept() -> None:
    """A spare may be registered, and renamed late to a base inside the merged file, which would then end there."""

    world = World()
    first = await small_segments(world)
    spare = PATH.spare(1, 99, "a")
    await world.reading.create(spare)
    first.die()
    second = await world.owner("b", replace(SMALL, segment_bytes=2_000))
    await second.rounds()
    assert len(await world.logs()) == 14
    for _ in range(5):
        await second.rounds(600)
    assert layout.base_name(spare) not in await world.names()
    assert (await world.logs())[:2] == [0, 11]
    assert await world.records(0, 14) == world.sent


async def test_an_owners_own_spare_that_it_could_not_delete_is_swept() -> None:
    """Storage refuses the deletion of a spare that is not needed: merging of the epoch goes on after the sweep."""
    world = World()
    owner = await small_segments(world)
    files = owner.broker.context.fs
    delete, refused = files.delete, list[str]()

    async def refuse_spares(path: str, *, recursive: bool = False) -> bool:
        if layout.base_name(path).startswith(".spare-"):
            refused.append(path)
            raise StorageUnavailable("safe mode")
        return await delete(path, recursive=recursive)

    files.delete = refuse_spares  # type: ignore[method-assign]
    appender = await owner.driver.segments.create(ev.CreateSpare(owner.driver.machine.epoch, 3, 1 << 20, 512))
    await owner.driver.segments.drop(appender)
    files.delete = delete  # type: ignore[method-assign]
    assert len(refused) == 1
    owner.configure(segment_bytes=2_000)
    await owner.rounds()
    assert len(await world.logs()) == 14
    for _ in range(5):
        await owner.rounds(600)
    assert await world.logs() == [0, 11, 12, 13]
    assert await world.records(0, 14) == world.sent


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("knows", [False, True])
def test_a_crash_at_any_step_of_a_merge_changes_no_record(dies_before: bool, knows: bool) -> None:
    """Neither for a new reader nor for one that had listed the files before; and the successor tidies up."""

    async def story(dies_at: int) -> list[str]:
        world = World()
        first = await small_segments(world)
        log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=256)), PATH)
        if knows:
            for offset in range(14):
                await log.read(offset, 1, 14)
        first.steps.dies_at, first.steps.dies_before = dies_at, dies_before
        await life(first.round())
        steps = list(first.steps.steps)
        assert await world.records(0, 14) == world.sent
        for offset in range(14):
            assert (await log.read(offset, 1, 14))[21:] == world.sent[offset]
        first.die()
        second = await world.owner("b", replace(SMALL, segment_bytes=2_000), BRISK)
        assert (second.log_start, second.watermark) == (0, 14)
        await second.rounds()
        for _ in range(4):
            await second.rounds(BRISK.grace_ms / 1000)
        assert await world.records(0, 14) == world.sent
        assert (await world.logs())[:2] == [0, 11]
        names = await world.names()
        assert [name for name in names if name.startswith(".")] == []
        logs = {name[:-4] for name in names if name.endswith(".log")}
        assert {name[:-4] for name in names if name.endswith(".idx")} <= logs
        checkpoint = decode_idx(await world.reading.read(PATH.idx(S(0, 1, 0)), 0, 1 << 20))
        assert checkpoint.end_offset == 11
        return steps

    steps = run(story(0))
    assert steps[:4] == ["delete", "create", "concat", "replace"]
    for dies_at in range(1, len(steps) + 1):
        run(story(dies_at))


async def test_a_merge_names_the_length_of_its_target() -> None:
    """The storage can tell a target that a late call has changed since its index was read."""
    world = World()
    owner = await small_segments(world)
    lengths, concat = dict[str, tuple[int, int | None]](), owner.steps.concat

    async def noted(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        lengths[target] = (await world.reading.status(target)).length, target_bytes
        await concat(target, sources, target_bytes)

    owner.steps.concat = noted  # type: ignore[method-assign]
    await owner.round()
    assert lengths
    assert all(length == named for length, named in lengths.values())


async def test_a_refused_concat_leaves_the_log_and_no_draft() -> None:
    class Refusing(StepFileSystem):
        async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
            raise StorageError("block sizes differ")

    world = World()
    owner = await small_segments(world)
    fs = Refusing(world.storage, "a")
    janitor = Janitor(replace(owner.broker.context, fs=fs), owner.held, CONFIG, random.Random(1))
    before = await world.names()
    await janitor.run_once()
    assert janitor.failures == 1
    assert await world.names() == before
    assert await world.records(0, 14) == world.sent


def one(base: int, end: int, length: int = 10, epoch: int = 1, *, has_idx: bool = True) -> ListedSegment:
    return ListedSegment(S(base, epoch, base), end, length, 0, has_idx)


def plan(*listed: ListedSegment, bytes_max: int = 100, sources_max: int = 9, log_start: int = 0) -> list[list[int]]:
    steps, _ = plan_merges(listed, bytes_max=bytes_max, sources_max=sources_max, log_start=log_start)
    bases = []
    for step in steps:
        if isinstance(step, Merge):
            bases.append([member.name.base for member in step.members])
        else:
            bases.append([-step.head.name.base, *(name.base for name in step.strays)])
    return bases


def test_a_plan_merges_small_closed_neighbours_of_one_epoch_within_its_bounds() -> None:
    row = [one(n, n + 1) for n in range(6)]
    assert plan(*row) == [[0, 1, 2, 3, 4, 5]]
    assert plan(*row, bytes_max=30) == [[0, 1, 2], [3, 4, 5]]
    assert plan(*row, bytes_max=19) == []  # ten is more than half
    assert plan(*row, sources_max=2) == [[0, 1, 2], [3, 4, 5]]
    assert plan(*row, log_start=2) == [[2, 3, 4, 5]]
    assert plan(*row[:2], one(2, 3, length=60), *row[3:]) == [[0, 1], [3, 4, 5]]
    assert plan(*row[:3], *(entry._replace(name=entry.name._replace(epoch=2)) for entry in row[3:])) == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert plan(*row[:3], one(3, 4, has_idx=False), *row[4:]) == [[0, 1, 2], [4, 5]]
    assert plan(*row[:3], one(3, 4, length=0), *row[4:]) == [[0, 1, 2], [4, 5]]
    smaller = [entry._replace(block_bytes=16 if entry.name.base < 3 else 128) for entry in row]
    assert plan(*smaller) == [[0, 1, 2], [3, 4, 5]], "nothing is appended to a file of smaller blocks"
    assert plan(*(entry._replace(block_bytes=144 - entry.block_bytes) for entry in smaller)) == [[0, 1, 2, 3, 4, 5]]
    superseded = ListedSegment(S(3, 1, 0), 3, 10, 0, False)
    assert plan(*row[:3], superseded, *row[3:]) == [[0, 1, 2], [3, 4, 5]]


def test_a_cleaned_file_is_never_merged() -> None:
    """The merged file would have the order of its first part: a source that is left would be live again, and end it."""
    row = [one(n, n + 1) for n in range(6)]
    cleaned = one(2, 4)._replace(name=S(2, 1, 3, 1))
    assert plan(*row[:2], cleaned, *row[4:]) == [[0, 1], [4, 5]]
    assert plan(*row[:2], cleaned, cleaned._replace(name=S(4, 1, 4, 1), end=5), row[5]) == [[0, 1]]


@pytest.mark.parametrize("seed", range(10))
def test_no_planned_merge_makes_a_source_live_again(seed: int) -> None:
    """Random folders with cleaned files, any sources of which are left: after a merge the log has the same parts."""
    rng, merges = random.Random(seed), 0
    while merges < 500:
        layouts = Layouts(rng)
        hidden = list(layouts.superseded)
        for _ in range(rng.randrange(3)):
            if len(layouts.live) > 1:
                hidden += [name for name in layouts.clean()[0] if rng.random() < 0.5]
        names = sorted([*hidden, *layouts.live], key=lambda name: (name.base, name.order))
        ended = dict(spans(names))
        listed = [
            ListedSegment(name, ended.get(name, name.base), 10 if name in ended else 7, 0, name in ended, 0)
            for name in names
        ]
        steps, _ = plan_merges(listed[:-1], bytes_max=100, sources_max=9, log_start=-1)
        for step in steps:
            assert isinstance(step, Merge)
            parts = [member.name for member in step.members]
            left = [name for name in names if name not in parts[1:]]
            assert [name for name, _ in spans(left)] == [name for name in layouts.live if name not in parts[1:]]
            merges += 1


def test_a_plan_repairs_the_index_of_a_head_whose_sources_have_gone() -> None:
    strays = [ListedSegment(S(n, 1, n), n, -1, -1, True) for n in (2, 3)]
    head = one(1, 4, length=30)
    listed = [one(0, 1), head, *strays, one(4, 5), one(5, 6)]
    steps, resume = plan_merges(listed, bytes_max=100, sources_max=9, log_start=0)
    assert steps == [RepairIndex(head, (S(2, 1, 2), S(3, 1, 3))), Merge((listed[-2], listed[-1]))]
    assert resume == S(4, 1, 4)
    assert plan_merges(listed[:4], bytes_max=100, sources_max=9, log_start=0) == (steps[:1], head.name)
    assert plan_merges([], bytes_max=100, sources_max=9, log_start=0) == ([], None)


def test_an_index_without_a_log_at_the_base_of_a_live_segment_is_no_part_of_the_segment_before() -> None:
    """A former owner wrote it late: a cleaned segment has replaced its segment.  The segments before are merged."""
    stray = ListedSegment(S(2, 1, 2), 2, -1, -1, True)
    cleaned = one(2, 4)._replace(name=S(2, 1, 3, 1))
    assert plan(one(0, 1), one(1, 2), stray, cleaned, one(4, 5), one(5, 6)) == [[0, 1], [4, 5]]
    assert plan(one(0, 1), one(1, 2), stray, one(2, 3)._replace(name=S(2, 2, 0)), one(3, 4)) == [[0, 1]]


def test_a_merged_index_is_that_of_the_merged_bytes() -> None:
    """Index entries, timestamps and epochs are as if the batches had been written to one file."""
    stamps = [5, 3, 9, 1, 9, 2, 11, 4]
    whole = SegmentIndex(1)
    parts: list[Checkpoint] = []
    for base in range(0, 8, 2):
        index = SegmentIndex(1)
        for offset in (base, base + 1):
            whole.add(offset, offset * 10, stamps[offset])
            index.add(offset, (offset - base) * 10, stamps[offset])
        parts.append(
            Checkpoint(
                key=KEY,
                segment=S(base, 1, base),
                position=20,
                end_offset=base + 2,
                log_start=base,
                is_closed=True,
                max_timestamp=index.max_timestamp,
                max_timestamp_offset=index.max_timestamp_offset,
                index=array("q", index.entries),
                epochs=((1 + base // 4, base),),
            )
        )
    result = merged(parts)
    assert result.index == whole.entries
    assert (result.max_timestamp, result.max_timestamp_offset) == (11, 6)
    assert (result.segment, result.position, result.end_offset, result.log_start) == (S(0, 1, 0), 80, 8, 6)
    assert result.epochs == ((1, 0), (2, 4))
    assert result.is_full
    assert result.is_closed
