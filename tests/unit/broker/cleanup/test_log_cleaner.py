"""Compaction of a partition's log: what stays, and what a crash at any step leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.cleanup import log_cleaner
from bmq.broker.cleanup.cleaning_status import Obstacle
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.partition.log_size import LogSize
from bmq.core.aio.steps import finish_steps
from bmq.core.model import SegmentName
from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.meta.ownership import Swap
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.cleaned_file import CleanedFileWriter
from bmq.storage.cleaning.plan import Reason
from bmq.storage.filesystem import CorruptData, FileStatus, NoSuchFile, StorageError, StorageUnavailable, write_once
from bmq.storage.layout import JOURNALS
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx
from tests.harness.loop import run
from tests.unit.broker.cleanup.compacted_logs import (
    BRISK,
    COMPACT,
    KEYS,
    allow,
    cleaned,
    compacted,
    contents,
    hidden,
    put,
    put_again,
    settled,
    update,
    work_held,
)
from tests.unit.broker.cleanup.upkeep import CLOCK, HOUR_MS, PATH, SECOND_PATH, World, life

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


async def test_a_round_leaves_the_last_record_of_each_key_and_the_sources_go(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    await owner.rounds()
    assert await hidden(world) > 0  # a reader that knows the sources goes on with them
    await owner.rounds(10)
    found, count = await contents(world, 0, 20)
    assert found == last
    assert await hidden(world) == 0
    lives = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    cleaned = decode_idx(await world.reading.read(PATH.idx(lives[0]), 0, 1 << 20))
    assert (lives[0].cleaning, cleaned.end_offset) == (1, lives[1].base)
    assert cleaned.cleaned is not None
    assert cleaned.cleaned.clean_to == cleaned.end_offset
    assert count == KEYS + 20 - lives[1].base
    assert [name for name in await world.names() if name.startswith(".clean")] == []
    assert owner.driver.machine.record.swap is None
    assert (owner.janitor.cleaning.cleaner.rounds, owner.janitor.cleaning.swapper.swaps_done) == (1, 1)
    totals = finish_steps(owner.janitor.cleaning.totals())
    assert (totals.uncleanable, totals.not_cleaned["open_segment"], sum(totals.not_cleaned.values())) == (0, 1, 1)
    (line,) = [line.message for line in caplog.records if "was cleaned" in line.message]
    assert f"up to offset {lives[1].base}:" in line
    second = await compacted(world, "b")
    assert (second.log_start, second.watermark) == (0, 20)
    assert (await contents(world, 0, 20))[0] == last


async def test_the_size_of_a_log_falls_with_a_cleaning() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    size = LogSize(0)
    before = await size.count(world.reading, owner.driver)
    await owner.rounds()
    lives = [one async for one in walk(world.reading, PATH) if one.is_live]
    after = await size.count(world.reading, owner.driver)
    assert after == sum(one.length for one in lives)
    assert after < before


async def test_a_cleaned_log_is_cleaned_again_with_what_came_since() -> None:
    world = World()
    owner = await compacted(world)
    for rounds in (1, 2, 3):
        last = await update(owner, 20)
        await owner.rounds()
        for _ in range(3):
            await owner.rounds(10)
        assert owner.janitor.cleaning.cleaner.rounds == rounds
    found, count = await contents(world, 0, 60)
    assert found == last
    assert count < 2 * KEYS


async def test_a_file_that_a_later_owner_superseded_holds_up_no_round() -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    await write_once(world.reading, PATH.log(SegmentName(5, 0, 0)), b"of an owner that was deposed")
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last
    assert await hidden(world) == 0


async def test_without_compiled_code_a_large_log_is_left_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs one listing up to the bound and reads no index: a large log has thousands of segments."""
    world = World()
    owner = await compacted(world)
    monkeypatch.setattr(log_cleaner, "LOG_BYTES_MAX", 1_000)
    await update(owner, 20)
    before = await world.names()
    reads: list[str] = []

    async def read(path: str, position: int, length: int) -> bytes:
        reads.append(path)
        return await world.reading.read(path, position, length)

    monkeypatch.setattr(owner.steps, "read", read)
    await owner.rounds()
    for _ in range(3):
        await owner.rounds(60)
    assert reads == []
    assert await world.names() == before
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.obstacle is Obstacle.LARGE


