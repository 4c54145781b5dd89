"""Random histories of whole clusters: clients speak Kafka to the proxies while processes die, hang and are cut off.

``BMQ_SIM_SEEDS`` says how many; ``BMQ_SIM_SEED`` replays the one that a failure printed.  What must hold is what must
hold of one server (``test_endpoint``), and:

* a record without a producer id that was sent once stands at most once;
* once the faults are over, every partition is written to and read through every proxy, and groups work, in
  ``PROGRESS_S``, without anybody's help;
* a process that is asked to stop ends, and leaves neither a task nor a connection; no callback fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from bmq.core.config import ROLES
from bmq.core.errors import ErrorCode
from bmq.meta.kv_memory import HISTORY_REVISIONS
from bmq.proxy.routing.owners import SWEEP_S
from bmq.proxy.routing.tail_fetchers import UNREAD_S
from tests.harness.network import Disconnected
from tests.simulation.cluster_checks import BugsTold, Through, check_groups, check_logs, check_quiet
from tests.simulation.cluster_events import Events
from tests.simulation.cluster_versions import spoken
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.group_clients import Member
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import (
    Client,
    create_and_delete,
    create_topic,
    delete_topic,
    observe,
    pause,
    produce,
    produce_plain,
)
from tests.simulation.test_partition import storage_faults, store_faults

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() // 40 or 1, blocks=10)
PLANNED = Histories(module=__name__, seeds=seeds_wanted() // 160 or 1, blocks=6)
READ_AGAIN = Histories(module=__name__, seeds=seeds_wanted() // 250 or 1, blocks=4)
TOPIC, GROWING = "orders", "growing"
PARTITIONS = 3
PLAIN = {"d", "f"}
"""Producers without a producer id."""
ROLES_APART = (("controller", 2), ("broker", 3), ("coordinator", 2), ("proxy", 2))
PROGRESS_S = 60.0
"""From the end of the faults: a lease (10 s), its grace after an outage (10 s), a stable proxy id that a dead process
still holds, a group's session, and what each waits for the other."""
DRAIN_S = 5.0
"""A broker of some partitions, while others live."""
CLIENTS_S = 120.0
"""A client's own longest time-out, twice."""


def build(world: ClusterWorld, rng: Random) -> None:
    """Roles apart, or a few processes that have all, or some of both."""
    if rng.random() < 0.25:
        for number in range(rng.choice((2, 3))):
            world.place(f"all{number}", *ROLES)
        return
    for role, count in ROLES_APART:
        for number in range(count):
            world.place(f"{role}{number}", role)


async def history(seed: int, *, is_calm: bool = False) -> ClusterWorld:
    """One history, judged."""
    rng = Random(seed)
    faults, kv_faults = (storage_faults(rng), store_faults(rng)) if rng.random() < 0.5 and not is_calm else (None, None)
    world = ClusterWorld(
        seed,
        faults=faults,
        kv_faults=kv_faults,
        latency_s=rng.choice((0.001, 0.02)),
        has_ids=rng.random() < 0.5,
        history=rng.choice((20, HISTORY_REVISIONS)),
        are_versions_mixed=rng.random() < 0.4 and not is_calm,
    )
    events = Events(world, rng)
    try:
        with BugsTold(world), spoken(world):
            build(world, rng)
            clients = [asyncio.create_task(each) for each in workload(world, rng)]
            await asyncio.sleep(rng.choice((0.2, 3.0)))
            for _ in range(0 if is_calm else rng.randint(1, 6)):
                await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random())
                events.befall()
            await asyncio.sleep(rng.uniform(3.0, 12.0))
            await verdict(world, clients)
    except BaseException as error:
        error.add_note("\n".join(events.lines))
        raise
    return world


def workload(world: ClusterWorld, rng: Random) -> list[Coroutine[Any, Any, None]]:
    members = [
        Member(world, "g", TOPIC, PARTITIONS),
        Member(world, "g", TOPIC, PARTITIONS, leaves_after=rng.randint(1, 10)),
        Member(world, "g", TOPIC, PARTITIONS, instance="static-1"),
        Member(world, "h", TOPIC, PARTITIONS),
    ]
    work = [
        produce(world, "a", TOPIC, 0, rng.randint(10, 60)),
        produce(world, "b", TOPIC, 1, rng.randint(10, 60), window=2),
        produce(world, "c", TOPIC, 0, rng.randint(10, 40)),
        produce_plain(world, "d", TOPIC, 1, rng.randint(5, 30)),
        produce(world, "e", TOPIC, 2, rng.randint(5, 20), window=1),
        produce_plain(world, "f", TOPIC, 2, rng.randint(20, 60), window=4),
        observe(world, TOPIC, PARTITIONS),
        *(member.run() for member in rng.sample(members, rng.randint(1, 4))),
    ]
    if rng.random() < 0.4:
        work.append(create_and_delete(world, "scratch"))
    if rng.random() < 0.4:
        work.append(grow(world, GROWING))
    return [_after_topic(world, each) for each in work]


