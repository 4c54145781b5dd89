"""Logs of a partition in tests: batches with timestamps, and Kafka's questions about their offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
)

from bmq.broker.config import BrokerConfig
from bmq.core.errors import ErrorCode
from bmq.storage.memory import Faults
from tests.unit.broker.world import World, batch

ROLLING = BrokerConfig(block_bytes=1 << 20, idle_close_ms=1000)


SLOW = Faults(ack_s=(0.5, 0.5))
"""A flush takes half a second."""


T0 = 1_700_000_000_000


async def fill(w: World, *timestamps: int, rolls_every: int = 0) -> None:
    """Produce a batch of one record for each timestamp; with ``rolls_every`` so many batches a segment."""
    for number, timestamp in enumerate(timestamps):
        assert (await w.produce_one(batch(base_timestamp=T0 + timestamp))).error_code == 0
        if rolls_every and (number + 1) % rolls_every == 0:
            await asyncio.sleep(3)  # it closes as idle


async def offsets(
    w: World, *timestamps: int, version: int = 11, epoch: int = -1, partition: int = 0, timeout_ms: int = 1000
) -> list[Any]:
    """Return error, offset, timestamp and leader epoch for each timestamp."""
    Topic = ListOffsetsRequest.ListOffsetsTopic
    found = []
    for timestamp in timestamps:
        part = Topic.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp, max_num_offsets=1
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=1, topics=[Topic(name="orders", partitions=[part])], timeout_ms=timeout_ms
        )
        response = await w.call(request, ListOffsetsResponse, version)
        ((result,),) = [topic.partitions for topic in response.topics]
        name = ErrorCode(result.error_code).name
        found.append((name, result.offset, result.timestamp, result.leader_epoch))
    return found