async def test_a_round_is_given_up_if_a_source_has_changed() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    gate = work_held(owner)
    await owner.round()
    (first, *_) = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    appender = await world.reading.append(PATH.log(first))
    appender.write(b"more")
    await appender.close()
    gate.set()
    await asyncio.sleep(1)
    assert owner.janitor.cleaning.cleaner.rounds == 0
    assert owner.driver.machine.record.swap is None
    assert await hidden(world) == 0
    for _ in range(3):
        await owner.rounds(30)
    assert owner.janitor.cleaning.cleaner.rounds == 1, "the log is looked at again although nothing was written since"


async def test_a_round_is_given_up_if_a_source_expires_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired source is no failure, which an operator would be told of."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    read = owner.steps.read

    async def gone(path: str, position: int, length: int) -> bytes:
        if path.endswith(".log"):
            raise NoSuchFile(path)
        return await read(path, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", gone)
        await owner.rounds()
    totals = finish_steps(owner.janitor.cleaning.totals())
    assert (owner.janitor.failures, totals.uncleanable, owner.janitor.cleaning.cleaner.rounds) == (0, 0, 0)
    await owner.round(BRISK.retry_ms / 1000 + 1)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_a_round_ends_before_an_open_transaction_and_an_abort_leaves_the_value_before_it() -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, KEYS)
    record = Record(key=b"k0", value=b"never committed".ljust(100))
    data = build_batch(
        [record], base_timestamp=CLOCK.now_ms(), producer_id=9, producer_epoch=0, base_sequence=0,
        attributes=TRANSACTIONAL,
    )  # fmt: skip
    opened = await owner.driver.append(memoryview(data))
    for number in range(16):
        await put(owner, b"k1", b"w%d" % number)
    last[b"k1"] = (opened + 16, b"w15")
    for _ in range(3):
        await owner.rounds(10)
    assert owner.driver.machine.last_stable_offset == opened
    lives = [one async for one in walk(world.reading, PATH) if one.is_live]
    assert [one.end for one in lives if one.name.cleaning] == [opened]
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is Reason.OPEN_TRANSACTION
    await owner.driver.end_transaction(TransactionMarker(9, 0, 0, Marker.ABORT, 1))
    for number in range(4):
        last[b"k2"] = (await put(owner, b"k2", b"x%d" % number), b"x%d" % number)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 2
    found, count = await contents(world, 0, owner.watermark)
    assert found == last, "the aborted record is gone, and removed nothing"
    assert count < 4 + 4 + KEYS