async def _after_topic(world: ClusterWorld, work: Coroutine[Any, Any, None]) -> None:
    try:
        await create_topic(world, TOPIC, PARTITIONS)
        await work
    finally:
        work.close()


async def grow(world: ClusterWorld, name: str) -> None:
    """Give a topic more partitions, one at a time, and write to each."""
    client = world.client()
    await create_topic(world, name, 1)
    for count in range(1, 5):
        await produce(world, f"{name}{count}", name, count - 1, 3)
        while not world.is_over and not await _given(world, client, name, count + 1):
            await pause(world)
    client.close()


async def _given(world: ClusterWorld, client: Client, name: str, count: int) -> bool:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=20_000, validate_only=False)
    try:
        response = await client.call(request, CreatePartitionsResponse, 1)
    except Disconnected:
        return False
    code = ErrorCode(response.results[0].error_code)
    if code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS):  # the second when an earlier try was done
        return True
    if not code.is_retriable:
        world.observed.errors.append(f"more partitions for {name}: {code.name}")
    return False


# ------------------------------------------------------------------------------------------------------------ the judge


async def verdict(world: ClusterWorld, clients: list[asyncio.Task[None]]) -> None:
    """End the faults; everything works again, and nothing is lost."""
    await world.heal()
    await progress(world)
    world.is_over = True
    _, pending = await asyncio.wait(clients, timeout=CLIENTS_S)
    assert not pending, f"clients wait for ever: {pending}"
    for client in clients:
        client.result()
    grown = 1 + max((partition for topic, partition in world.observed.acked if topic == GROWING), default=-1)
    for host in [place.host for place in world.with_role("proxy")]:
        await check_logs(world, host, {TOPIC: PARTITIONS, GROWING: grown}, PLAIN)
        await check_groups(world, host, TOPIC, PARTITIONS)
    await check_quiet(world)
    assert not world.observed.errors, world.observed.errors
    await world.shut()
    assert not world.observed.errors, world.observed.errors


async def progress(world: ClusterWorld) -> None:
    """Write to every partition and join a group, through every proxy."""
    begin = world.loop.time()
    work: dict[str, asyncio.Task[None]] = {}
    for place in world.with_role("proxy"):
        through = Through(world, place.host)
        for partition in range(PARTITIONS):
            name = f"{place.host}:{partition}"
            work[name] = asyncio.create_task(produce(through, f"end-{name}", TOPIC, partition, 2))
        member = Member(through, f"group-of-{place.host}", TOPIC, PARTITIONS, leaves_after=2)
        work[member.group] = asyncio.create_task(member.run())
    await asyncio.wait(work.values(), timeout=PROGRESS_S)
    waiting = [name for name, task in work.items() if not task.done()]
    errors = world.observed.errors
    assert not waiting, f"{PROGRESS_S} s after the faults these do not go on: {waiting}\n{world!r}\n{errors}"
    for task in work.values():
        task.result()
    world.observed.progress_s = world.loop.time() - begin


async def planned(seed: int) -> ClusterWorld:
    """Play moves, drains and polite restarts, one after the other: nothing is refused, no connection breaks."""
    rng = Random(seed)
    world = ClusterWorld(seed, latency_s=rng.choice((0.001, 0.02)), are_versions_mixed=rng.random() < 0.4)
    events = Events(world, rng)
    try:
        with BugsTold(world), spoken(world):
            for role, count in ROLES_APART:
                for number in range(count):
                    world.place(f"{role}{number}", role)
            await create_topic(world, TOPIC, PARTITIONS)
            clients = [asyncio.create_task(each) for each in planned_workload(world)]
            while any(not world.observed.acked[TOPIC, partition] for partition in range(PARTITIONS)):
                await pause(world)
            world.observed.refused.clear()  # proxies see a new topic at different times
            for _ in range(rng.randint(1, 3)):
                events.plan()
                await asyncio.sleep(rng.uniform(2.0, 8.0))
            assert not world.observed.refused, world.observed.refused
            world.is_over = True
            await verdict(world, clients)
    except BaseException as error:
        error.add_note("\n".join(events.lines))
        raise
    return world


