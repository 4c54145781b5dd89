"""Compaction of a partition's log: what stays, what a crash at any step leaves, and when a round begins."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from bmq.broker.cleanup import log_cleaner
from bmq.broker.cleanup.cleaning_status import LogCleaning, Obstacle
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.config import LogConfig
from bmq.broker.partition.owner import LogSize
from bmq.core.model import SegmentName
from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.meta.ownership import Swap
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.plan import NOT_COMPACTED, CleaningConfig, Reason
from bmq.storage.cleaning.round import CleaningRound
from bmq.storage.filesystem import CorruptData, NoSuchFile, OutOfSpace, write_once
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from bmq.storage.segment import decode_idx
from tests.harness.loop import run
from tests.unit.broker.cleanup.upkeep import CLOCK, CONFIG, KEY, PATH, Owner, World, life

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

COMPACT = LogConfig(
    segment_bytes=200,
    retention_ms=-1,
    file_delete_delay_ms=1_000,
    cleaning=CleaningConfig(is_compacted=True, min_cleanable_dirty_ratio=0.0, segment_bytes=100_000),
)
"""One batch a segment; sources go a second after the swap."""
KEYS = 4
BRISK = replace(CONFIG, grace_ms=10_000, clean_ms=1_000, merge_after=1 << 30)
T = TypeVar("T")
Found = dict[bytes, tuple[int, bytes]]


async def compacted(world: World, name: str = "a", config: LogConfig = COMPACT) -> Owner:
    """Return an owner of a compacted log, in a cluster whose processes all support cleaned segments."""
    owner = await world.owner(name, config, BRISK)
    allow(owner)
    return owner


def allow(owner: Owner) -> None:
    """Let the owner write cleaned segments."""
    for context in (owner.broker.context, owner.janitor.cleaner._context):
        context.may_clean = lambda: True


async def update(owner: Owner, count: int) -> Found:
    """Write ``count`` records with keys, one in a batch; return offset and value of each key's last record."""
    last: Found = {}
    for number in range(count):
        key, value = b"k%d" % (number % KEYS), b"v%d" % number
        last[key] = (await put(owner, key, value), value)
    return last


async def put(owner: Owner, key: bytes, value: bytes) -> int:
    """Write one record; return its offset."""
    data = build_batch([Record(key=key, value=value.ljust(100))], base_timestamp=CLOCK.now_ms())
    return await owner.driver.append(memoryview(data))


async def contents(world: World, start: int, end: int) -> tuple[Found, int]:
    """Read the log as a consumer with an empty cache; return each key's last record, and the number of records."""
    log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=256)), PATH)
    last: Found = {}
    count = 0
    while start < end:
        for batch in read_batches(memoryview(await log.read(start, 500, end))):
            assert batch.has_valid_crc
            assert batch.next_offset > start
            start = batch.next_offset
            if batch.is_control or not batch.count:
                continue
            for record in read_records(batch):
                assert record.key is not None
                assert record.value is not None
                count += 1
                last[bytes(record.key)] = (record.offset, bytes(record.value).rstrip())
    return last, count


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
    assert (owner.janitor.cleaner.rounds, owner.janitor.swapper.swaps_done) == (1, 1)
    totals = owner.janitor.cleaning_totals()
    assert (totals.uncleanable, totals.not_cleaned["open_segment"], sum(totals.not_cleaned.values())) == (0, 1, 1)
    (line,) = [line.message for line in caplog.records if "was cleaned" in line.message]
    assert f"up to offset {lives[1].base}:" in line
    second = await compacted(world, "b")
    assert (second.log_start, second.watermark) == (0, 20)
    assert (await contents(world, 0, 20))[0] == last


async def test_the_state_of_a_log_outlives_its_owner() -> None:
    """Show the last round also at an owner that has not done it, from the cleaned segment's index and file."""
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    await owner.rounds()
    state = owner.janitor.cleaning_of(KEY)
    assert state is not None
    assert state.last is not None
    assert (state.last.bytes_before, state.last.bytes_after) == (
        owner.janitor.cleaner.bytes_before,
        owner.janitor.cleaner.bytes_after,
    )
    await owner.rounds(10)
    settled = owner.janitor.cleaning_of(KEY)
    assert settled == LogCleaning(reason="open_segment", dirty_percent=0.0, last=state.last)
    never = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_cleanable_dirty_ratio=1.0))
    second = await compacted(world, "b", never)
    assert second.janitor.cleaning_of(KEY) is None, "its janitor has not noticed the partition"
    await second.rounds()
    taken_over = second.janitor.cleaning_of(KEY)
    assert taken_over is not None
    assert taken_over.last is not None
    assert (taken_over.last.bytes_before, taken_over.last.bytes_after) == (
        state.last.bytes_before,
        state.last.bytes_after,
    )
    (cleaned,) = [each async for each in walk(world.reading, PATH) if each.is_live and each.name.cleaning]
    assert taken_over.last.ended_ms == cleaned.modified_ms