@pytest.mark.parametrize("damage", ["batch", "replicas", "index replicas", "blocks", "index blocks"])
async def test_a_log_is_cleaned_up_to_a_damaged_segment(
    damage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the segment changes nor what lies behind it; once it is repaired, it is cleaned too."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    at = names[9]
    path = PATH.idx(at) if damage.startswith("index") else PATH.log(at)
    sound = await world.reading.read(path, 0, 1 << 20)
    read, reads = owner.steps.read, list[str]()

    async def unsound(place: str, position: int, length: int) -> bytes:
        reads.append(place)
        if place == path and damage != "batch" and is_damaged:
            if damage.endswith("blocks"):
                raise StorageUnavailable(f"{place}: no datanode has the block")
            raise CorruptData(f"{place}: a checksum does not match")
        return await read(place, position, length)

    monkeypatch.setattr(owner.steps, "read", unsound)
    is_damaged = True
    if damage == "batch":
        await put_again(world, path, sound[:70] + bytes([sound[70] ^ 1]) + sound[71:])
    behind = [name for name in await world.names() if name >= str(at)]
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert owner.janitor.failures > 0
    lives = [one async for one in walk(world.reading, PATH) if one.is_live]
    assert [(one.name.cleaning, one.end) for one in lives[:1]] == [(1, at.base)]
    assert [name for name in await world.names() if name >= str(at)] == behind
    totals = finish_steps(owner.janitor.cleaning.totals())
    assert (totals.uncleanable, totals.not_cleaned["damaged"]) == (1, 1)
    assert [line.levelname for line in caplog.records if "stops the cleaning" in line.message] == ["WARNING"]
    reads.clear()
    last |= await update(owner, 4)
    for _ in range(3):
        await owner.rounds(10)
    if damage == "batch":
        assert [place for place in reads if place.endswith(".log")] == [], "the damage is known by the file's time"
    if damage.endswith("blocks"):  # rounds try again each hour, and the looks before them find no damage
        for _ in range(3):
            await asyncio.sleep(3_600)
            await owner.rounds(10)
    assert [line.levelname for line in caplog.records if "stops the cleaning" in line.message] == ["WARNING"]
    is_damaged = False
    await asyncio.sleep(1)
    await put_again(world, path, sound)
    last |= await update(owner, 4)
    for _ in range(5):
        await owner.rounds(10)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    found, count = await contents(world, 0, 28)
    assert (found, await hidden(world)) == (last, 0)
    assert count <= KEYS + 4


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("knows", [False, True])
def test_a_crash_at_any_step_of_a_round_loses_no_value(dies_before: bool, knows: bool) -> None:
    """Neither for a new reader nor for one that had listed the files before; the successor completes the swap."""

    async def story(dies_at: int) -> list[str]:
        world = World()
        first = await compacted(world)
        last = await update(first, 14)
        log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=256)), PATH)
        if knows:
            for offset in range(14):
                await log.read(offset, 1, 14)
        first.steps.dies_at, first.steps.dies_before = dies_at, dies_before
        await life(first.rounds())
        await life(first.rounds(10))
        steps = list(first.steps.steps)
        assert (await contents(world, 0, 14))[0] == last
        for offset, value in last.values():
            (batch,) = read_batches(memoryview(await log.read(offset, 1, 14)))
            assert value in bytes(batch.data)
        first.die()
        second = await compacted(world, "b")
        assert (second.log_start, second.watermark) == (0, 14)
        for _ in range(8):
            await second.rounds(BRISK.grace_ms / 1000)
        assert second.driver.machine.record.swap is None
        found, count = await contents(world, 0, 14)
        assert found == last
        assert count < 14
        names = await world.names()
        assert [name for name in names if name.startswith(".")] == []
        assert await hidden(world) == 0
        logs = {name[:-4] for name in names if name.endswith(".log")}
        assert {name[:-4] for name in names if name.endswith(".idx")} <= logs
        return steps

    steps = run(story(0))
    for dies_at in range(1, len(steps) + 1):
        run(story(dies_at))


async def test_a_draft_of_a_process_that_stood_still_gets_no_name() -> None:
    """Play a process that wakes after its successor has completed the swap, cleaned again and deleted the sources."""
    world = World()
    first = await compacted(world)
    await update(first, 14)
    (name,) = [one.name async for one in walk(world.reading, PATH) if one.name.base == 0]
    swap = first.janitor.cleaning.swapper.drafts(first.driver, name._replace(cleaning=1))
    stale = await world.reading.read(PATH.log(name), 0, 1 << 20)
    for path in (swap.draft, swap.draft_index):
        await write_once(first.fs, path, stale)
    await first.driver.store_swap(swap)
    second = await compacted(world, "b")
    last = await update(second, 14)
    for _ in range(5):
        await second.rounds(10)
    with pytest.raises(NoSuchFile):
        await world.reading.rename(swap.draft, PATH.log(swap.name))
    assert (await contents(world, 0, 28))[0] == last


