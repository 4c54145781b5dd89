"""Upkeep of owned partitions: what goes, what stays, and that a crash at any step changes no record."""

from __future__ import annotations

import asyncio
import random
import uuid
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from bmq.broker.cleanup.janitor import Janitor, JanitorConfig
from bmq.broker.cleanup.segment_merge import Merge, RepairIndex, merged, plan_merges
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.meta import ownership
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage import layout
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import Appender, CreateOptions, LeaseLost, StorageError, write_once
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.segment import decode_idx
from tests.harness.loop import run
from tests.harness.members import lone_broker
from tests.simulation.world import WallClock

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

T = TypeVar("T")
S = SegmentName
KEY = PartitionKey(uuid.UUID(int=7), 0)
PATH = PartitionPath("t", str(KEY.topic_id), 0)
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
CLOCK = LoopClock()
SMALL = LogConfig(segment_bytes=600, retention_ms=-1)  # three batches a segment
CONFIG = JanitorConfig(journal_sweep_ms=1 << 50)


class StepFileSystem(MemoryFileSystem):
    """The janitor's own client: dies before or after its n-th change of the namespace."""

    def __init__(self, storage: MemoryStorage, holder: str) -> None:
        super().__init__(storage, holder)
        self.steps: list[str] = []
        self.dies_at = -1
        self.dies_before = False
        self.listed = 0

    async def _step(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        self.steps.append(what)
        is_last = len(self.steps) == self.dies_at
        if is_last and self.dies_before:
            self.crash()
        result = await call()
        if is_last:
            self.crash()
        await self.awake()
        return result

    async def create(self, path: str, options: CreateOptions = CreateOptions()) -> Appender:  # type: ignore[override]  # noqa: B008
        return await self._step("create", lambda: MemoryFileSystem.create(self, path, options))

    async def replace(self, source: str, target: str) -> None:
        await self._step("replace", lambda: MemoryFileSystem.replace(self, source, target))

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        return await self._step("delete", lambda: MemoryFileSystem.delete(self, path, recursive=recursive))

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        await self._step("concat", lambda: MemoryFileSystem.concat(self, target, sources))


class World:
    """One storage and store; brokers come and go."""

    def __init__(self) -> None:
        self.storage = MemoryStorage(random.Random(1))
        self.store = MemoryStore()
        self.reading = MemoryFileSystem(self.storage, "reader")
        self.sent: list[bytes] = []

    async def owner(self, name: str, config: LogConfig = SMALL, janitor: JanitorConfig = CONFIG) -> Owner:
        owner = Owner(self, name, janitor)
        await owner.broker.start()
        owner.driver = await owner.broker.open(PATH, KEY, config)
        return owner

    async def names(self, folder: str = PATH.folder) -> list[str]:
        return [layout.base_name(status.path) async for status in self.reading.list(folder)]

    async def logs(self) -> list[int]:
        """Return the bases of the live segments."""
        return [listed.name.base async for listed in walk(self.reading, PATH) if listed.is_live]

    async def records(self, start: int, end: int) -> list[bytes]:
        """Return the batches without their leader epochs, as a consumer with an empty cache reads them."""
        log = LogReader(BlockCache(self.reading, ReadConfig(block_bytes=256)), PATH)
        found: list[bytes] = []
        while start < end:
            for batch in read_batches(memoryview(await log.read(start, 500, end))):
                assert batch.has_valid_crc
                start = batch.next_offset
                found.append(bytes(batch.data[21:]))
        return found


ASLEEP = JanitorConfig(interval_ms=1 << 50)  # the broker's own janitor: these stories have one of their own


class Owner:
    """A broker with one partition, and its janitor."""

    driver: PartitionDriver

    def __init__(self, world: World, name: str, config: JanitorConfig) -> None:
        self.world = world
        self.fs = MemoryFileSystem(world.storage, name)
        self.kv = MemoryKeyValue(world.store, random=random.Random(2))
        self.clock = WallClock()
        self.broker = lone_broker(self.fs, self.kv, incarnation=name, clock=self.clock, janitor_config=ASLEEP)
        self.steps = StepFileSystem(world.storage, name)
        self.janitor = Janitor(replace(self.broker.shared, fs=self.steps), self.held, config, random.Random(3))

    def held(self) -> list[PartitionDriver]:
        driver = self.broker.get(KEY)
        return [] if driver is None else [driver]

    @property
    def log_start(self) -> int:
        return self.driver.machine.log_start

    @property
    def watermark(self) -> int:
        return self.driver.machine.high_watermark

    def configure(self, **settings: int) -> None:
        self.driver.machine.config = replace(self.driver.machine.config, **settings)  # type: ignore[arg-type]

    async def send(self, count: int, timestamp: int | None = None) -> None:
        for _ in range(count):
            stamp = CLOCK.now_ms() if timestamp is None else timestamp
            record = Record(value=f"{len(self.world.sent)}".encode().ljust(100))
            data = build_batch([record], base_timestamp=stamp)
            await self.driver.append(memoryview(data))
            self.world.sent.append(bytes(data[21:]))
        await asyncio.sleep(0.1)  # closing goes on behind

    async def round(self, wait_s: float = 0.0) -> int:
        await asyncio.sleep(wait_s)
        return await self.janitor.run_once()

    async def rounds(self, wait_s: float = 0.0) -> None:
        """Run rounds until one finds nothing to do."""
        while await self.round(wait_s):
            pass

    async def several_rounds(self) -> None:
        """Run three rounds: the first one only chooses the time at which the journals are checked."""
        for _ in range(3):
            await self.round(10)

    def die(self) -> None:
        self.fs.crash()
        self.steps.crash()
        self.kv.crash()


async def moved_log_start(owner: Owner, offset: int) -> None:
    await owner.driver.delete_before(offset)


# -------------------------------------------------------------------------------------------------------- retention


async def test_rule_10_retention_by_time_moves_the_start_then_deletes_after_the_delay() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=60_000))
    await owner.send(6)
    await asyncio.sleep(1800)
    await owner.send(6)
    await owner.rounds()
    assert (owner.log_start, await world.logs()) == (0, [0, 3, 6, 9])
    await owner.round(1850)  # the first two are an hour old now
    assert owner.log_start == 6
    assert await world.logs() == [0, 3, 6, 9]
    await owner.round(59)
    assert await world.logs() == [0, 3, 6, 9]
    await owner.round(1)
    assert await world.logs() == [6, 9]
    assert await world.records(6, 12) == world.sent[6:]
    assert owner.janitor.files_deleted == 2


