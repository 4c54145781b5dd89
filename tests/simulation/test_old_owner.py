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
from tests.simulation.abandoning_askers import fetch_end, sizes_of
from tests.simulation.cluster_events import run_in
from tests.simulation.cluster_world import ClusterClient, ClusterWorld, Place, Process
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


@pytest.mark.seed(1)
async def test_rule_2_an_owner_that_stood_still_tells_no_old_size_and_no_old_end() -> None:
    """The size is counted right before the process is stopped: nothing makes it count again.

    The end is that of the lag of groups, which other processes ask for (``proxy.routing.high_watermarks``).
    """
    async with three_nodes(1) as world:
        await write(world, anywhere := world.client(), 3, 1_000)
        anywhere.close()
        old = owner(world)
        other = ClusterClient(world, next(each.host for each in world.places if each is not old))
        there = ClusterClient(world, old.host)
        (before,) = await insist(world, there, partial(sizes_of, name=TOPIC))
        there.close()
        stopped = process_of(old)
        stopped.stop()
        while owner(world) is old:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        end = await write(world, other, 2, 2_000)
        old.cut_store(True)
        late = ClusterClient(world, old.host)
        sizes = asyncio.create_task(insist(world, late, partial(sizes_of, name=TOPIC)))
        reader = ClusterClient(world, old.host)
        fetched = asyncio.create_task(insist(world, reader, partial(fetch_end, name=TOPIC, offset=end)))
        ends: list[int] = []
        run_in(stopped, _watch_end(stopped, ends))
        await asyncio.sleep(0.1)
        stopped.resume()
        await asyncio.sleep(2)
        old.cut_store(False)
        assert all(size > before for size in await sizes)
        assert await fetched == end, "the end of the log is not out of range"
        assert ends
        assert set(ends) <= {-1, end}
        for client in (late, reader, other):
            client.close()


async def _watch_end(process: Process, ends: list[int]) -> None:
    """Note the end that the process tells others, until its owner is known."""
    node = process.node
    assert node is not None
    assert node.broker is not None
    key = PartitionKey(node.catalog.topics[TOPIC].topic_id, 0)
    for _ in range(20):
        ends.append(node.broker.assigned.proven_watermark(key))
        await asyncio.sleep(0.1)


async def ask_late(world: ClusterWorld, host: str, timestamp: int) -> int:
    """Return the answer of any connection, however often it is asked."""
    client = ClusterClient(world, host)
    found = await insist(world, client, partial(offset_for, topic=TOPIC, partition=0, timestamp=timestamp))
    client.close()
    return int(found)
