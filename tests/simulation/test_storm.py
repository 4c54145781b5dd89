"""Rounds of several faults at a time, as ``integration/cluster/test_storm.py`` draws them on real services.

While the faults last, every partition goes on: each producer and each reader gets on with each of them in `GOES_ON_S`.
Up to one process of each role breaks, so that one of each is left, and at most one datanode of five; topics have three
copies.  ``BMQ_SIM_SEEDS`` says how many histories; ``BMQ_SIM_SEED`` replays the one that a failure printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from bmq.core.errors import RequestError
from tests.harness.loop import run
from tests.simulation.cluster_checks import BugsTold, check_groups, check_logs, check_quiet
from tests.simulation.cluster_events import run_in
from tests.simulation.cluster_world import ClusterWorld, Place, Process
from tests.simulation.group_clients import Member
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import create_topic
from tests.simulation.metadata_clients import PAUSE_S, MetadataConsumer, MetadataProducer

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() // 1000 or 1, blocks=2)
TOPIC, PARTITIONS, COPIES, GROUP = "orders", 6, 3, "group"
ROLES_APART = (("controller", 2), ("broker", 3), ("coordinator", 2), ("proxy", 3))
ROUNDS = 3
GOES_ON_S = 45.0
"""The time from the last fault until all go on: a lease (10 s), a stall that is noticed (5 s) and reported (5 s), a
take-over of files behind a dead datanode, a client's own time-out (10 s), and waits for each other."""
GROUP_GOES_ON_S = 120.0
"""The time until a group's member has read and committed more of each partition: it joins again with a call of a
minute, and may meet a proxy that hangs."""
MORE = 5
"""Batches of each partition."""
STARVED_EVERY_S, STARVED_MAX_S = 0.3, 0.8
"""On the average one process of ten is starved so often, and each time for at most so long: less than it takes to be
declared dead."""
FOR_EVER = 1 << 20
"""Seconds until a process would be started again by itself."""