async def test_retention_by_time_takes_the_largest_timestamp_of_the_records() -> None:
    """Old records written now go at once; records from the future stay; none at all means the file's own time."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(3, timestamp=CLOCK.now_ms() - 2 * HOUR_MS)
    await owner.send(3, timestamp=-1)
    await owner.send(3, timestamp=CLOCK.now_ms() + HOUR_MS // 2)
    await owner.send(1)
    await owner.rounds()
    assert owner.log_start == 3
    await owner.round(3590)
    assert owner.log_start == 3
    await owner.round(60)
    assert owner.log_start == 6
    await owner.round(1800)
    assert owner.log_start == 10  # the last one had been waiting behind it


async def test_a_segment_with_the_log_start_inside_expires_in_time() -> None:
    """Delete records up to an offset inside a segment: its rest is checked when it expires, not a whole retention time
    later."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6)
    await owner.round()
    await moved_log_start(owner, 1)
    await owner.round(1800)
    await owner.send(3)  # what is registered has retention look again
    await owner.rounds()
    assert owner.log_start == 1
    await owner.round(1810)
    assert owner.log_start >= 3


@pytest.mark.parametrize("hours", [20, -20])
async def test_a_wall_clock_that_was_wrong_for_a_round_delays_nothing(hours: int) -> None:
    """A clock ahead: what it calls expired is deleted, as with Kafka, but no deadline is kept in its time. A clock
    behind (a machine that starts before it has synchronised the time): what expires is not checked hours later."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=60_000))
    await owner.send(6)
    owner.clock.ahead_ms = hours * HOUR_MS
    await owner.round()
    owner.clock.ahead_ms = 0
    assert owner.log_start == (3 if hours > 0 else 0)
    await owner.round(30)
    await owner.round(40)
    assert await world.logs() == ([3] if hours > 0 else [0, 3])
    await owner.send(6)
    await owner.rounds(61)
    await owner.round(HOUR_MS / 1000)
    assert owner.log_start == 12
    await owner.rounds(61)
    assert await world.logs() == [9]


async def test_what_expires_is_computed_again_when_the_clock_is_set() -> None:
    """A machine begins twenty hours behind; nothing is written any more when its clock is put right."""

    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6)
    owner.clock.ahead_ms = -20 * HOUR_MS
    await owner.rounds()
    owner.clock.ahead_ms = 0
    await owner.rounds(30)
    assert owner.log_start == 0
    await owner.rounds(HOUR_MS / 1000)
    assert owner.log_start == 6


async def test_a_clock_that_is_slewed_costs_no_listing() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=24 * HOUR_MS))
    await owner.send(6)
    await owner.rounds()
    for _ in range(10):
        owner.clock.ahead_ms += 90  # of 30 s: far more than ntpd slews
        assert await owner.round(30) == 0


async def test_retention_by_size_keeps_at_least_what_is_asked_and_follows_the_growth() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_bytes=1_100))
    await owner.send(30)
    await owner.rounds()
    size = len(world.sent[0]) + 21
    assert size * 3 <= 600 < size * 4
    kept = (30 - owner.log_start) * size
    assert 1_100 <= kept < 1_100 + 3 * size
    for _ in range(20):
        await owner.send(3)
        await owner.rounds()
        kept = (owner.watermark - owner.log_start) * size
        assert 1_100 <= kept < 1_100 + 6 * size
    await owner.rounds(60)
    assert (await world.logs())[0] == owner.log_start
    assert await world.records(owner.log_start, owner.watermark) == world.sent[owner.log_start :]


async def test_for_ever_means_for_ever_and_costs_no_listing() -> None:
    world = World()
    owner = await world.owner("a", SMALL)
    await owner.send(12)
    await owner.rounds()
    for _ in range(5):
        assert await owner.round(HOUR_MS / 1000) <= 1  # sweeping
    assert (owner.log_start, await world.logs()) == (0, [0, 3, 6, 9])


async def test_the_open_segment_stays_and_the_newest_closed_one_is_emptied_but_kept_as_a_name() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=60_000))
    await owner.send(4)
    await owner.rounds()
    assert owner.driver.machine.current is not None
    await owner.round(250)
    assert owner.log_start == 3  # 3 is in the open one
    await owner.round(400)
    await owner.round(3600)
    assert owner.driver.machine.current is None  # idle, closed
    assert (owner.log_start, owner.watermark) == (4, 4)
    await owner.round(61)
    assert await world.logs() == [3]
    await owner.send(1)
    await owner.round()
    await owner.round(61)
    assert await world.logs() == [4]
    assert await world.records(4, 5) == world.sent[4:]


async def test_delete_records_is_noticed_and_its_files_go_after_the_delay() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_bytes=100_000))
    await owner.send(12)
    await owner.rounds()
    await moved_log_start(owner, 7)
    await owner.round()
    assert await world.logs() == [0, 3, 6, 9]
    await owner.rounds(61)
    assert await world.logs() == [6, 9]  # 7 and 8 are in the first
    assert await world.records(7, 12) == world.sent[7:]


async def test_a_file_that_may_still_be_open_is_not_deleted_until_the_record_says_closed() -> None:
    world = World()
    owner = await world.owner("a", SMALL)
    await owner.send(12)
    await owner.rounds()
    await world.reading.delete(PATH.idx(S(6, 1, 2)))  # as if it were still being closed
    await moved_log_start(owner, 9)
    await owner.round()
    await owner.rounds(61)
    assert await world.logs() == [6, 9]
    await owner.send(6)
    await owner.round()
    await owner.rounds(61)
    assert (await world.logs())[0] == 9


async def test_deletes_are_bounded_per_job() -> None:
    world = World()
    owner = await world.owner("a", SMALL, replace(CONFIG, deletes_per_job=2, jobs_per_round=1))
    await owner.send(30)
    await owner.rounds()
    await moved_log_start(owner, 27)
    await owner.round()
    await asyncio.sleep(61)
    counts = []
    while await owner.round():
        counts.append(owner.janitor.files_deleted)
    assert counts[0] == 2
    assert max(b - a for a, b in zip([0, *counts], counts, strict=False)) == 2
    assert await world.logs() == [27]


async def test_a_lost_partition_is_left_alone() -> None:
    world = World()
    first = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await first.send(9, timestamp=0)
    second = await world.owner("b", SMALL)
    await asyncio.sleep(1)  # its indexes are written behind
    before = await world.names()
    await first.round()
    await first.round(100)
    assert (second.log_start, await world.names()) == (0, before)
    assert first.janitor.files_deleted == 0
    assert first.driver.machine.state.name == "FENCED"


async def test_rule_10_files_are_deleted_only_after_a_fresh_proof_of_ownership() -> None:
    """The first owner moved the log start, and was overtaken without noticing before the delay had passed."""

    world = World()
    first = await world.owner("a", SMALL)
    await first.send(12)
    await first.rounds()
    await moved_log_start(first, 6)
    await first.round()
    await asyncio.sleep(60)
    second = await world.owner("b", SMALL)
    assert first.driver.machine.state.name == "WRITE"
    await first.round(1)
    assert first.janitor.files_deleted == 0
    assert first.driver.machine.state.name == "FENCED"
    assert await world.logs() == [0, 3, 6, 9]
    await second.round()
    await second.round(61)
    assert await world.logs() == [6, 9]


async def test_a_log_start_moved_but_not_yet_carried_out_is_carried_out_by_the_successor() -> None:
    world = World()
    first = await world.owner("a", SMALL)
    await first.send(12)
    await moved_log_start(first, 6)
    first.die()
    second = await world.owner("b", SMALL)
    assert second.log_start == 6
    await second.round()
    await second.round(61)
    assert (await world.logs())[0] == 6
    assert await world.records(6, 12) == world.sent[6:]


@pytest.mark.parametrize("dies_before", [True, False])
def test_a_crash_at_any_step_of_retention_loses_nothing_that_is_kept(dies_before: bool) -> None:
    async def main(dies_at: int) -> int:
        world = World()
        first = await world.owner("a", SMALL)
        await first.send(12)
        await first.rounds()
        await moved_log_start(first, 9)
        await first.round()
        await asyncio.sleep(61)
        first.steps.dies_at, first.steps.dies_before = len(first.steps.steps) + dies_at, dies_before
        await life(first.round())
        steps = len(first.steps.steps)
        first.die()
        second = await world.owner("b", SMALL)
        assert second.log_start == 9
        assert await world.records(9, 12) == world.sent[9:]
        await second.send(4)
        await second.round()
        await second.rounds(61)
        assert (await world.logs())[0] == 9
        assert all(int(name[:20]) >= 9 for name in await world.names() if not name.startswith("."))
        assert await world.records(9, 16) == world.sent[9:]
        return steps

    steps = run(main(0))
    assert steps >= 6
    for dies_at in range(1, steps + 1):
        run(main(dies_at))


async def life(work: Awaitable[object]) -> None:
    """Let ``work`` go on until it is done or hangs, as a dead process's does."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# ---------------------------------------------------------------------------------------------------------- merging