async def read_again(seed: int) -> ClusterWorld:
    """Everything is read through every proxy, then left alone; owners change, by request or death; it is read again."""
    rng = Random(seed)
    world = ClusterWorld(seed, latency_s=rng.choice((0.001, 0.02)), are_versions_mixed=rng.random() < 0.4)
    events = Events(world, rng)
    try:
        with BugsTold(world), spoken(world):
            for role, count in ROLES_APART:
                for number in range(count):
                    world.place(f"{role}{number}", role)
            await create_topic(world, TOPIC, PARTITIONS)
            for partition in range(PARTITIONS):
                await produce(world, f"p{partition}", TOPIC, partition, 5)
            for _ in range(3):
                begin = world.loop.time()
                for host in [place.host for place in world.with_role("proxy")]:
                    await check_logs(world, host, {TOPIC: PARTITIONS}, PLAIN)
                assert world.loop.time() - begin < PROGRESS_S, f"read only after {world.loop.time() - begin:.0f} s"
                await asyncio.sleep(UNREAD_S + rng.uniform(1.0, 2.0) * SWEEP_S)
                for _ in range(rng.randint(1, 3)):
                    events.befall_a_broker()
                    await asyncio.sleep(rng.uniform(2.0, 8.0))
            await verdict(world, [asyncio.create_task(observe(world, TOPIC, PARTITIONS))])
    except BaseException as error:
        error.add_note("\n".join(events.lines))
        raise
    return world


async def drain_does_not_wait_for_deleted_topics(seed: int) -> ClusterWorld:
    """Delete a topic, end the leader, then each broker in turn: no broker waits for the topic's partitions."""
    world = ClusterWorld(seed)
    with BugsTold(world):
        for role, count in ROLES_APART:
            for number in range(count):
                world.place(f"{role}{number}", role)
        await create_topic(world, TOPIC, PARTITIONS)
        client = world.client()
        for index, place in enumerate(world.with_role("broker")):
            await create_topic(world, f"gone{index}", 12)
            await produce(world, f"p{index}", f"gone{index}", 0, 1)
            await delete_topic(world, client, f"gone{index}")
            world.observed.acked.pop((f"gone{index}", 0), None)
            (world.with_role("controller")[index % 2]).stop_politely(0.5)
            await asyncio.sleep(2.0)
            process = place.process
            assert process is not None
            begin = world.loop.time()
            place.stop_politely(0.5)
            await process.is_over.wait()
            assert world.loop.time() - begin < DRAIN_S, f"{place.host} drained in {world.loop.time() - begin:.1f} s"
        await verdict(world, [asyncio.create_task(observe(world, TOPIC, PARTITIONS))])
    return world


def planned_workload(world: ClusterWorld) -> list[Coroutine[Any, Any, None]]:
    endless = 1 << 30
    return [
        produce(world, "a", TOPIC, 0, endless),
        produce(world, "b", TOPIC, 1, endless, window=2),
        produce_plain(world, "d", TOPIC, 1, endless),
        produce_plain(world, "f", TOPIC, 2, endless, window=4),
        observe(world, TOPIC, PARTITIONS),
        Member(world, "g", TOPIC, PARTITIONS).run(),
    ]


def play(seed: int, expected: Callable[[int], Coroutine[Any, Any, ClusterWorld]] = history) -> ClusterWorld:
    return HISTORIES.play(expected, seed, test=getattr(expected, "__name__", "calm"))


def acked(world: ClusterWorld) -> int:
    return sum(map(len, world.observed.acked.values()))


@HISTORIES.each_block
def test_history(block: int) -> None:
    worlds = [play(seed) for seed in HISTORIES.seeds_of(block)]
    assert all(map(acked, worlds)), "a history did nothing"


@PLANNED.each_block
def test_planned(block: int) -> None:
    for seed in PLANNED.seeds_of(block):
        play(seed, planned)


@READ_AGAIN.each_block
def test_read_again(block: int) -> None:
    for seed in READ_AGAIN.seeds_of(block):
        play(seed, read_again)


def test_a_drain_does_not_wait_for_deleted_topics() -> None:
    play(1, drain_does_not_wait_for_deleted_topics)


def test_calm() -> None:
    """Every producer is done and everything is read, without faults."""
    assert acked(play(1, partial(history, is_calm=True))) > 30


def test_a_seed_is_one_history() -> None:
    """The same faults at the same moments, or a failure's seed would be worth nothing."""

    def print_of(seed: int) -> tuple[object, ...]:
        world = play(seed)
        return acked(world), world.loop.time(), world.store.revision, world.rng.random()

    assert print_of(3) == print_of(3)
