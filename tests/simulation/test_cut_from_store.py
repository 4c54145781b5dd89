"""Processes that are cut off from the metadata store while clients and the other processes reach them.

Their leases end, and what they had is given to others.  They cannot read that in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic
from tests.simulation.cluster_checks import BugsTold, Through, check_logs, check_quiet
from tests.simulation.cluster_events import run_in
from tests.simulation.cluster_world import ClusterWorld, Place, Process
from tests.simulation.group_clients import Member
from tests.simulation.histories import seeds_wanted
from tests.simulation.kafka_clients import create_topic, produce
from tests.simulation.kafka_world import CONFIG
from tests.simulation.metadata_clients import Committer, MetadataConsumer, MetadataProducer

TOPIC = "orders"
PARTITIONS = 4
CUT_S = 15.0
BOUND_S = 20.0
"""From the cut until everything that clients can leave has been left: a lease (10 s), two rounds of questions to others
(1 s each), and a new owner that opens."""
PAUSE_MAX_S = 3.0
SEGMENT_BYTES = 1 << 20
"""More than is written in a story: while the store is away no segment is begun, and a full one takes no more."""
ROLES = ("controller", "broker", "coordinator", "proxy")
SEEDS = range(seeds_wanted() // 250 or 1)


class Story:
    """A cluster with two of each role, a producer through ``proxy1`` for each partition."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.readers: dict[MetadataConsumer, asyncio.Task[None]] = {}
        self.members: list[asyncio.Task[None]] = []
        self.throughs: list[Through] = []
        for role in ROLES:
            for number in range(2):
                world.place(f"{role}{number}", role)
        self.now = asyncio.get_running_loop().time

    def place(self, host: str) -> Place:
        (place,) = [place for place in self.world.places if place.host == host]
        return place

    def process(self, host: str) -> Process:
        process = self.place(host).process
        assert process is not None
        return process

    def owner_of(self, partition: int) -> str:
        """Return the host of the broker that a partition is assigned to, as ``proxy1`` sees it."""
        node = self.process("proxy1").node
        assert node is not None
        topic: Topic = node.catalog.topics[TOPIC]
        return node.view.owner_of(PartitionKey(topic.topic_id, partition)).rpartition("-")[0]

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = self.now() + seconds
        while not condition():
            assert self.now() < deadline, f"not within {seconds} s: {what}\n{self.world!r}"
            await asyncio.sleep(0.1)

    def through(self, host: str) -> Through:
        """Return the world to a client that uses this proxy only, until the story is over."""
        self.throughs.append(Through(self.world, host))
        return self.throughs[-1]

    def cut(self, *hosts: str) -> None:
        """Cut hosts off from the store; everybody else reaches them."""
        for host in hosts:
            self.place(host).cut_store(True)

    def heal(self, *hosts: str) -> None:
        for host in hosts:
            self.place(host).cut_store(False)

    async def move(self, partition: int, host: str) -> None:
        """Ask ``proxy1`` for it, as an operator does."""
        process = self.process("proxy1")
        node = process.node
        assert node is not None
        assert node.admin is not None
        run_in(process, node.admin.move(TOPIC, partition, self.process(host).incarnation))
        await self.until(lambda: self.owner_of(partition) == host, 10, "it is moved")

    def is_member(self, host: str) -> bool:
        node = self.process(host).node
        assert node is not None
        assert node.joined is not None
        return node.joined.membership.is_member


@asynccontextmanager
async def history(seed: int) -> AsyncIterator[Story]:
    world = ClusterWorld(seed, config=replace(CONFIG, log_segment_bytes=SEGMENT_BYTES))
    with BugsTold(world):
        one = Story(world)
        await create_topic(world, TOPIC, PARTITIONS)
        healthy = one.through("proxy1")
        producing = [asyncio.create_task(produce_slowly(healthy, partition)) for partition in range(PARTITIONS)]
        await one.until(lambda: len(world.observed.acked) == PARTITIONS, 30, "every partition is written to")
        yield one
        await world.heal()
        for reader in one.readers:
            reader.is_over = True
        for each in one.throughs:
            each.is_over = True
        world.is_over = True
        await asyncio.gather(*producing, *one.readers.values())
        await asyncio.gather(*one.members)
        for host in ("proxy0", "proxy1"):
            await check_logs(world, host, {TOPIC: PARTITIONS}, set())
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def produce_slowly(world: Through, partition: int) -> None:
    """Produce a record twice a second, each from another producer."""
    number = 0
    while not world.is_over:
        await produce(world, f"p{partition}-{number}", TOPIC, partition, 1)
        number += 1
        await asyncio.sleep(0.5)


