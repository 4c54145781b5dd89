"""Compacted logs in tests: owners whose janitor cleans a log of one batch a segment, and what a reader finds."""

from __future__ import annotations

from dataclasses import replace

from bmq.broker.config import LogConfig
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.plan import CleaningConfig
from bmq.storage.filesystem import write_once
from bmq.storage.log_reader import LogReader
from bmq.storage.log_segments import walk
from tests.unit.broker.cleanup.upkeep import CLOCK, CONFIG, PATH, Owner, World

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


async def compacted(world: World, name: str = "a", config: LogConfig = COMPACT) -> Owner:
    """Return an owner of a compacted log, in a cluster whose processes all support cleaned segments."""
    owner = await world.owner(name, config, BRISK)
    allow(owner)
    return owner


def allow(owner: Owner) -> None:
    """Let the owner write cleaned segments."""
    for context in (owner.broker.context, owner.janitor.cleaning.cleaner._context):
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


async def hidden(world: World) -> int:
    """Return how many files are left that a cleaned segment hides."""
    return sum([1 async for one in walk(world.reading, PATH) if not one.is_live])


async def put_again(world: World, path: str, data: bytes) -> None:
    """Replace the file, as a repair does."""
    await world.reading.delete(path)
    await write_once(world.reading, path, data)