async def test_a_draft_takes_a_place_under_the_bound_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is at its bound with the open segment of its partition: that is closed before the draft is opened."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    places = owner.broker.context.open_files
    assert places.held == 1
    places.share(1, 3_600.0)
    create, drafts = CleanedFileWriter.create, list[tuple[int, int]]()

    async def counted(*args: Any, **options: Any) -> CleanedFileWriter:
        drafts.append((places.opening, places.held + places.closing))
        return await create(*args, **options)

    monkeypatch.setattr(CleanedFileWriter, "create", counted)
    await owner.rounds()
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds > 0
    assert drafts == [(1, 0)] * len(drafts)
    assert len(drafts) > 0
    last |= await update(owner, 1)
    assert (places.held, places.waiting) == (1, 0), "the draft's place is free again"
    assert (await contents(world, 0, 21))[0] == last


async def test_retention_by_size_beside_a_swap_judges_no_old_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources' bytes with the cleaned segment's offsets would look like a log that is far too large."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = work_held(owner)
    await owner.rounds()
    retention = owner.janitor._retention
    count = retention._count

    async def count_before_the_swap(state: RetentionState) -> int:
        total = await count(state)
        gate.set()
        await asyncio.sleep(1)
        return total

    monkeypatch.setattr(retention, "_count", count_before_the_swap)
    owner.configure(retention_bytes=2_000)
    await owner.round(60)
    assert owner.janitor.cleaning.cleaner.rounds == 1, "the swap came between the count and the listing"
    monkeypatch.undo()
    for _ in range(3):
        await owner.rounds(60)
    size = sum([one.length async for one in walk(world.reading, PATH) if one.is_live])
    assert size < 2_000
    assert owner.log_start == 0, "the cleaned log is smaller than retention.bytes"
    assert (await contents(world, 0, 20))[0] == last