async def demand_progress(one: Story, reader: MetadataConsumer, until: float) -> None:
    """Every partition is read without a long pause from here on."""
    while one.now() < until:
        await asyncio.sleep(PAUSE_MAX_S)
        behind = {p: one.now() - at for p, at in reader.progress_at.items() if one.now() - at > PAUSE_MAX_S}
        assert not behind, f"seconds since something was read of: {behind}, of {one.world!r}"


async def reading_through(one: Story, host: str) -> MetadataConsumer:
    """Return a consumer that has read everything, with metadata from ``host``."""
    reader = MetadataConsumer(one.world, host, TOPIC, set(range(PARTITIONS)))
    await reader.refresh()
    one.readers[reader] = asyncio.create_task(reader.run())
    await one.until(lambda: len(reader.progress_at) == PARTITIONS, 10, "all is read")
    return reader


@pytest.mark.seed(1)
async def test_readers_leave_a_proxy_that_is_cut_off_together_with_a_broker() -> None:
    async with history(1) as one:
        reader = await reading_through(one, "proxy0")
        shared = {p for p in range(PARTITIONS) if reader.leaders[p] == "proxy0" and one.owner_of(p) == "broker0"}
        assert shared, "nobody reads a partition of the broker through the proxy"
        one.cut("proxy0", "broker0")
        await asyncio.sleep(BOUND_S)
        assert not one.is_member("proxy0")
        assert not one.is_member("broker0")
        assert set(reader.leaders.values()) == {"proxy1"}
        await demand_progress(one, reader, one.now() + CUT_S)
        one.heal("proxy0", "broker0")
        await one.until(lambda: one.is_member("proxy0") and one.is_member("broker0"), 10, "both join again")


@pytest.mark.seed(1)
async def test_readers_leave_a_proxy_that_is_cut_off_alone_when_their_partitions_move() -> None:
    """The other proxies stay connected."""

    async with history(1) as one:
        reader = await reading_through(one, "proxy0")
        one.cut("proxy0")
        moved = next(p for p in range(PARTITIONS) if reader.leaders[p] == "proxy0" and one.owner_of(p) == "broker0")
        await one.move(moved, "broker1")
        await asyncio.sleep(BOUND_S)
        await demand_progress(one, reader, one.now() + CUT_S)


@pytest.mark.parametrize("seed", SEEDS)
async def test_readers_and_groups_go_on_whoever_is_cut_off_together(seed: int) -> None:
    """Some processes, never all of a role: clients that go where Metadata sends them miss a bounded time."""

    async with history(seed) as one:
        world = one.world
        readers = [await reading_through(one, host) for host in ("proxy0", "proxy1")]
        cut = [role + "0" for role in ROLES if world.rng.random() < 0.7]
        one.cut(*cut)
        await asyncio.sleep(BOUND_S)
        for reader in readers:
            await demand_progress(one, reader, one.now() + PAUSE_MAX_S)
        member = Member(one.through("proxy1"), "g", TOPIC, PARTITIONS, leaves_after=3)
        await asyncio.wait_for(member.run(), CUT_S)


@pytest.mark.seed(1)
async def test_rule_7_an_outage_of_the_store_takes_nobodys_membership() -> None:
    async with history(1) as one:
        reader = await reading_through(one, "proxy0")
        leaders = dict(reader.leaders)
        one.world.store.stop()
        await asyncio.sleep(BOUND_S)
        assert all(one.is_member(place.host) for place in one.world.places)
        await demand_progress(one, reader, one.now() + CUT_S)
        assert reader.leaders == leaders
        one.world.store.start(one.now())