async def test_a_log_has_no_last_round_before_its_first() -> None:
    world = World()
    owner = await compacted(world)
    await owner.rounds()
    assert owner.janitor.cleaning_of(KEY) == LogCleaning(reason="open_segment", dirty_percent=0.0, last=None)


async def test_a_log_that_is_not_compacted_has_no_state() -> None:
    world = World()
    owner = await world.owner("a", replace(COMPACT, cleaning=NOT_COMPACTED), BRISK)
    await owner.rounds()
    assert owner.janitor.cleaning_of(KEY) is None


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
        assert owner.janitor.cleaner.rounds == rounds
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
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last
    assert await hidden(world) == 0


async def test_nothing_is_cleaned_before_the_level_is_in_force() -> None:
    world = World()
    owner = await world.owner("a", COMPACT, BRISK)
    last = await update(owner, 20)
    before = await world.names()
    for _ in range(3):
        await owner.rounds(10)
    assert await world.names() == before
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.obstacle is Obstacle.LEVEL
    allow(owner)
    for _ in range(20):
        await owner.rounds(10)
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


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
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.obstacle is Obstacle.LARGE


async def test_other_jobs_go_on_beside_a_long_round_and_its_end_is_the_end_of_the_owner() -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await gate.wait()
        return call()

    owner.janitor.cleaner._context.offload = slow
    await owner.rounds()
    for _ in range(3):
        await owner.rounds(60)
    assert owner.janitor._cleaning is not None
    assert (owner.janitor.cleaner.rounds, owner.janitor.failures) == (0, 0)
    gate.set()
    await asyncio.sleep(1)
    assert owner.janitor._cleaning is None
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_nothing_is_merged_in_a_log_beside_its_round() -> None:
    """A merged file would have a source's name, and be hidden with what was appended to it."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await gate.wait()
        return call()

    owner.janitor.cleaner._context.offload = slow
    owner.configure(segment_bytes=2_000)
    owner.janitor.config = replace(owner.janitor.config, merge_after=1)
    await owner.round()
    before = await world.names()
    owner.configure(segment_bytes=100_000)  # all would be merged into one
    await owner.round(60)
    (care,) = owner.janitor._cares.values()
    care.merge_from = None
    await owner.janitor._merge(care, 0)
    assert await world.names() == before
    gate.set()
    for _ in range(3):
        await owner.round(60)
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_retention_by_size_beside_a_swap_judges_no_old_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources' bytes with the cleaned segment's offsets would look like a log that is far too large."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    gate = asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await gate.wait()
        return call()

    owner.janitor.cleaner._context.offload = slow
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
    assert owner.janitor.cleaner.rounds == 1, "the swap came between the count and the listing"
    monkeypatch.undo()
    for _ in range(3):
        await owner.rounds(60)
    size = sum([one.length async for one in walk(world.reading, PATH) if one.is_live])
    assert size < 2_000
    assert owner.log_start == 0, "the cleaned log is smaller than retention.bytes"
    assert (await contents(world, 0, 20))[0] == last


async def test_a_round_is_given_up_if_a_source_has_changed() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    gate = asyncio.Event()

    async def slow(call: Callable[[], T]) -> T:
        await gate.wait()
        return call()

    owner.janitor.cleaner._context.offload = slow
    await owner.round()
    (first, *_) = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    appender = await world.reading.append(PATH.log(first))
    appender.write(b"more")
    await appender.close()
    gate.set()
    await asyncio.sleep(1)
    assert owner.janitor.cleaner.rounds == 0
    assert owner.driver.machine.record.swap is None
    assert await hidden(world) == 0
    for _ in range(3):
        await owner.rounds(60)
    assert owner.janitor.cleaner.rounds == 1, "the log is looked at again although nothing was written since"


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
    totals = owner.janitor.cleaning_totals()
    assert (owner.janitor.failures, totals.uncleanable, owner.janitor.cleaner.rounds) == (0, 0, 0)
    await owner.round(BRISK.retry_ms / 1000 + 1)
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_a_round_ends_with_the_janitor() -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    before = await world.names()
    upkeep = asyncio.create_task(owner.janitor.run())
    await asyncio.sleep(0)
    upkeep.cancel()
    await asyncio.gather(upkeep, return_exceptions=True)
    await owner.rounds()
    assert owner.janitor.failures == 0
    assert await world.names() == before


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
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is Reason.OPEN_TRANSACTION
    await owner.driver.end_transaction(TransactionMarker(9, 0, 0, Marker.ABORT, 1))
    for number in range(4):
        last[b"k2"] = (await put(owner, b"k2", b"x%d" % number), b"x%d" % number)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaner.rounds == 2
    found, count = await contents(world, 0, owner.watermark)
    assert found == last, "the aborted record is gone, and removed nothing"
    assert count < 4 + 4 + KEYS


async def test_a_log_below_the_ratio_waits() -> None:
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_cleanable_dirty_ratio=0.5))
    owner = await compacted(world, config=config)
    await update(owner, 20)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaner.rounds == 1
    await update(owner, 2)
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaner.rounds == 1
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.plan is not None
    assert care.cleaning.plan.reason is Reason.BELOW_RATIO


async def test_a_quiet_log_is_cleaned_when_its_transaction_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else changes: no segment is registered or closed, and no config is set."""
    world = World()
    owner = await compacted(world)
    stable = 0
    monkeypatch.setattr(type(owner.driver.machine), "last_stable_offset", property(lambda _: stable))
    await update(owner, 20)
    await owner.rounds()
    assert owner.janitor.cleaning_totals().not_cleaned["open_transaction"] == 1
    await owner.rounds(10)
    stable = 20
    await owner.rounds()
    assert owner.janitor.cleaner.rounds == 1


