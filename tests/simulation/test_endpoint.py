"""Random histories of whole servers: clients speak Kafka, servers crash and are started again, storage and store fail.

``BMQ_SIM_SEEDS`` says how many; ``BMQ_SIM_SEED`` replays the one that a failure printed.  What must hold:

* an acknowledged record stands at the offset that was answered, once, in its producer's order;
* what a reader saw stays; offsets are dense; nothing is refused for ever;
* a committed offset is never taken back; a generation gives a partition to one member; below a committed offset every
  record was processed.
"""

from __future__ import annotations

import asyncio
from random import Random

from tests.harness.loop import run
from tests.simulation.group_clients import Member
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import (
    Refused,
    create_and_delete,
    create_topic,
    observe,
    pause,
    produce,
    produce_plain,
    read_all,
)
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.test_partition import storage_faults, store_faults

HISTORIES = Histories(module=__name__, seeds=seeds_wanted(40) // 12 or 1, blocks=10)
TOPIC = "orders"
PARTITIONS = 2
COORDINATOR_S = 60.0
"""From a server's start to its groups, with takeovers that end in lease recovery."""


async def history(seed: int, *, is_calm: bool = False) -> int:
    """One history; how many records were acknowledged."""
    rng = Random(seed)
    world = KafkaWorld(seed) if is_calm else KafkaWorld(seed, faults=storage_faults(rng), kv_faults=store_faults(rng))
    world.start()
    await create_topic(world, TOPIC, PARTITIONS)
    members = [
        Member(world, "g", TOPIC, PARTITIONS),
        Member(world, "g", TOPIC, PARTITIONS, leaves_after=rng.randint(1, 10)),
        Member(world, "g", TOPIC, PARTITIONS, instance="static-1"),
    ]
    work = [
        produce(world, "a", TOPIC, 0, rng.randint(10, 60)),
        produce(world, "b", TOPIC, 1, rng.randint(10, 60), window=2),
        produce(world, "c", TOPIC, 0, rng.randint(10, 40)),
        produce_plain(world, "d", TOPIC, 1, rng.randint(5, 30)),
        observe(world, TOPIC, PARTITIONS),
        *(member.run() for member in members[: rng.randint(1, 3)]),
    ]
    if rng.random() < 0.4:
        work.append(create_and_delete(world, "scratch"))
    clients = [asyncio.create_task(each) for each in work]
    for _ in range(0 if is_calm else rng.randint(1, 5)):
        await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random())
        await disturb(world, rng)
    await asyncio.sleep(rng.uniform(5.0, 20.0))
    await verdict(world)
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return sum(map(len, world.observed.acked.values()))


async def disturb(world: KafkaWorld, rng: Random) -> None:
    """One misfortune."""
    nodes = list(world.storage.datanodes)
    match rng.randrange(7):
        case 0 | 1 | 2:
            world.server.crash()
            await asyncio.sleep(rng.choice((0.0, 0.1, 2.0)))
            world.start()
        case 3:
            if world.server.is_ready:
                await world.server.stop()
            else:
                world.server.crash()
            world.start()
        case 4:
            world.storage.kill_datanode(rng.choice(nodes))
        case 5:
            world.storage.restart_namenode(rng.uniform(0.1, 5.0), safe_mode_s=rng.uniform(0.0, 3.0))
        case _:
            for link in list(world.server.links):
                if rng.random() < 0.5:
                    link.close()


async def verdict(world: KafkaWorld) -> None:
    """End the faults, read everything back, and compare it with the responses that clients got."""
    await world.settle()
    observed = world.observed
    assert not observed.errors, observed.errors
    for partition in range(PARTITIONS):
        values = await read_all(world, TOPIC, partition)
        assert sorted(values) == list(range(len(values))), f"offsets of {TOPIC}-{partition} have gaps"
        for offset, value in observed.acked[TOPIC, partition].items():
            assert values.get(offset) == value, (
                f"acknowledged {value!r} at {partition}/{offset}: {values.get(offset)!r}"
            )
        for offset, value in observed.seen[TOPIC, partition].items():
            assert values.get(offset) == value, f"{value!r} was seen at {partition}/{offset}: {values.get(offset)!r}"
        for name in ("a", "b", "c"):
            own = [int(v.partition(b":")[2]) for _, v in sorted(values.items()) if v.startswith(f"{name}:".encode())]
            assert own == sorted(set(own)), f"{name}: doubled or out of order: {own}"
    for (group, topic, partition), committed in observed.committed.items():
        missed = set(range(committed)) - observed.processed[group, topic, partition]
        assert not missed, f"{group} never processed {sorted(missed)[:5]} of {topic}-{partition}, {committed} committed"
    await check_group(world)
    assert not observed.errors, observed.errors


async def check_group(world: KafkaWorld) -> None:
    """Wait until the group's coordinator responds: the last server may still take over logs that others left open."""
    member = Member(world, "g", TOPIC, PARTITIONS)
    async with asyncio.timeout(COORDINATOR_S):
        while True:
            try:
                await member._find()
                await member._positions(list(range(PARTITIONS)))
                return
            except Refused as refused:
                if not refused.code.is_retriable:
                    raise
                await pause(world)


def play(seed: int) -> int:
    return HISTORIES.play(history, seed)


@HISTORIES.each_block
def test_histories(block: int) -> None:
    acked = sum(map(play, HISTORIES.seeds_of(block)))
    HISTORIES.check_acted(block, acked)


def test_a_history_acknowledges_something() -> None:
    HISTORIES.check_one_acts(history)


def test_calm() -> None:
    """Every producer is done and everything is read, without faults."""
    assert run(history(1, is_calm=True), 1) > 30


def test_a_seed_is_one_history() -> None:
    """The same faults at the same moments, or a failure's seed would be worth nothing."""
    assert [play(seed) for seed in (3, 4)] == [play(seed) for seed in (3, 4)]
