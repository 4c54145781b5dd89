"""A proxy that was no member for a while, and whose id towards Kafka clients is another's by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bmq.core.config import ROLES
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Record, build_batch
from bmq.meta.cluster.keys import member_key, node_id_key
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.server.node import Node
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Process
from tests.simulation.kafka_clients import create_topic

BROKER = 4
"""Kafka's resource type."""


@pytest.mark.seed(1)
async def test_one_that_it_chose_itself_is_chosen_anew_and_everybody_told() -> None:
    world, process = await _one(has_ids=False)
    node = _node(process)
    assert node.config.node_id == 0
    with pytest.raises(RequestError, match="entity-default"):
        await node.admin.alter_broker_configs(1, {"message.max.bytes": "1000"})
    client = ClusterClient(world, "p0")
    assert await _write(client, 2_000) == ErrorCode.NONE
    await _steal(world, process, 0)
    await _until(lambda: node.config.node_id == 1)
    await _until(lambda: node.view.members[process.incarnation].kafka.port > 0)

    response = await client.call(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse, 12)
    assert [(each.node_id, each.host) for each in response.brokers] == [(1, "p0")]
    assert response.controller_id == 1
    assert {part.leader_id for topic in response.topics for part in topic.partitions} == {1}
    assert await _max_bytes(client, "1") == "1048588", "it answers for the id that it has now"
    await _until_async(lambda: _write(client, 10), ErrorCode.NONE)
    client.close()
    await world.shut()
    assert world.observed.errors == []


@pytest.mark.seed(1)
async def test_without_one_that_it_was_given_it_ends() -> None:
    world, process = await _one(has_ids=True)
    world.places[0].is_on = False
    await _steal(world, process, 0)
    await process.is_over.wait()
    (error,) = world.observed.errors
    assert "give this one another --node-id" in error
    await world.shut()


async def _one(*, has_ids: bool) -> tuple[ClusterWorld, Process]:
    """Start a cluster of one process and return both."""
    world = ClusterWorld(1, has_ids=has_ids)
    place = world.place("p0", *ROLES)
    await create_topic(world, "t", 1)
    assert place.process is not None
    return world, place.process


async def _steal(world: ClusterWorld, process: Process, node_id: int) -> None:
    """Declare the process dead and give its id to another process before it joins again."""
    kv = MemoryKeyValue(world.store)
    key = member_key(world.config.cluster, process.incarnation)
    await kv.commit([], [Delete(key), Put(node_id_key(world.config.cluster, node_id), b"another")])


def _node(process: Process) -> Node:
    assert process.node is not None
    return process.node


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.01)


async def _until_async(ask: Callable[[], Coroutine[Any, Any, ErrorCode]], wanted: ErrorCode) -> None:
    async with asyncio.timeout(60):
        while await ask() is not wanted:  # noqa: ASYNC110  (virtual time)
            await asyncio.sleep(0.1)


async def _write(client: ClusterClient, size: int) -> ErrorCode:
    Topic = ProduceRequest.TopicProduceData
    batch = build_batch([Record(value=b"x" * size)])
    part = Topic.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=20_000, topic_data=[Topic(name="t", partition_data=[part])]
    )
    response = await client.call(request, ProduceResponse, 9)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


async def _max_bytes(client: ClusterClient, name: str) -> str:
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    asked = Resource(resource_type=BROKER, resource_name=name, configuration_keys=["message.max.bytes"])
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=False)
    (result,) = (await client.call(request, DescribeConfigsResponse, 4)).results
    assert result.error_code == 0, result.error_message
    return str(result.configs[0].value)