async def small_segments(world: World, count: int = 14) -> Owner:
    """Write ``count`` segments of one batch each, that the config then calls small."""
    owner = await world.owner("a", replace(SMALL, segment_bytes=200))
    for _ in range(count):  # one by one, so that each is known closed when the next but one is registered
        await owner.send(1)
    owner.configure(segment_bytes=2_000)
    return owner


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


async def test_merging_goes_on_from_where_it_ended() -> None:
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


@pytest.mark.parametrize("dies_before", [True, False])
@pytest.mark.parametrize("knows", [False, True])
def test_a_crash_at_any_step_of_a_merge_changes_no_record(dies_before: bool, knows: bool) -> None:
    """Neither for a new reader nor for one that had listed the files before; and the successor tidies up."""

    async def main(dies_at: int) -> list[str]:
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
        second = await world.owner("b", replace(SMALL, segment_bytes=2_000))
        assert (second.log_start, second.watermark) == (0, 14)
        await second.rounds()
        for _ in range(4):
            await second.rounds(600)
        assert await world.records(0, 14) == world.sent
        assert (await world.logs())[:2] == [0, 11]
        names = await world.names()
        assert [name for name in names if name.startswith(".")] == []
        logs = {name[:-4] for name in names if name.endswith(".log")}
        assert {name[:-4] for name in names if name.endswith(".idx")} <= logs
        checkpoint = decode_idx(await world.reading.read(PATH.idx(S(0, 1, 0)), 0, 1 << 20))
        assert checkpoint.end_offset == 11
        return steps

    steps = run(main(0))
    assert steps[:4] == ["delete", "create", "concat", "replace"]
    for dies_at in range(1, len(steps) + 1):
        run(main(dies_at))


