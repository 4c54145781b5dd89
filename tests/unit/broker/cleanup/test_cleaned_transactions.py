"""Transactions in a log that its owner compacts: the marker may lie in a segment that the round does not take."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.cleaning.plan import Reason
from bmq.storage.log_reader import LogReader
from bmq.storage.segment import decode_idx, encode_idx
from tests.unit.broker.cleanup.compacted_logs import COMPACT, compacted, put_again
from tests.unit.broker.cleanup.upkeep import CLOCK, PATH, Owner, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]

PRODUCER = 3
FILLER = (b"filler", b".".ljust(100))


async def write(owner: Owner, key: bytes, value: bytes, sequence: int = -1) -> None:
    """Write a batch of one record: plain, or with a ``sequence`` in the producer's transaction."""
    is_open = sequence >= 0
    data = build_batch(
        [Record(key=key, value=value.ljust(100))],
        base_timestamp=CLOCK.now_ms(),
        producer_id=PRODUCER if is_open else -1,
        producer_epoch=0 if is_open else -1,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if is_open else 0,
    )
    await owner.driver.append(memoryview(data))


async def offsets(world: World, end: int) -> list[int]:
    """Return the offsets of all records of data."""
    log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=256)), PATH)
    found, start = list[int](), 0
    while start < end:
        for batch in read_batches(memoryview(await log.read(start, 500, end))):
            start = batch.next_offset
            found += [] if batch.is_control else [record.offset for record in read_records(batch)]
    return found


def why_not(owner: Owner) -> Reason | None:
    (care,) = owner.janitor.queue.states.values()
    assert care.cleaning is not None
    assert care.cleaning.plan is not None
    return care.cleaning.plan.reason


async def test_aborted_data_replaces_nothing_though_its_marker_is_too_young_for_the_round() -> None:
    """The segment of the marker is closed, and behind the round's end by min.compaction.lag.ms."""
    world = World()
    config = replace(COMPACT, cleaning=replace(COMPACT.cleaning, min_compaction_lag_ms=50_000))
    owner = await compacted(world, config=config)
    await write(owner, b"k", b"committed")
    await write(owner, b"k", b"aborted", sequence=0)
    await write(owner, *FILLER)
    await asyncio.sleep(100)
    await owner.driver.end_transaction(TransactionMarker(PRODUCER, 0, 0, Marker.ABORT, 1))
    for _ in range(8):
        await write(owner, *FILLER)
    for _ in range(3):
        await owner.rounds(5)
    assert (owner.janitor.cleaning.cleaner.rounds, why_not(owner)) == (1, Reason.MIN_LAG)
    found = await offsets(world, owner.driver.machine.high_watermark)
    assert 0 in found, "the committed value is gone"
    assert 1 not in found, "aborted data is there after a round"


async def test_an_open_transaction_bounds_the_round() -> None:
    """Records of an open transaction replace nothing, and nothing replaces them."""
    world = World()
    owner = await compacted(world)
    await write(owner, b"k", b"committed")
    await write(owner, b"k", b"open", sequence=0)
    for _ in range(4):
        await write(owner, b"k", b"later")
    await owner.rounds(5)
    assert why_not(owner) is Reason.OPEN_TRANSACTION
    assert await offsets(world, 6) == [0, 1, 2, 3, 4, 5]
    await owner.driver.end_transaction(TransactionMarker(PRODUCER, 0, 0, Marker.ABORT, 1))
    for _ in range(3):
        await write(owner, *FILLER)
    for _ in range(3):
        await owner.rounds(30)
    found = await offsets(world, owner.driver.machine.high_watermark)
    assert found[0] == 5, "the last committed value of the key"


@pytest.mark.parametrize("harm", ["damaged", "ends early"])
async def test_aborted_data_replaces_nothing_though_the_index_with_its_marker_cannot_be_read(harm: str) -> None:
    """The record names the segment of the marker, so no round takes it: only its index tells of the marker."""
    world = World()
    owner = await compacted(world)
    await write(owner, b"k", b"committed")
    await write(owner, b"k", b"aborted", sequence=0)
    await write(owner, *FILLER)
    await owner.driver.end_transaction(TransactionMarker(PRODUCER, 0, 0, Marker.ABORT, 1))
    await asyncio.sleep(1_000)
    assert owner.driver.machine.is_all_closed
    newest = owner.driver.machine.record.segments[-1].name
    assert newest.base == 3, "the segment of the marker"
    idx = PATH.idx(newest)
    sound = await world.reading.read(idx, 0, 1 << 20)
    early = replace(decode_idx(sound), end_offset=3, position=0, aborted=())
    await put_again(world, idx, b"no index" if harm == "damaged" else encode_idx(early))
    for _ in range(5):
        await owner.rounds(30)
    assert (owner.janitor.failures > 0) is (harm == "damaged"), "the damaged index was read"
    assert 0 in await offsets(world, 4), "the committed value is gone"
    await put_again(world, idx, sound)
    owner.configure(index_interval_bytes=owner.driver.machine.config.index_interval_bytes)
    for _ in range(5):
        await owner.rounds(30)
    assert (await offsets(world, 4))[0] == 0, "the committed value is gone"
    assert 1 not in await offsets(world, 4), "aborted data is there after a round"
