"""The choice among several checkpoints that a takeover can continue from."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any
from uuid import UUID

import pytest

from bmq.broker import events as ev
from bmq.broker.broker import Broker
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.recovery import LOOKS_AT_ONCE, Takeover
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint, ProducerBatch, ProducerState
from bmq.storage.filesystem import FileStatus, StorageUnavailable, write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.recovery import FencedSegment, Found
from tests.harness.fakes import FakeClock
from tests.harness.members import memory_broker

KEY = PartitionKey(UUID(int=7), 0)


def checkpoint(end_offset: int, log_start: int) -> Checkpoint:
    producer = ProducerState(
        producer_id=1,
        epoch=0,
        coordinator_epoch=-1,
        last_timestamp=1,
        txn_start=-1,
        batches=(ProducerBatch(end_offset - 1, end_offset - 1, 0, 1),),
    )
    return Checkpoint(
        key=KEY,
        segment=SegmentName(0, 1, 0),
        position=100 * end_offset,
        end_offset=end_offset,
        log_start=log_start,
        index=array("q"),
        producers=(producer,),
    )


async def owned() -> bool:
    return True


def takeover(broker: Broker, find: Any) -> Takeover:
    """Return a takeover by a broker that finds checkpoints with ``find``."""
    broker.context.journals.find = find  # type: ignore[method-assign]
    path = PartitionPath("orders", str(KEY.topic_id), 0)
    return Takeover(broker.context, SegmentFiles(broker.context, path, is_synced=False, replication=3), KEY, 65_536)


@pytest.mark.parametrize("journals", [("older", "newer"), ("newer", "older"), ("older", "newer", "none")])
async def test_the_latest_checkpoint_and_the_highest_log_start_count(journals: tuple[str, ...]) -> None:
    """A journal of a broker that owned the partition before may hold a higher log start than the latest one."""
    kept = {"older": checkpoint(5, log_start=3), "newer": checkpoint(8, log_start=2)}

    async def find(incarnation: str, key: PartitionKey, *, passes_damaged: bool) -> Checkpoint | None:
        assert key == KEY
        return kept.get(incarnation)

    broker = memory_broker(clock=FakeClock(1))
    event = await takeover(broker, find).recover(ev.RecoverLog((), (), journals), is_ours=owned)
    assert isinstance(event, ev.LogRecovered)
    assert event.checkpoint == kept["newer"]
    assert event.producers == kept["newer"].producers
    assert (event.recovered.end_offset, event.log_start) == (8, 3)
    assert broker.reports == []


async def test_a_bounded_number_of_journals_is_read_at_once() -> None:
    under_way, most = 0, 0

    async def find(incarnation: str, key: PartitionKey, *, passes_damaged: bool) -> Checkpoint | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return checkpoint(8, log_start=2) if incarnation == "b-349" else None

    journals = tuple(f"b-{number}" for number in range(350))
    broker = memory_broker(clock=FakeClock(1))
    event = await takeover(broker, find).recover(ev.RecoverLog((), (), journals), is_ours=owned)
    assert isinstance(event, ev.LogRecovered)
    assert event.checkpoint == checkpoint(8, log_start=2)
    assert most == LOOKS_AT_ONCE
    assert broker.reports == []


@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_segment_that_lost_its_index_and_bytes_is_reported_once(*, is_settled: bool) -> None:
    """Check its length in each look at the index, and report the loss by the segment's name."""

    async def find(incarnation: str, key: PartitionKey, *, passes_damaged: bool) -> Checkpoint | None:
        return None

    broker = memory_broker(clock=FakeClock(1))
    taken, name = takeover(broker, find), SegmentName(0, 1, 0)
    data = build_batch([Record(value=b"x")], base_timestamp=1)
    await write_once(broker.context.fs, PartitionPath("orders", str(KEY.topic_id), 0).log(name), bytes(data))
    entry = SegmentEntry(name=name, spare="", holder="", file_id=0).closed(len(data) + 20, 1)
    fenced = FencedSegment(name=name, found=Found.FINAL, length=len(data))
    effect = ev.RecoverLog((fenced,), (entry,), ("gone",), is_settled=is_settled, epoch=2, last=(1, 0))
    for _ in range(2):
        await taken.recover(effect, is_ours=owned)
        for report in taken.losses:
            report()
        assert [report for report in broker.reports if "storage lost" in str(report)] == broker.reports[-1:]
        assert len(broker.reports) == 1
        broker.reports.clear()


async def test_a_check_of_an_attempt_that_failed_is_not_reported_beside_the_next() -> None:
    """Note a loss by the segment's name: the first attempt's check ends behind the begin of the second."""
    broker = memory_broker(clock=FakeClock(1))
    name, status, checks = SegmentName(0, 1, 0), broker.context.fs.status, 0
    path = PartitionPath("orders", str(KEY.topic_id), 0)

    async def find(incarnation: str, key: PartitionKey, *, passes_damaged: bool) -> Checkpoint | None:
        if checks < 2:
            raise StorageUnavailable("once")
        return None

    async def slow(place: str) -> FileStatus:
        nonlocal checks
        if place == path.log(name):
            checks += 1
            await asyncio.sleep(2 if checks == 1 else 3)
        return await status(place)

    taken = takeover(broker, find)
    data = build_batch([Record(value=b"x")], base_timestamp=1)
    await write_once(broker.context.fs, path.log(name), bytes(data))
    broker.context.fs.status = slow  # type: ignore[method-assign,assignment]
    entry = SegmentEntry(name=name, spare="", holder="", file_id=0).closed(len(data) + 20, 1)
    fenced = FencedSegment(name=name, found=Found.FINAL, length=len(data))
    effect = ev.RecoverLog((fenced,), (entry,), ("gone",), epoch=2, last=(1, 0))
    with pytest.raises(StorageUnavailable):
        await taken.recover(effect, is_ours=owned)
    checks = max(checks, 2)
    await taken.recover(effect, is_ours=owned)
    for report in taken.losses:
        report()
    assert len(broker.reports) == 1