async def test_a_log_with_a_block_that_is_lost_for_good_is_read_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the failure for the file's own: other files can be read."""
    world = World()
    owner = await compacted(world)
    await update(owner, 60)
    await asyncio.sleep(1_000)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    path, read, tried = PATH.log(names[-4]), owner.steps.read, 0

    async def lossy(place: str, position: int, length: int) -> bytes:
        nonlocal tried
        if place == path:
            tried += 1
            raise StorageUnavailable(f"{place}: no datanode has the block")
        return await read(place, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    for _ in range(20):
        await owner.round(30)
    assert owner.janitor.cleaning.cleaner.rounds == 1, "up to the lost block"
    before = tried
    for _ in range(600):
        await owner.round(30)
    assert 3 <= tried - before <= 6


@pytest.mark.parametrize("error", [StorageUnavailable, CorruptData])
async def test_a_busy_log_with_a_lost_block_is_read_once_an_hour(
    error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remember the lost file: a change of the record does not bring it back, an hour may."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    path, read, tried, is_lost = PATH.log(names[9]), owner.steps.read, 0, True

    async def lossy(place: str, position: int, length: int) -> bytes:
        nonlocal tried
        tried += place == path
        if place == path and is_lost:
            raise error(f"{place}: no datanode has the block")
        return await read(place, position, length)

    monkeypatch.setattr(owner.steps, "read", lossy)
    for _ in range(5):
        await owner.rounds(30)
    before = tried
    assert owner.janitor.cleaning.cleaner.rounds == 1, "up to the lost block"
    for _ in range(40):
        last |= await update(owner, 4)
        await owner.rounds(30)
    assert tried == before > 0
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 1
    is_lost = False
    for _ in range(3):
        await asyncio.sleep(1_800)
        await owner.rounds()
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    assert (await contents(world, 0, owner.watermark))[0] == last


@pytest.mark.parametrize("error", [StorageUnavailable("no live replica"), CorruptData("no sound replica")], ids=repr)
async def test_a_busy_log_reads_lost_indexes_once_an_hour(error: StorageError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember lost indexes, and the file that showed that it is no outage: a failing read takes ten seconds."""
    world = World()
    owner = await compacted(world, config=replace(COMPACT, file_delete_delay_ms=1 << 40))
    owner.wiring.may_clean = lambda: False
    last = await update(owner, 60)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    lost = {path for name in names[5:25] for path in (PATH.idx(name), PATH.log(name))}
    read, list_names = owner.steps.read, owner.steps.list
    reads, lists = Counter[str](), Counter[str]()

    async def lossy(place: str, position: int, length: int) -> bytes:
        if place in lost:
            reads[place[-3:]] += 1
            await asyncio.sleep(0.5)
            raise error
        return await read(place, position, length)

    def listed(path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        lists[path] += 1
        return list_names(path, after=after)

    monkeypatch.setattr(owner.steps, "read", lossy)
    monkeypatch.setattr(owner.steps, "list", listed)
    allow(owner)
    for _ in range(5):
        await owner.round(30)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 1
    assert owner.janitor.cleaning.cleaner.rounds == 1, "up to the lost indexes"
    before, failures = reads.copy(), owner.janitor.failures
    for _ in range(120):
        last |= await update(owner, 1)
        await owner.round(60)
    assert 20 <= (reads - before)["idx"] <= 60
    assert owner.janitor.failures - failures <= 60, "a line tells it once an hour, too"
    assert (reads - before)["log"] <= 8
    assert lists[JOURNALS] <= 4
    lost.clear()
    for _ in range(3):
        await asyncio.sleep(1_800)
        await owner.rounds()
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    assert (await contents(world, 0, owner.watermark))[0] == last


async def test_after_an_outage_of_reads_a_log_is_cleaned_within_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell an outage from a lost block by another file."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    read, is_away = owner.steps.read, False

    async def away(place: str, position: int, length: int) -> bytes:
        nonlocal is_away
        is_away |= place == PATH.log(names[9])
        if is_away:
            raise StorageUnavailable("no datanode")
        return await read(place, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", away)
        for _ in range(200):
            await owner.round(30)
    assert is_away
    assert finish_steps(owner.janitor.cleaning.totals()).not_cleaned["damaged"] == 0
    for _ in range(3):
        await owner.round(30)
    assert owner.janitor.cleaning.cleaner.rounds == 1


@pytest.mark.parametrize("kind", ["log", "idx"])
async def test_a_quiet_log_is_cleaned_once_its_damage_is_gone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A datanode with a sound replica comes back: neither the record nor a file changes."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    await asyncio.sleep(1_000)
    assert owner.driver.machine.is_all_closed
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    path = PATH.log(names[9]) if kind == "log" else PATH.idx(names[9])
    read = owner.steps.read

    async def unsound(place: str, position: int, length: int) -> bytes:
        if place == path:
            raise CorruptData(f"{place}: a checksum does not match")
        return await read(place, position, length)

    with monkeypatch.context() as patch:
        patch.setattr(owner.steps, "read", unsound)
        for _ in range(10):
            await owner.rounds(30)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 1
    for _ in range(10):
        await owner.rounds(600)
    assert finish_steps(owner.janitor.cleaning.totals()).uncleanable == 0
    found, count = await contents(world, 0, 20)
    assert (found, count) == (last, KEYS + 1)


async def test_a_swap_of_a_round_is_not_ended_by_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that completes a former owner's swap may be tried again late, beside a round that swaps."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate, rename, is_renaming = asyncio.Event(), owner.steps.rename, asyncio.Event()

    async def slow(source: str, target: str) -> None:
        if not is_renaming.is_set():
            is_renaming.set()
            await gate.wait()
        await rename(source, target)

    monkeypatch.setattr(owner.steps, "rename", slow)
    await owner.rounds()
    assert is_renaming.is_set()
    (care,) = owner.janitor.queue.states.values()
    await owner.janitor.cleaning.complete_swap(care, 0)
    assert owner.driver.machine.record.swap is not None, "a successor would not know of the rename"
    gate.set()
    await owner.rounds(60)
    assert owner.janitor.cleaning.swapper.swaps_done == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_no_file_is_swapped_behind_a_file_whose_draft_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later file may lack a tombstone that is past its horizon, and whose older record is in an earlier file."""
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, segment_bytes=1_000, delete_retention_ms=1))
    owner = await compacted(world, config=config)
    last = await update(owner, 20)
    store = owner.driver.store_swap

    async def lose_the_draft(swap: Swap | None) -> None:
        await store(swap)
        if swap is not None:
            await world.reading.delete(swap.draft)

    with monkeypatch.context() as patch:
        patch.setattr(owner.driver, "store_swap", lose_the_draft)
        await owner.rounds()
        assert owner.driver.machine.record.swap is None
    assert (
        owner.janitor.cleaning.cleaner.rounds,
        owner.janitor.cleaning.swapper.swaps_done,
        owner.janitor.cleaning.cleaner.bytes_before,
    ) == (
        0,
        0,
        0,
    )
    await owner.rounds(BRISK.retry_ms / 1000 + 1)
    assert owner.janitor.cleaning.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_damage_in_a_log_ends_its_round_also_beside_a_swap_of_another_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is cleaned up to the damage at once: no source of its own has been swapped before."""
    world = World()
    owner = await settled(world)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    path, gate = PATH.log(names[9]), asyncio.Event()
    sound = await world.reading.read(path, 0, 1 << 20)
    await put_again(world, path, sound[:70] + bytes([sound[70] ^ 1]) + sound[71:])
    read = owner.steps.read

    async def slow(place: str, position: int, length: int) -> bytes:
        if place == path:
            await gate.wait()
        return await read(place, position, length)

    monkeypatch.setattr(owner.steps, "read", slow)
    for _ in range(2):
        await owner.round(2)
    assert [await cleaned(world, one) for one in (PATH, SECOND_PATH)] == [0, 1]
    gate.set()
    await asyncio.sleep(1)
    assert [await cleaned(world, one) for one in (PATH, SECOND_PATH)] == [1, 1]


async def test_a_cleaning_makes_records_without_a_time_no_younger() -> None:
    """Let compact,delete expire them by the time of the last source's file, as Kafka does."""
    world = World()
    owner = await world.owner("a", replace(COMPACT, retention_ms=HOUR_MS), BRISK)
    for number in range(20):
        data = build_batch([Record(key=b"k%d" % number, value=b"." * 100)], base_timestamp=-1)
        await owner.driver.append(memoryview(data))
    await asyncio.sleep(HOUR_MS / 2000)
    allow(owner)
    await owner.rounds()
    first = await anext(one.name async for one in walk(world.reading, PATH) if one.is_live)
    index = decode_idx(await world.reading.read(PATH.idx(first), 0, 1 << 20))
    assert (first.cleaning, index.max_timestamp, owner.log_start) == (1, -1, 0)
    await owner.round(HOUR_MS / 2000 - 60)
    assert owner.log_start == 0
    for _ in range(3):
        await owner.round(60)
    assert owner.log_start >= index.end_offset


async def test_records_without_a_time_are_as_young_as_their_file() -> None:
    """Let min.compaction.lag.ms hold for them too, as Kafka's ``LogSegment.largestTimestamp`` does."""
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_compaction_lag_ms=200_000))
    owner = await compacted(world, config=config)
    for number in range(20):
        data = build_batch([Record(key=b"k", value=b"%d" % number + b"." * 100)], base_timestamp=-1)
        await owner.driver.append(memoryview(data))
    for _ in range(9):
        await owner.round(20)
        assert owner.janitor.cleaning.cleaner.rounds == 0
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is Reason.MIN_LAG
    for _ in range(5):
        await owner.round(20)
    assert owner.janitor.cleaning.cleaner.rounds == 2, "the second behind the close of the newest segment"
    assert (await contents(world, 0, 20))[1] == 2, "the newest segment stays as it is"