async def test_a_quiet_log_is_cleaned_when_the_lag_of_its_records_ends() -> None:
    """The first segments are old, and too few for the ratio; the others are old ten seconds later."""
    world = World()
    lag = replace(COMPACT.cleaning, min_cleanable_dirty_ratio=0.5, min_compaction_lag_ms=20_000)
    owner = await compacted(world, config=replace(COMPACT, cleaning=replace(lag, min_compaction_lag_ms=0)))
    await update(owner, 12)
    for _ in range(3):
        await owner.rounds(5)
    assert owner.janitor.cleaner.rounds == 1
    owner.configure(cleaning=lag)  # type: ignore[arg-type]
    await owner.rounds(10)
    await update(owner, 20)
    await owner.rounds(5)
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is not None
    assert owner.janitor.cleaner.rounds == 1
    for _ in range(4):
        await owner.rounds(5)
    assert owner.janitor.cleaner.rounds == 2


async def test_a_quiet_log_is_cleaned_up_to_its_newest_closed_segment() -> None:
    """No segment is registered any more, so the record would name the last ones, which keeps them from a round."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    await owner.rounds(10)
    assert owner.driver.machine.has_old_names
    while not owner.driver.machine.is_all_closed:
        await owner.round(30)
    for _ in range(3):
        await owner.rounds(10)
    (newest,) = owner.driver.machine.record.segments
    assert newest.is_closed
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.plan is not None
    assert care.cleaning.plan.end == newest.name.base == 19
    found, count = await contents(world, 0, 20)
    assert found == last
    assert count == KEYS + 1
    owner.die()
    second = await compacted(world, "b")
    assert (second.log_start, second.watermark) == (0, 20)
    assert (await contents(world, 0, 20))[0] == last


@pytest.mark.parametrize("damage", ["batch", "replicas", "index replicas"])
async def test_a_log_is_cleaned_up_to_a_damaged_segment(
    damage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the segment changes nor what lies behind it; once it is repaired, it is cleaned too."""
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)
    names = [one.name async for one in walk(world.reading, PATH) if one.is_live]
    at = names[9]
    path = PATH.idx(at) if damage == "index replicas" else PATH.log(at)
    sound = await world.reading.read(path, 0, 1 << 20)
    read, reads = owner.steps.read, list[str]()

    async def unsound(place: str, position: int, length: int) -> bytes:
        reads.append(place)
        if place == path and damage != "batch" and is_damaged:
            raise CorruptData(f"{place}: a checksum does not match")
        return await read(place, position, length)

    monkeypatch.setattr(owner.steps, "read", unsound)
    is_damaged = True
    if damage == "batch":
        await put_again(world, path, sound[:70] + bytes([sound[70] ^ 1]) + sound[71:])
    behind = [name for name in await world.names() if name >= str(at)]
    for _ in range(3):
        await owner.rounds(10)
    assert owner.janitor.cleaner.rounds == 1
    assert owner.janitor.failures > 0
    lives = [one async for one in walk(world.reading, PATH) if one.is_live]
    assert [(one.name.cleaning, one.end) for one in lives[:1]] == [(1, at.base)]
    assert [name for name in await world.names() if name >= str(at)] == behind
    totals = owner.janitor.cleaning_totals()
    assert (totals.uncleanable, totals.not_cleaned["damaged"]) == (1, 1)
    assert [line.levelname for line in caplog.records if "stops the cleaning" in line.message] == ["WARNING"]
    reads.clear()
    last |= await update(owner, 4)
    for _ in range(3):
        await owner.rounds(10)
    if damage == "batch":
        assert [place for place in reads if place.endswith(".log")] == [], "the damage is known by the file's time"
    is_damaged = False
    await asyncio.sleep(1)
    await put_again(world, path, sound)
    last |= await update(owner, 4)
    for _ in range(5):
        await owner.rounds(10)
    assert owner.janitor.cleaning_totals().uncleanable == 0
    found, count = await contents(world, 0, 28)
    assert (found, await hidden(world)) == (last, 0)
    assert count <= KEYS + 4


