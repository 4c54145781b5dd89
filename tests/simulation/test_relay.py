"""A proxy that does not reach a broker which another one reaches: packets between the two are lost, without an error.

There is one broker, so that nothing can be moved to where it is reached.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.storage.memory import Faults
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Process
from tests.simulation.histories import seeds_wanted
from tests.simulation.kafka_clients import create_topic

TOPIC = "orders"
PARTITIONS = 3
CUT_S, AFTER_S = 30.0, 30.0
SEEDS = range(seeds_wanted() // 1000 or 1)


class Producer:
    """Writes to one partition through ``p0``, one batch after another; never sends one again."""

    def __init__(self, world: ClusterWorld, partition: int) -> None:
        self.acked = 0
        self.errors: list[tuple[float, str]] = []
        self.longest_s = 0.0
        self.is_over = False
        self._partition = partition
        self._client = ClusterClient(world, "p0")

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.is_over:
            batch = build_batch(
                [Record(value=b"x")], producer_id=1000 + self._partition, producer_epoch=0, base_sequence=self.acked
            )
            began = loop.time()
            response = await self._client.call(_request(self._partition, bytes(batch)), ProduceResponse, 9)
            (reply,) = response.responses[0].partition_responses
            self.longest_s = max(self.longest_s, loop.time() - began)
            if reply.error_code:
                self.errors.append((began, ErrorCode(reply.error_code).name))
            else:
                assert reply.base_offset == self.acked
                self.acked += 1
            await asyncio.sleep(0.05)
        self._client.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_produces_go_on_through_another_proxy(seed: int) -> None:
    await _story(seed)


async def _story(seed: int) -> None:
    world = ClusterWorld(seed, faults=Faults())
    for host, role in (("c0", "controller"), ("b0", "broker"), ("k0", "coordinator"), ("p0", "proxy"), ("p1", "proxy")):
        world.place(host, role)
    await create_topic(world, TOPIC, PARTITIONS)
    producers = [Producer(world, partition) for partition in range(PARTITIONS)]
    async with asyncio.TaskGroup() as group:
        for producer in producers:
            group.create_task(producer.run())
        await asyncio.sleep(5)
        world.network.cut("p0", "b0")
        await asyncio.sleep(CUT_S)
        before = [producer.acked for producer in producers]
        await asyncio.sleep(1)
        assert all(producer.acked > count + 5 for producer, count in zip(producers, before, strict=True))
        assert not _reaches(world, "p0", "b0")
        assert _relayed(world, "p0") > 0
        world.network.heal("p0", "b0")
        await asyncio.sleep(AFTER_S)
        assert _reaches(world, "p0", "b0")
        assert _relayed(world, "p0") == 0
        for producer in producers:
            producer.is_over = True
    assert [producer.errors for producer in producers] == [[]] * PARTITIONS
    assert max(producer.longest_s for producer in producers) < 5
    await world.shut()
    assert world.observed.errors == []


def _request(partition: int, batch: bytes) -> Any:
    Topic = ProduceRequest.TopicProduceData
    part = Topic.PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=20_000, topic_data=[Topic(name=TOPIC, partition_data=[part])]
    )


def _process(world: ClusterWorld, host: str) -> Process:
    (place,) = [place for place in world.places if place.host == host]
    assert place.process is not None
    return place.process


def _reaches(world: ClusterWorld, proxy: str, broker: str) -> bool:
    node = _process(world, proxy).node
    assert node is not None
    assert node.proxy.remote_owners is not None
    return node.proxy.remote_owners.is_up(_process(world, broker).incarnation)


def _relayed(world: ClusterWorld, proxy: str) -> int:
    node = _process(world, proxy).node
    assert node is not None
    assert node.proxy.remote_owners is not None
    return node.proxy.remote_owners.relayed
