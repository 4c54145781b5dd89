"""Compacted logs in tests: owners whose janitor cleans a log of one batch a segment, and what a reader finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bmq.broker.config import LogConfig
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.plan import CleaningConfig
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from tests.unit.broker.cleanup.upkeep import CLOCK, CONFIG, PATH, SECOND_KEY, SECOND_PATH, Owner, World

COMPACT = LogConfig(
    segment_bytes=200,
    retention_ms=-1,
    file_delete_delay_ms=1_000,
    cleaning=CleaningConfig(is_compacted=True, min_cleanable_dirty_ratio=0.0, segment_bytes=100_000),
)
"""One batch a segment; sources go a second after the swap."""
KEYS = 4
BRISK = replace(CONFIG, grace_ms=10_000, clean_ms=1_000, merge_after=1 << 30)
Found = dict[bytes, tuple[int, bytes]]
T = TypeVar("T")


async def compacted(world: World, name: str = "a", config: LogConfig = COMPACT) -> Owner:
    """Return an owner of a compacted log, in a cluster whose processes all support cleaned segments."""
    owner = await world.owner(name, config, BRISK)
    allow(owner)
    return owner


def allow(owner: Owner) -> None:
    """Let the owner write cleaned segments."""
    owner.wiring.may_clean = lambda: True


def work_held(owner: Owner) -> asyncio.Event:
    """Hold the work of the owner's threads back until the event is set."""
    released = asyncio.Event()

    async def held(call: Callable[[], T]) -> T:
        await released.wait()
        return call()

    owner.wiring.offload = held
    return released


async def settled(world: World) -> Owner:
    """Return an owner of two compacted logs of 20 updates, which have come to rest: no record will change.

    It cleans both at once, in the janitor's next rounds.
    """
    before = await world.owner("a", COMPACT, replace(BRISK, clean_enabled=False))
    await update(before, 20)
    before.driver = await before.broker.open(SECOND_PATH, SECOND_KEY, COMPACT)
    await update(before, 20)
    for _ in range(3):
        await asyncio.sleep(400)  # the newest segment is closed, and its names leave the record
        await before.rounds(30)
    before.die()
    owner = await world.owner("b", COMPACT, replace(BRISK, clean_threads=2, clean_wait_ms=1))
    await owner.broker.open(SECOND_PATH, SECOND_KEY, COMPACT)
    allow(owner)
    return owner


async def cleaned(world: World, path: PartitionPath = PATH) -> int:
    """Return how many live segments of the log are cleaned."""
    return sum([1 async for one in walk(world.reading, path) if one.is_live and one.name.cleaning])


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


async def hidden(world: World) -> int:
    """Return how many files are left that a cleaned segment hides."""
    return sum([1 async for one in walk(world.reading, PATH) if not one.is_live])


async def put_again(world: World, path: str, data: bytes) -> None:
    """Replace the file, as a repair does."""
    await world.reading.delete(path)
    await write_once(world.reading, path, data)