@pytest.mark.parametrize("dies_before", [True, False])
def test_retention_after_a_crash_at_any_step_of_a_merge_keeps_what_has_not_expired(dies_before: bool) -> None:
    """The old index covers only the oldest part of the merged file; retention comes before the merge is mended."""

    async def main(dies_at: int) -> list[str]:
        world = World()
        first = await world.owner("a", replace(SMALL, segment_bytes=200))
        await first.send(1)
        await asyncio.sleep(4 * MINUTE_MS / 1000)
        for _ in range(13):
            await first.send(1)
        first.configure(segment_bytes=2_000)
        first.steps.dies_at, first.steps.dies_before = dies_at, dies_before
        await life(first.round())
        steps = list(first.steps.steps)
        first.die()
        await asyncio.sleep(2 * MINUTE_MS / 1000)
        config = replace(SMALL, segment_bytes=2_000, retention_ms=5 * MINUTE_MS, file_delete_delay_ms=0)
        second = await world.owner("b", config)
        await second.rounds()
        assert second.log_start <= 1
        assert await world.records(1, 14) == world.sent[1:]
        await second.rounds(5 * MINUTE_MS / 1000)
        assert second.log_start == 14
        return steps

    steps = run(main(0))
    assert "concat" in steps
    for dies_at in range(1, len(steps) + 1):
        run(main(dies_at))


