"""An owner that stood still while its partition was taken over says nothing of its log before it knows that."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from kafka.protocol.producer import ProduceResponse

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
from bmq.proxy.handlers.list_offsets import LATEST, MAX_TIMESTAMP
from tests.simulation.abandoned_requests import insist, offset_for
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Place
from tests.simulation.kafka_clients import check, produce_request
from tests.simulation.test_standstill import TOPIC, process_of, three_nodes


def owner(world: ClusterWorld) -> Place:
    """Return the place of the broker that has the partition, as all processes see it; the first one's view counts."""
    node = process_of(next(place for place in world.places if not process_of(place).is_stopped)).node
    assert node is not None
    incarnation = node.view.owner_of(PartitionKey(node.catalog.topics[TOPIC].topic_id, 0))
    return next(place for place in world.places if process_of(place).incarnation == incarnation)


async def write(world: ClusterWorld, client: ClusterClient, count: int, timestamp: int) -> int:
    """Append records with this timestamp; return the end of the log."""
    data = bytes(build_batch([Record(value=b"v")] * count, base_timestamp=timestamp))

    async def append(client: ClusterClient) -> int:
        response = await client.call(produce_request(TOPIC, 0, data, -1), ProduceResponse, 9)
        part = response.responses[0].partition_responses[0]
        check(part.error_code)
        return int(part.base_offset) + count

    return int(await insist(world, client, append))


@pytest.mark.seed(1)
@pytest.mark.parametrize("stopped_s", [1.4, 10.0])
@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 2_000])
async def test_rule_2_an_owner_that_stood_still_says_nothing_of_its_old_log(timestamp: int, stopped_s: float) -> None:
    """Clients connect to it while it stands still, when another broker has acknowledged more records.

    It reaches the store late, so that it does not learn of its successor at once.
    """
    async with three_nodes(1) as world:
        before = await write(world, anywhere := world.client(), 3, 1_000)
        anywhere.close()
        old = owner(world)
        other = ClusterClient(world, next(each.host for each in world.places if each is not old))
        stopped, began = process_of(old), world.loop.time()
        stopped.stop()
        while owner(world) is old:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        end = await write(world, other, 2, 2_000)
        await asyncio.sleep(max(0.0, began + stopped_s - world.loop.time()))
        old.cut_store(True)
        asked = [asyncio.create_task(ask_late(world, old.host, timestamp)) for _ in range(3)]
        await asyncio.sleep(0.1)
        stopped.resume()
        await asyncio.sleep(2)
        old.cut_store(False)
        found = {await each for each in asked}
        assert found == {end if timestamp == LATEST else before}
        other.close()


async def ask_late(world: ClusterWorld, host: str, timestamp: int) -> int:
    """Return the answer of any connection, however often it is asked."""
    client = ClusterClient(world, host)
    found = await insist(world, client, partial(offset_for, topic=TOPIC, partition=0, timestamp=timestamp))
    client.close()
    return int(found)
