"""A datanode, the NameNode or etcd answers nothing for 100 ms or a second: which produces and fetches that delays.

| what stalls | a produce, and a fetch of it, may wait longer for |
| --- | --- |
| a datanode | the stall, through its pipelines; at most until it is found silent and a file is opened elsewhere |
| the NameNode | nothing, if the segment is open; else the stall and the opening |
| etcd | nothing, if the segment is open; else the stall and the opening |

Records are due at fixed times, an open loop; a wait is counted from then.  What a wait may be is held against the
longest one before the stall.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceResponse

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.simulation.cluster_checks import BugsTold
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.histories import seeds_wanted
from tests.simulation.kafka_clients import BYTES_MAX, check, create_topic, produce_request
from tests.simulation.kafka_world import CONFIG
from tests.simulation.metadata_clients import FETCH, PRODUCE, find_leaders

TOPIC = "orders"
NODES, PARTITIONS = 3, 4
EVERY_S = 0.04
"""Between two records of a partition."""
BEFORE_S = 5.0
AFTER_S = 3.0
STALLS_S = (0.1, 1.0)
HDFS = Faults(call_s=(0.0005, 0.001), ack_s=(0.0005, 0.002))
LATENCY_S = 0.001
SLACK_S = 0.005
"""By which chance makes the longest of a few hundred waits longer than the longest of as many others."""
SILENT_S = BrokerConfig().silent_flush_ms / 1000 + 0.1
"""In which a silent datanode is found.  Here a probe of it fails at once; and looks are a moment apart."""
OPEN_S = 0.05
"""For an opening: a create, a registration, a rename."""
FILLING = bytes(1000)
DUE = struct.Struct("<d")
SEEDS = range(seeds_wanted() // 1000 or 1)


class Waits:
    """Seconds from when each record of a partition was due, until it was acknowledged or read."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []

    def add(self, due: float) -> None:
        self._found.append((due, asyncio.get_running_loop().time() - due))

    def longest(self, since: float, before: float) -> float:
        """Return the longest of what was due in this time."""
        return max(wait for due, wait in self._found if since <= due < before)