async def put_again(world: World, path: str, data: bytes) -> None:
    """Replace the file, as a repair does."""
    await world.reading.delete(path)
    await write_once(world.reading, path, data)


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
    assert owner.janitor.cleaning_totals().uncleanable == 1
    for _ in range(10):
        await owner.rounds(600)
    assert owner.janitor.cleaning_totals().uncleanable == 0
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
    (care,) = owner.janitor._cares.values()
    await owner.janitor._complete_swap(care, 0)
    assert owner.driver.machine.record.swap is not None, "a successor would not know of the rename"
    gate.set()
    await owner.rounds(60)
    assert owner.janitor.swapper.swaps_done == 1
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
    assert (owner.janitor.cleaner.rounds, owner.janitor.swapper.swaps_done, owner.janitor.cleaner.bytes_before) == (
        0,
        0,
        0,
    )
    await owner.rounds(BRISK.retry_ms / 1000 + 1)
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


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
        assert owner.janitor.cleaner.rounds == 0
    (care,) = owner.janitor._cares.values()
    assert care.cleaning is not None
    assert care.cleaning.why_not is Reason.MIN_LAG
    for _ in range(5):
        await owner.round(20)
    assert owner.janitor.cleaner.rounds == 1


async def test_a_full_disk_fails_a_round_which_is_counted_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    owner = await compacted(world)
    last = await update(owner, 20)

    async def refuse(*_: object) -> None:
        raise OutOfSpace("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_cleaner, "write_once", refuse)
        await owner.rounds()
    totals = owner.janitor.cleaning_totals()
    assert (totals.uncleanable, totals.not_cleaned["failed"], owner.janitor.cleaner.rounds) == (1, 1, 0)
    await owner.round(BRISK.retry_ms / 1000 + 1)
    assert owner.janitor.cleaning_totals().uncleanable == 0
    assert owner.janitor.cleaner.rounds == 1
    assert (await contents(world, 0, 20))[0] == last


async def test_an_error_of_the_program_fails_a_round_and_is_not_hidden(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    owner = await compacted(world)
    await update(owner, 20)
    seen: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))

    def fail(*_: object) -> None:
        raise struct.error("int too large to convert")

    with monkeypatch.context() as patch:
        patch.setattr(CleaningRound, "next_walk", fail)
        await owner.rounds()
    assert [str(error) for error in seen] == ["int too large to convert"]
    totals = owner.janitor.cleaning_totals()
    assert (totals.uncleanable, totals.not_cleaned["failed"]) == (1, 1)
    (line,) = [line for line in caplog.records if "bug: a round" in line.message]
    assert line.levelname == "ERROR"
    await owner.rounds(BRISK.retry_ms * 61 / 1000)
    assert owner.janitor.cleaning_totals().uncleanable == 0


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


async def hidden(world: World) -> int:
    """Return how many files are left that a cleaned segment hides."""
    return sum([1 async for one in walk(world.reading, PATH) if not one.is_live])


async def test_a_draft_of_a_process_that_stood_still_gets_no_name() -> None:
    """Play a process that wakes after its successor has completed the swap, cleaned again and deleted the sources."""
    world = World()
    first = await compacted(world)
    await update(first, 14)
    (name,) = [one.name async for one in walk(world.reading, PATH) if one.name.base == 0]
    swap = first.janitor.swapper.drafts(first.driver, name._replace(cleaning=1))
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