class Storm:
    """A cluster, two producers, a reader of each partition and a group of one member, and what is broken."""

    def __init__(self, world: ClusterWorld, rng: Random) -> None:
        self.lines: list[str] = []
        self._world = world
        self._rng = rng
        self._paused: set[Process] = set()
        for role, count in ROLES_APART:
            for number in range(count):
                world.place(f"{role}{number}", role)
        self.producers = [MetadataProducer(world, f"writer{n}", TOPIC, PARTITIONS) for n in range(2)]
        self.reader = MetadataConsumer(world, "proxy0", TOPIC, set(range(PARTITIONS)))

    def __repr__(self) -> str:
        return f"{self._world!r}\n{self.producers}\nreader: {self.reader.leaders}"

    def _committed(self, partition: int) -> int:
        return self._world.observed.committed.get((GROUP, TOPIC, partition), -1)

    def _tell(self, text: str) -> None:
        self.lines.append(f"{self._world.loop.time():7.3f} {text}")

    def strike(self) -> None:
        """Break up to one process of each role, and at times a datanode."""
        acts: list[Callable[[], str]] = []
        for role, _ in self._rng.sample(ROLES_APART, self._rng.randint(1, len(ROLES_APART))):
            place = self._rng.choice(self._world.with_role(role))
            faults = [self._kill, self._stop, self._pause, self._cut_store]
            if role == "broker":
                faults += [self._cut_storage, self._cut_storage]
            acts.append(partial(self._rng.choice(faults), place))
        if self._rng.random() < 0.5:
            acts.append(self._kill_datanode)
        self._rng.shuffle(acts)
        for act in acts:
            self._tell(act())

    def _kill(self, place: Place) -> str:
        place.crash(FOR_EVER)
        return f"{place.host} dies"

    def _stop(self, place: Place) -> str:
        place.stop_politely(FOR_EVER)
        return f"{place.host} is stopped"

    def _pause(self, place: Place) -> str:
        assert place.process is not None
        place.process.stop()
        self._paused.add(place.process)
        return f"{place.host} hangs"

    async def starve(self) -> None:
        """Keep every process waiting for a processor now and then, as on a busy machine."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.0, 2 * STARVED_EVERY_S))
            process = self._rng.choice(self._world.places).process
            if process is not None and not process.is_stopped:
                process.stop()
                self._world.loop.call_later(self._rng.uniform(0.0, STARVED_MAX_S), self._feed, process)

    def _feed(self, process: Process) -> None:
        if process not in self._paused:
            process.resume()

    def _cut_store(self, place: Place) -> str:
        place.cut_store(True)
        return f"{place.host} is cut off from the store"

    def _cut_storage(self, place: Place) -> str:
        place.cut_storage(True)
        return f"{place.host} is cut off from storage"

    def _kill_datanode(self) -> str:
        name = self._rng.choice(sorted(self._world.storage.datanodes))
        self._world.storage.kill_datanode(name)
        return f"datanode {name} dies"

    def move_some(self) -> None:
        """Move some partitions to one broker, as an operator does."""
        processes = [place.process for place in self._world.with_role("broker") if place.process is not None]
        target = self._rng.choice(processes)
        through = self._rng.choice([place.process for place in self._world.with_role("proxy") if place.process])
        moved = [number for number in range(PARTITIONS) if self._rng.random() < 0.5]
        for number in moved:
            run_in(through, _move(through, number, target.incarnation))
        self._tell(f"partitions {moved} are moved to {target.incarnation}")

    async def settle(self) -> None:
        """Wait until all faults of the last round are over, and every process serves."""
        self._paused.clear()
        for place in self._world.places:
            place.may_start()
        await self._world.heal()
        deadline = self._world.loop.time() + 2 * GOES_ON_S
        while not all(place.is_ready for place in self._world.places):
            assert self._world.loop.time() < deadline, f"not all serve again: {self._world!r}"
            await asyncio.sleep(0.5)
        self._tell("healed")

    async def demand(self) -> None:
        """Every producer and the reader get on with every partition."""
        begun = self._world.loop.time()
        goals = [[count + MORE for count in producer.acked] for producer in self.producers]
        committed = [self._committed(partition) for partition in range(PARTITIONS)]
        while True:
            waiting = [
                (number, partition)
                for number, producer in enumerate(self.producers)
                for partition in range(PARTITIONS)
                if producer.acked[partition] < goals[number][partition]
            ]
            unread = [p for p in range(PARTITIONS) if self.reader.progress_at.get(p, 0.0) <= begun]
            uncommitted = [p for p in range(PARTITIONS) if self._committed(p) <= committed[p]]
            if not waiting and not unread and not uncommitted:
                break
            assert not self._world.observed.errors, self._world.observed.errors
            passed = self._world.loop.time() - begun
            assert passed < GROUP_GOES_ON_S, (
                f"after {passed:.0f} s nothing more is committed of {uncommitted}\n{self!r}"
            )
            assert passed < GOES_ON_S or not (waiting or unread), (
                f"after {passed:.0f} s (producer, partition) do not go on: {waiting}, nor the reader: {unread}"
                f"\n{self!r}"
            )
            await asyncio.sleep(0.2)
        self._tell(f"all go on after {self._world.loop.time() - begun:.1f} s")


async def _move(process: Process, partition: int, incarnation: str) -> None:
    node = process.node
    if node is None or node.admin is None:
        return
    try:
        await node.admin.move(TOPIC, partition, incarnation)
    except RequestError:
        return  # an operator reads the reason and tries again


async def history(seed: int) -> ClusterWorld:
    rng = Random(seed)
    world = ClusterWorld(seed, latency_s=rng.choice((0.001, 0.01)))
    storm = Storm(world, rng)
    try:
        with BugsTold(world):
            await create_topic(world, TOPIC, PARTITIONS, COPIES)
            clients = [asyncio.create_task(producer.run()) for producer in storm.producers]
            clients.append(asyncio.create_task(storm.reader.run()))
            clients.append(asyncio.create_task(Member(world, GROUP, TOPIC, PARTITIONS, instance="one").run()))
            starving = asyncio.create_task(storm.starve()) if rng.random() < 0.5 else None
            for _ in range(ROUNDS):
                await storm.demand()
                if rng.random() < 0.7:
                    storm.move_some()
                    await asyncio.sleep(rng.uniform(0.0, 3.0))
                storm.strike()
                await storm.demand()
                await storm.settle()
            await storm.demand()
            if starving is not None:
                starving.cancel()
                await asyncio.sleep(STARVED_MAX_S)
            storm.reader.is_over = world.is_over = True
            for producer in storm.producers:
                producer.is_over = True
            await asyncio.gather(*clients)
            for place in world.with_role("proxy"):
                await check_logs(world, place.host, {TOPIC: PARTITIONS}, set())
                await check_groups(world, place.host, TOPIC, PARTITIONS)
            await check_quiet(world)
            await world.shut()
            assert not world.observed.errors, world.observed.errors
    except BaseException as error:
        error.add_note("\n".join(storm.lines))
        raise
    return world


async def sent_back(seed: int) -> None:
    """Refuse a producer's batches at one proxy, accept them at another, then send it back to the first."""
    world = ClusterWorld(seed)
    with BugsTold(world):
        for role, count in ROLES_APART:
            for number in range(count):
                world.place(f"{role}{number}", role)
        await create_topic(world, TOPIC, 1, COPIES)
        producer = MetadataProducer(world, "writer", TOPIC, 1)
        await producer.start()
        producer.leaders = {0: "proxy0"}
        await _acknowledged(producer, 3)
        brokers = world.with_role("broker")
        for place in brokers:
            place.crash(FOR_EVER)
        while not any("NOT_LEADER_OR_FOLLOWER" in refusal for refusal in producer.refused):
            producer.leaders = {0: "proxy0"}
            await producer.send_some(0)
            await asyncio.sleep(PAUSE_S)
        for place in brokers:
            place.may_start()
        producer.leaders = {0: "proxy1"}
        await _acknowledged(producer, 6)
        producer.leaders = {0: "proxy0"}
        begun, refused = producer.acked[0], len(producer.refused)
        for _ in range(3):
            await producer.send_some(0)
            producer.leaders = {0: "proxy0"}
        assert producer.acked[0] > begun, f"refused for ever: {list(producer.refused)}"
        assert len(producer.refused) <= refused + 1, f"refused more than once: {list(producer.refused)}"
        world.is_over = True
        producer.close()
        await check_logs(world, "proxy0", {TOPIC: 1}, set())
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def _acknowledged(producer: MetadataProducer, count: int) -> None:
    """Send to the leader of now until so many batches are acknowledged."""
    host = producer.leaders[0]
    while producer.acked[0] < count:
        await producer.send_some(0)
        producer.leaders = {0: host}
        await asyncio.sleep(PAUSE_S)


def play(seed: int) -> ClusterWorld:
    return HISTORIES.play(history, seed)


@HISTORIES.each_block
def test_history(block: int) -> None:
    for seed in HISTORIES.seeds_of(block):
        play(seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_producer_that_is_sent_back_to_a_proxy_that_refused_it_goes_on(seed: int) -> None:
    run(sent_back(seed), seed, limit_s=600)