async def test_a_refused_concat_leaves_the_log_and_no_draft() -> None:
    class Refusing(StepFileSystem):
        async def concat(self, target: str, sources: Sequence[str]) -> None:
            raise StorageError("block sizes differ")

    world = World()
    owner = await small_segments(world)
    fs = Refusing(world.storage, "a")
    janitor = Janitor(replace(owner.broker.shared, fs=fs), owner.held, CONFIG, random.Random(1))
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


def test_plan_of_merges() -> None:
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


def test_plan_mends_a_head_whose_sources_have_gone() -> None:
    strays = [ListedSegment(S(n, 1, n), n, -1, -1, True) for n in (2, 3)]
    head = one(1, 4, length=30)
    listed = [one(0, 1), head, *strays, one(4, 5), one(5, 6)]
    steps, resume = plan_merges(listed, bytes_max=100, sources_max=9, log_start=0)
    assert steps == [RepairIndex(head, (S(2, 1, 2), S(3, 1, 3))), Merge((listed[-2], listed[-1]))]
    assert resume == S(4, 1, 4)
    assert plan_merges(listed[:4], bytes_max=100, sources_max=9, log_start=0) == (steps[:1], head.name)
    assert plan_merges([], bytes_max=100, sources_max=9, log_start=0) == ([], None)


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


# --------------------------------------------------------------------------------------------------------- sweeping


