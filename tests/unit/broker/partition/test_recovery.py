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
from bmq.storage.checkpoint import Checkpoint, ProducerBatch, ProducerState
from bmq.storage.layout import PartitionPath
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