class Load:
    """A producer and a consumer of each partition, at its leader."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.now = asyncio.get_running_loop().time
        self.acked = [Waits() for _ in range(PARTITIONS)]
        self.read = [Waits() for _ in range(PARTITIONS)]
        self.is_over = False
        self.leaders: dict[int, str] = {}

    async def produce(self, partition: int) -> None:
        """Send a record each ``EVERY_S``, whether the ones before are acknowledged or not."""
        client, sent = ClusterClient(self.world, self.leaders[partition]), []
        while not self.is_over:
            sent.append(asyncio.create_task(self._send(client, partition, self.now())))
            await asyncio.sleep(EVERY_S)
        await asyncio.gather(*sent)
        client.close()

    async def _send(self, client: ClusterClient, partition: int, due: float) -> None:
        request = produce_request(TOPIC, partition, bytes(build_batch([Record(value=DUE.pack(due) + FILLING)])), -1)
        response = await client.call(request, ProduceResponse, PRODUCE)
        check(response.responses[0].partition_responses[0].error_code)
        self.acked[partition].add(due)

    async def consume(self, partition: int) -> None:
        """Read what is produced, at the end of the log."""
        client, offset = ClusterClient(self.world, self.leaders[partition]), 0
        Topic = FetchRequest.FetchTopic
        while not self.is_over:
            part = Topic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=BYTES_MAX
            )
            request = FetchRequest(
                replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=BYTES_MAX, isolation_level=0, session_id=0,
                session_epoch=-1, topics=[Topic(topic=TOPIC, partitions=[part])], forgotten_topics_data=[], rack_id="",
            )  # fmt: skip
            response = await client.call(request, FetchResponse, FETCH)
            offset = self._take(partition, offset, response.responses[0].partitions[0])
        client.close()

    def _take(self, partition: int, offset: int, part: Any) -> int:
        check(part.error_code)
        for batch in read_batches(memoryview(bytes(part.records or b""))):
            for record in read_records(batch):
                assert record.value is not None
                self.read[partition].add(*DUE.unpack_from(record.value))
            offset = batch.next_offset
        return offset

    async def ask_namenode(self) -> None:
        """Call the NameNode, as a process beside the others."""
        await MemoryFileSystem(self.world.storage, "test").replicas_max()

    async def ask_etcd(self) -> None:
        """Read a key, as a process beside the others."""
        await MemoryKeyValue(self.world.store).get("none")

    def driver(self, partition: int) -> PartitionDriver:
        """Return the partition at its owner."""
        for place in self.world.places:
            node = place.process.node if place.process is not None else None
            if node is not None and node.broker is not None:
                for driver in node.broker.broker.partitions():
                    if (driver.path.topic, driver.path.partition) == (TOPIC, partition):
                        return driver
        raise AssertionError(f"partition {partition} has no owner")

    async def stall(
        self, stall: Callable[[float], None], seconds: float, probe: Callable[[], Awaitable[Any]] | None = None
    ) -> dict[int, float]:
        """Stall something for so long; return by how much longer each partition's waits were than before.

        ``probe`` must wait for the end of the stall: else nothing is stalled.
        """
        since = self.now()
        stall(seconds)
        if probe is not None:
            await probe()
            assert seconds - 1e-6 <= self.now() - since <= seconds + SLACK_S
        await asyncio.sleep(since + seconds + AFTER_S - self.now())
        found = {}
        for partition in range(PARTITIONS):
            kinds = (self.acked[partition], self.read[partition])
            found[partition] = max(
                each.longest(since - 1, since + seconds + 1) - each.longest(since - 4, since - 1) for each in kinds
            )
        return found


@asynccontextmanager
async def load(seed: int, **config: Any) -> AsyncIterator[Load]:
    """Three processes with all roles, and clients that are warm."""
    world = ClusterWorld(seed, faults=HDFS, config=replace(CONFIG, **{"log_segment_bytes": 1 << 30, **config}),
                         latency_s=LATENCY_S)  # fmt: skip
    with BugsTold(world):
        for number in range(NODES):
            world.place(f"node{number}", "controller", "broker", "coordinator", "proxy")
        await create_topic(world, TOPIC, PARTITIONS)
        one = Load(world)
        client = world.client()

        while len(set(one.leaders.values())) < NODES:  # Metadata has no notice of a change
            await asyncio.sleep(0.1)
            one.leaders, _ = await find_leaders(client, TOPIC)
        client.close()
        working = [asyncio.create_task(each) for p in range(PARTITIONS) for each in (one.produce(p), one.consume(p))]
        await asyncio.sleep(BEFORE_S)
        yield one
        one.is_over = True
        await asyncio.gather(*working)
        await world.shut()
        assert not world.observed.errors, world.observed.errors


@pytest.mark.parametrize("seconds", STALLS_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_datanode_that_stalls_delays_the_pipelines_through_it_by_the_stall_at_most(
    seed: int, seconds: float
) -> None:
    async with load(seed) as one:
        storage, loop = one.world.storage, asyncio.get_running_loop()
        nodes = {partition: set(one.driver(partition).nodes) for partition in range(PARTITIONS)}
        through = {name: {p for p in nodes if name in nodes[p]} for name in storage.datanodes}
        stalled = next(name for name, found in through.items() if 0 < len(found) < PARTITIONS)

        def stall(seconds: float) -> None:
            storage.stop_datanode(stalled)
            loop.call_later(seconds, storage.resume_datanode, stalled)

        longer = await one.stall(stall, seconds)
        for partition, found_s in longer.items():
            if partition in through[stalled]:
                assert found_s <= min(seconds, SILENT_S + OPEN_S) + SLACK_S, longer
                assert found_s >= seconds / 2 or seconds > SILENT_S, "the stall was noticed"
            else:
                assert found_s <= SLACK_S, longer


@pytest.mark.parametrize("seconds", STALLS_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_namenode_that_stalls_delays_nothing_into_open_segments(seed: int, seconds: float) -> None:
    async with load(seed) as one:
        segments = [one.driver(partition).machine.current for partition in range(PARTITIONS)]
        longer = await one.stall(one.world.storage.stall_namenode, seconds, one.ask_namenode)
        assert max(longer.values()) <= SLACK_S, longer
        assert [one.driver(partition).machine.current for partition in range(PARTITIONS)] == segments


@pytest.mark.parametrize("seconds", STALLS_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_namenode_that_stalls_while_segments_roll_delays_by_the_stall_and_an_opening(
    seed: int, seconds: float
) -> None:
    async with load(seed, log_segment_bytes=20_000) as one:
        longer = await one.stall(one.world.storage.stall_namenode, seconds, one.ask_namenode)
        assert seconds / 2 <= max(longer.values()) <= seconds + OPEN_S, longer


@pytest.mark.parametrize("seconds", STALLS_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_etcd_that_stalls_delays_nothing_into_open_segments(seed: int, seconds: float) -> None:
    async with load(seed) as one:
        store = one.world.store
        epochs = [one.driver(partition).machine.epoch for partition in range(PARTITIONS)]
        longer = await one.stall(lambda seconds: store.stall(one.now() + seconds), seconds, one.ask_etcd)
        assert max(longer.values()) <= SLACK_S, longer
        assert [one.driver(partition).machine.epoch for partition in range(PARTITIONS)] == epochs


@pytest.mark.parametrize("seconds", STALLS_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_etcd_that_stalls_while_segments_roll_delays_by_the_stall_and_an_opening(
    seed: int, seconds: float
) -> None:
    async with load(seed, log_segment_bytes=20_000) as one:
        store = one.world.store
        longer = await one.stall(lambda seconds: store.stall(one.now() + seconds), seconds, one.ask_etcd)
        assert seconds / 2 <= max(longer.values()) <= seconds + OPEN_S, longer