@pytest.mark.seed(1)
async def test_rule_7_brokers_and_proxies_that_have_all_lost_the_store_go_on() -> None:
    """Cut off all brokers and proxies: a controller sees their leases end, but no other member can take partitions."""

    async with history(1) as one:
        reader = await reading_through(one, "proxy0")
        one.cut("broker0", "broker1", "proxy0", "proxy1")
        await asyncio.sleep(BOUND_S)
        await demand_progress(one, reader, one.now() + CUT_S)
        assert all(one.is_member(host) for host in ("broker0", "broker1", "proxy0", "proxy1"))


@pytest.mark.seed(1)
async def test_a_coordinator_that_is_cut_off_with_its_broker_acknowledges_no_commit() -> None:
    """Cut a coordinator off with its broker: storage refuses the write before either sees that it is not a member.

    Later the broker refuses.
    """

    async with history(1) as one:
        world = one.world
        member = Member(one.through("proxy0"), "g", TOPIC, PARTITIONS)
        one.members.append(asyncio.create_task(member.run()))
        await one.until(lambda: len(world.observed.committed) == PARTITIONS, 30, "the group commits")
        one.cut("coordinator0", "broker0", "proxy0")
        await asyncio.sleep(BOUND_S)
        other = Member(one.through("proxy1"), "g", TOPIC, PARTITIONS, leaves_after=4)
        await asyncio.wait_for(other.run(), CUT_S)
        before = dict(world.observed.committed)
        await asyncio.sleep(CUT_S)
        again = Member(one.through("proxy1"), "g", TOPIC, PARTITIONS)
        assert (await again.positions()).keys() == {partition for _, _, partition in before}


@asynccontextmanager
async def whole_processes() -> AsyncIterator[ClusterWorld]:
    """Three processes of all roles, so that owners lead, and the processes that serve groups are coordinators."""
    world = ClusterWorld(1, config=replace(CONFIG, log_segment_bytes=SEGMENT_BYTES))
    with BugsTold(world):
        for number in range(3):
            world.place(f"node{number}", *ROLES)
        await create_topic(world, TOPIC, PARTITIONS)
        yield world
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def cut_one(world: ClusterWorld, done: Callable[[], list[int]], led: Callable[[], set[int]]) -> None:
    """Cut the first process off from the store.  What it led in the beginning goes on, elsewhere in the end.

    ``done``: counts of what clients have done; ``led``: the places in it of what they send to the first process.
    """
    now = asyncio.get_running_loop().time
    while min(done()) < 5:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.1)
    moved = led()
    assert moved, "no client is at the process that is cut off"
    world.places[0].cut_store(True)
    seen, at, until = done(), dict.fromkeys(moved, now()), now() + BOUND_S
    while now() < until:
        await asyncio.sleep(0.1)
        before, seen = seen, done()
        at |= {place: now() for place in moved if seen[place] > before[place]}
        silent_s = now() - min(at.values())
        assert silent_s < PAUSE_MAX_S, f"nothing done for {silent_s:.1f} s in {world!r}"
    assert not led() & moved
    await world.heal()


@pytest.mark.seed(1)
async def test_producers_leave_an_owner_that_leads_their_partitions_and_is_cut_off() -> None:
    async with whole_processes() as world:
        producer = MetadataProducer(world, "writer", TOPIC, PARTITIONS)
        producing = asyncio.create_task(producer.run())
        await cut_one(
            world,
            lambda: list(producer.acked),
            lambda: {partition for partition, host in producer.leaders.items() if host == "node0"},
        )
        producer.is_over = world.is_over = True
        await producing
        await check_logs(world, "node1", {TOPIC: PARTITIONS}, set())


@pytest.mark.seed(1)
async def test_groups_leave_a_coordinator_that_is_cut_off() -> None:
    """Ask that very process for another coordinator: a real client does, as it is connected to it."""

    async with whole_processes() as world:
        consumers = [Committer(world, "node0", f"group{number}", TOPIC) for number in range(8)]
        committing = [asyncio.create_task(each.run()) for each in consumers]
        await cut_one(
            world,
            lambda: [each.committed for each in consumers],
            lambda: {number for number, each in enumerate(consumers) if each.coordinator == "node0"},
        )
        for each in consumers:
            each.is_over = True
        world.is_over = True
        await asyncio.gather(*committing)