async def test_the_sweeper_takes_temporary_files_of_earlier_epochs_after_a_grace() -> None:
    world = World()
    owner = await world.owner("a")
    await owner.broker.move(KEY)
    owner.driver = await owner.broker.open(PATH, KEY, SMALL)  # epoch 2
    old, own = PATH.spare(1, 5, "dead"), PATH.spare(2, 90, "other")
    makers = [("idx", "dead"), ("idx", "a"), ("join", "dead"), ("join", "a")]
    drafts = [f"{PATH.folder}/.{kind}-{S(0, 2, 0)}-{holder}" for kind, holder in makers]
    concat = f"{PATH.folder}/.{S(0, 1, 0)}.log.concat"
    unknown = f"{PATH.folder}/.somebody-elses"
    for path in (old, own, *drafts, concat, unknown):
        await write_once(world.reading, path, b"")
    await owner.rounds()
    await owner.rounds(500)
    assert len(await world.names()) == 8
    await owner.rounds(1500)
    left = [own, drafts[1], drafts[3], unknown]
    assert await world.names() == sorted(layout.base_name(path) for path in left)
    young = PATH.spare(1, 6, "dead")
    await write_once(world.reading, young, b"")
    await owner.round(300)
    assert layout.base_name(young) in await world.names()
    await owner.round(7 * 3600)
    assert layout.base_name(young) not in await world.names()


async def test_an_open_spare_is_fenced_before_its_name_goes() -> None:
    """A zombie that still holds its spare open must not be acknowledged into a file without a name."""

    world = World()
    first = await world.owner("a")
    await first.broker.move(KEY)
    zombie = MemoryFileSystem(world.storage, "zombie")
    appender = await zombie.create(PATH.spare(0, 1, "zombie"))
    appender.write(b"early")
    await appender.flush()  # the first one asks the NameNode, which does not find a deleted file
    second = await world.owner("b")
    await second.rounds()
    await second.rounds(2000)
    assert await world.names() == []
    appender.write(b"late")
    with pytest.raises(StorageError) as caught:
        await appender.flush()
    assert isinstance(caught.value, LeaseLost)


async def test_journals_go_when_their_broker_is_gone_and_nobody_names_them() -> None:
    world = World()
    first = await world.owner("a")
    await first.send(3)
    first.die()
    config = JanitorConfig(journal_grace_ms=HOUR_MS, journal_sweep_ms=1000)
    idle = Owner(world, "idle", config)
    await idle.broker.start()
    await asyncio.sleep(2 * 3600)
    await idle.several_rounds()
    # The dead one still owns the partition: its journal is what its successor begins from.
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"a", "idle"}
    second = await world.owner("b", SMALL, config)
    await second.send(4)  # registers: its record no longer names the first one's journals
    await asyncio.sleep(3600)  # closed after it was read, it is as old as that
    await idle.several_rounds()
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"idle", "b"}
    assert await world.records(0, 7) == world.sent


async def test_a_journal_whose_broker_only_slept_is_begun_anew() -> None:
    """A paused broker wakes up after the sweep: its old journal refuses it, and the next one begins with a snapshot."""

    world = World()
    config = JanitorConfig(journal_grace_ms=HOUR_MS, journal_sweep_ms=1000)
    sleeper = Owner(world, "sleeper", config)
    await sleeper.broker.start()
    await asyncio.sleep(1)
    sleeper.fs.pause()
    sleeper.kv.pause()
    other = Owner(world, "other", config)
    await other.broker.start()
    await asyncio.sleep(2 * 3600)
    await other.several_rounds()
    assert {name.rsplit("-", 1)[0] for name in await world.names(layout.JOURNALS)} == {"other"}
    sleeper.fs.resume()
    sleeper.kv.resume()
    sleeper.driver = await sleeper.broker.open(PATH, KEY, SMALL)
    await sleeper.send(1)
    await asyncio.sleep(5)
    assert "sleeper-00000002.jnl" in await world.names(layout.JOURNALS)


# ------------------------------------------------------------------------------------------------------- the rounds


