"""A broker that is cut off from storage while clients, the other processes and the metadata store reach it."""

from __future__ import annotations

import asyncio

import pytest

from bmq.controller.planning.balancing import UNEVEN_S
from bmq.controller.stalled_brokers import REST_S
from bmq.controller.term import LOADS_KNOWN_S
from bmq.core.model import PartitionKey
from bmq.meta.catalog import OFFSETS_TOPIC
from tests.simulation.cluster_events import run_in
from tests.simulation.group_clients import Member
from tests.simulation.kafka_world import CONFIG
from tests.simulation.test_cut_from_store import PARTITIONS, TOPIC, Story, history

EMPTIED_S = 25.0
"""From the cut until others have its partitions: a stall (5 s), the leader's next question (5 s), takeovers."""
REFILLED_S = LOADS_KNOWN_S + UNEVEN_S
"""From the cut's end until it has partitions again: all have a load, which is known and uneven for some time first."""
LOADED_S = 40.0
"""From the coordinators' start until others have their logs: the dead ones' leases (10 s), a load, and as above."""


def owned(one: Story, host: str) -> int:
    return sum(one.owner_of(partition) == host for partition in range(PARTITIONS))


@pytest.mark.seed(0)
async def test_a_broker_is_given_nothing_before_storage_serves_it_again() -> None:
    """Cut a broker off from storage until others have its partitions: it has nothing to write then.

    Given partitions, they would stand still until it has stalled again; those that are only read, as a coordinator's
    log that is being loaded, for as long as it is cut off.
    """

    async with history(0) as one:
        assert owned(one, "broker0")
        one.place("broker0").cut_storage(True)
        await one.until(lambda: not owned(one, "broker0"), EMPTIED_S, "others have its partitions")
        end = one.now() + REST_S + EMPTIED_S
        while one.now() < end:
            assert not owned(one, "broker0"), f"{end - one.now():.0f} s before the end"
            await asyncio.sleep(0.5)
        one.place("broker0").cut_storage(False)
        await one.until(lambda: owned(one, "broker0") > 0, REFILLED_S, "it is given partitions again")


def shard_owners(one: Story) -> set[str]:
    """Return the hosts of the brokers that own the coordinators' logs."""
    node = one.process("proxy1").node
    assert node is not None
    topic = node.catalog.topics[OFFSETS_TOPIC]
    keys = [PartitionKey(topic.topic_id, number) for number in range(topic.partitions)]
    return {node.view.owner_of(key).rpartition("-")[0] for key in keys}


async def move_shards(one: Story, host: str) -> None:
    process = one.process("proxy1")
    assert process.node is not None
    assert process.node.admin is not None
    for number in range(CONFIG.offsets_topic_num_partitions):
        run_in(process, process.node.admin.move(OFFSETS_TOPIC, number, one.process(host).incarnation))
    await one.until(lambda: shard_owners(one) == {host}, 30, "the coordinators' logs are moved")
    node = one.process(host).node
    assert node is not None
    assert node.broker is not None
    broker = node.broker.broker
    await one.until(
        lambda: all(each.machine.state.name == "WRITE" for each in broker.partitions()), 30, "they are open"
    )


@pytest.mark.leaves_tasks  # broker1's, whose storage never responds again
@pytest.mark.seed(0)
async def test_a_broker_from_which_coordinators_load_gives_their_logs_to_another() -> None:
    """Nothing is written there, and a coordinator reads through it what it has to know before it serves."""

    async with history(0) as one:
        world = one.world
        await Member(one.through("proxy0"), "g", TOPIC, PARTITIONS, leaves_after=6).run()
        assert world.observed.committed
        one.throughs[0].is_over = True  # the producers'
        coordinators = [one.place("coordinator0"), one.place("coordinator1")]
        for place in coordinators:
            place.crash(1e6)
        one.place("broker1").crash(0)  # what it has in memory
        await one.until(lambda: one.process("broker1").is_ready, 30, "it is back")
        await move_shards(one, "broker1")
        await asyncio.sleep(10)
        one.place("broker1").cut_storage(True)
        await asyncio.sleep(30)
        assert shard_owners(one) == {"broker1"}, "nothing is wanted of storage there"
        for place in coordinators:
            place.may_start()
        await one.until(lambda: shard_owners(one) == {"broker0"}, LOADED_S, "another has the coordinators' logs")
        await asyncio.wait_for(Member(one.through("proxy1"), "g", TOPIC, PARTITIONS).positions(), 10)
