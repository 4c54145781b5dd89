"""A broker's upkeep in tests: one storage and store, owners that come and go, and janitors that die at any step."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage import layout
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.filters import RecordFilters
from bmq.storage.filesystem import Appender, CreateOptions
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.broker_wiring import LooseWiring
from tests.harness.members import lone_broker
from tests.simulation.world import WallClock

T = TypeVar("T")
S = SegmentName
KEY = PartitionKey(uuid.UUID(int=7), 0)
SECOND_KEY = PartitionKey(KEY.topic_id, 1)
KEYS = tuple(PartitionKey(KEY.topic_id, number) for number in range(200))
"""The partitions that an owner's janitor sees, if they are open."""
PATH = PartitionPath("t", str(KEY.topic_id), 0)
SECOND_PATH = PartitionPath("t", str(KEY.topic_id), 1)
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

    async def rename(self, source: str, target: str) -> None:
        await self._step("rename", lambda: MemoryFileSystem.rename(self, source, target))

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        return await self._step("delete", lambda: MemoryFileSystem.delete(self, path, recursive=recursive))

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await self._step("concat", lambda: MemoryFileSystem.concat(self, target, sources, target_bytes))


class World:
    """One storage and store; brokers come and go, and clean by ``filters``."""

    def __init__(self, filters: RecordFilters | None = None) -> None:
        self.storage = MemoryStorage(random.Random(1))
        self.store = MemoryStore()
        self.reading = MemoryFileSystem(self.storage, "reader")
        self.sent: list[bytes] = []
        self.filters = filters or RecordFilters()

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
    """A broker with a partition, or several, and its janitor."""

    driver: PartitionDriver

    def __init__(self, world: World, name: str, config: JanitorConfig) -> None:
        self.world = world
        self.fs = MemoryFileSystem(world.storage, name)
        self.kv = MemoryKeyValue(world.store, random=random.Random(2))
        self.clock = WallClock()
        self.wiring = LooseWiring(filters=world.filters)
        self.broker = lone_broker(
            self.fs, self.kv, incarnation=name, clock=self.clock, janitor_config=ASLEEP, wiring=self.wiring.frozen()
        )
        self.steps = StepFileSystem(world.storage, name)
        self.janitor = Janitor(replace(self.broker.context, fs=self.steps), self.held, config, random.Random(3))

    def held(self) -> list[PartitionDriver]:
        return [driver for key in KEYS if (driver := self.broker.get(key)) is not None]

    @property
    def log_start(self) -> int:
        return self.driver.machine.log_start

    @property
    def watermark(self) -> int:
        return self.driver.machine.high_watermark

    def configure(self, **settings: int) -> None:
        self.driver.machine.reconfigure(replace(self.driver.machine.config, **settings))  # type: ignore[arg-type]

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


async def life(work: Awaitable[object]) -> None:
    """Let ``work`` go on until it is done or hangs, as a dead process's does."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def small_segments(world: World, count: int = 14) -> Owner:
    """Write ``count`` segments of one batch each, that the config then calls small."""
    owner = await world.owner("a", replace(SMALL, segment_bytes=200))
    for _ in range(count):  # one by one, so that each is known closed when the next but one is registered
        await owner.send(1)
    owner.configure(segment_bytes=2_000)
    return owner