async def test_an_idle_partition_costs_no_call_at_all() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=24 * HOUR_MS))
    await owner.send(7)
    await owner.rounds()
    calls = 0
    plain = owner.steps.call

    async def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return await plain(*args, **kwargs)  # type: ignore[arg-type]

    owner.steps.call = counted  # type: ignore[method-assign, assignment]
    for _ in range(15):
        assert await owner.round(30) == 0
    assert calls == 0


async def test_an_undecodable_record_ends_neither_the_round_nor_its_broker() -> None:
    """Damage a partition's record: only that partition is OFFLINE, and no journal is removed, since the record may name
    it."""

    world = World()
    config = JanitorConfig(journal_sweep_ms=60_000, journal_grace_ms=60_000)
    gone = await world.owner("gone", janitor=config)
    gone.die()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS, file_delete_delay_ms=0), config)
    await owner.send(6, timestamp=0)
    await asyncio.sleep(HOUR_MS / 1000)
    await owner.kv.commit([], [Put(ownership.partition_key("bmq", KEY), b"what?")])
    for _ in range(5):
        await owner.round(60)
    assert owner.driver.machine.state is PartitionState.OFFLINE
    assert "gone-00000001.jnl" in await world.names(layout.JOURNALS)
    assert owner.janitor.failures > 0


async def test_what_fails_is_counted_and_tried_again() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(6, timestamp=0)
    world.storage.faults = Faults(unavailable=1.0)
    await owner.round()
    assert owner.janitor.failures == 2  # retention and merging
    assert owner.log_start == 0
    world.storage.faults = Faults()
    await owner.rounds()
    assert owner.log_start == 0
    await owner.rounds(61)
    assert owner.log_start == 3


async def test_a_stuck_partition_is_given_up_in_time() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS), replace(CONFIG, step_timeout_ms=1000))
    await owner.send(6, timestamp=0)
    owner.steps.pause()
    await owner.round()
    assert owner.janitor.failures == 2
    owner.steps.resume()
    await owner.rounds(61)
    assert owner.log_start == 3


async def test_run_is_a_task_that_ends_by_cancellation() -> None:
    world = World()
    owner = await world.owner("a", replace(SMALL, retention_ms=HOUR_MS))
    await owner.send(9, timestamp=0)
    task = asyncio.create_task(owner.janitor.run())
    await asyncio.sleep(200)
    assert await world.logs() == [6]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("seed", range(10))
async def test_upkeep_under_faults_loses_no_record(seed: int) -> None:
    """Everything at once, storage failing now and then, owners dying: what is kept is what was sent."""

    world = World()
    rng = random.Random(seed)
    config = replace(SMALL, segment_bytes=400, retention_ms=20 * 60_000, file_delete_delay_ms=5_000)
    janitor = JanitorConfig(grace_ms=60_000, merge_after=2, retry_ms=1_000, sweep_ms=120_000)
    for turn in range(4):
        world.storage.faults = Faults()
        owner = await world.owner(f"b{turn}", config, janitor)
        world.storage.faults = Faults(unavailable=0.04, lost_answer=0.03, call_s=(0, 0.01))
        for _ in range(15):
            owner.configure(segment_bytes=400)
            await owner.send(rng.randrange(8))
            owner.configure(segment_bytes=rng.choice((400, 3_000)))
            await owner.round(rng.choice((1, 30, 100)))
        world.storage.faults = Faults()
        await asyncio.sleep(5)
        start, end = owner.log_start, owner.watermark
        assert end == len(world.sent)
        assert await world.records(start, end) == world.sent[start:]
        if turn < 3:
            owner.die()
    await owner.round(1300)
    await owner.round(10)
    assert (start := owner.log_start) > 0
    assert await world.records(start, end) == world.sent[start:end]
    assert (await world.logs())[0] <= start


def test_janitor_config_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="jobs_per_round"):
        JanitorConfig(jobs_per_round=0).validate()
    with pytest.raises(ValueError, match="merge_after"):
        JanitorConfig(merge_after=0).validate()
