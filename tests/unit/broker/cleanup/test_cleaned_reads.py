"""Readers that still have bytes of segments which rounds of cleaning have replaced, and their aborted transactions."""

from __future__ import annotations

import pytest

from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.records.cursor import read_batches
from bmq.storage.aborted_reader import AbortedReader, SegmentReplaced
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.log_reader import LogReader
from tests.unit.broker.cleanup.compacted_logs import compacted, hidden, update
from tests.unit.broker.cleanup.upkeep import CLOCK, PATH, World

pytestmark = [pytest.mark.slow, pytest.mark.leaves_tasks]


async def test_cached_bytes_of_an_aborted_transaction_come_with_its_entry() -> None:
    """The second round after the abort has no entry for it, as it found no data: the bytes must not come alone."""
    world = World()
    owner = await compacted(world)
    offsets = list[int]()
    for sequence, kind in enumerate((Marker.ABORT, Marker.COMMIT)):  # of a producer's last batch the header would stay
        data = build_batch(
            [Record(key=b"tx", value=b"of a transaction".ljust(100))], base_timestamp=CLOCK.now_ms(), producer_id=9,
            producer_epoch=0, base_sequence=sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        offsets.append(await owner.driver.append(memoryview(data)))
        await update(owner, 4)
        await owner.driver.end_transaction(TransactionMarker(9, 0, 0, kind, 1))
        await update(owner, 4)
    opened = offsets[0]
    log = LogReader(BlockCache(world.reading, ReadConfig(block_bytes=1 << 20)), PATH)
    end = owner.watermark
    await log.read_slice(opened, 1, end)  # at read_uncommitted
    for _ in range(2):
        await update(owner, 8)
        for _ in range(3):
            await owner.rounds(10)
    assert owner.janitor.cleaning.cleaner.rounds == 2
    assert await hidden(world) == 0
    with pytest.raises(SegmentReplaced):
        await AbortedReader(log).with_aborted(await log.read_slice(opened, 1, end), opened, end)
    records = await AbortedReader(log).read(opened, 1 << 20, end, end)
    found = [batch for data in records.buffers for batch in read_batches(memoryview(data))]
    of_producer = [batch.base_offset for batch in found if batch.producer_id == 9 and batch.count]
    assert [offset for offset in of_producer if offset in offsets] == offsets[1:]
    assert records.aborted == ()
