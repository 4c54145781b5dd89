"""Counts of a process's partitions and transactions: right, shared, and without a stop of the loop."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from bmq.broker.assignment import events as ev
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.coordinator.transaction.records import StoredTransaction, TransactionRecord
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey
from bmq.server.console_view import console_state
from bmq.server.queries.counts import COUNTS_S, Counts
from bmq.storage.layout import PartitionPath
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.seeds import amount
from tests.unit.broker.world import World
from tests.unit.coordinator.transaction_shard import world as transactions_world
from tests.unit.server.queries.console_node import node_with
from tests.unit.server.queries.roles import BrokerOf, TransactionsOf

TOPIC = uuid.UUID(int=1)
REASON = "its record cannot be decoded"


async def with_offline(partitions: int) -> World:
    """Return a broker with partitions whose takeover has just ended OFFLINE, as after damage of the store."""
    world = World()
    await world.start()
    world.assigned._pump = lambda: None  # type: ignore[method-assign]  # the partitions stay as they are here
    for number in range(partitions):
        path, key = PartitionPath("orders", str(TOPIC), number), PartitionKey(TOPIC, number)
        world.assigned.assign(path, key, LogConfig())
        slot = world.assigned._slots[key]
        world.broker._partitions[key] = PartitionDriver(world.broker.context, path, key, LogConfig())
        slot.state = OpenState.OPENING
        world.assigned._handle(slot, ev.WentOffline(REASON, 1))
    return world


async def end(world: World) -> None:
    world.broker._partitions.clear()
    await world.stop()


async def test_partitions_are_counted_by_state_and_the_first_one_that_is_not_served_is_named() -> None:
    world = await with_offline(3)
    counts = Counts(BrokerOf(world.broker, world.assigned), None)
    await counts.count()
    assert counts.partitions_by_state == {"START": 3}
    reason = f"orders-0, and 2 more partitions cannot be served: partition is offline: {REASON}"
    async with node_with(starts=False) as node:
        node.collected.counts.not_served = counts.not_served
        assert console_state(node).is_ready() == (True, reason)
    await end(world)


async def test_callers_at_the_same_time_and_soon_after_share_a_count() -> None:
    world = await with_offline(1)
    counts, looks = Counts(BrokerOf(world.broker, world.assigned), None), 0
    not_served = world.assigned.not_served

    def looked() -> Any:
        nonlocal looks
        looks += 1
        return not_served()

    world.assigned.not_served = looked  # type: ignore[method-assign]
    await asyncio.gather(*(counts.count() for _ in range(5)))
    await counts.count()
    assert looks == 1
    await asyncio.sleep(COUNTS_S)
    await counts.count()
    assert looks == 2
    await end(world)


@pytest.mark.slow
async def test_very_many_partitions_are_counted_without_a_stop() -> None:
    world = await with_offline(amount(50_000, 100_000))
    counts = Counts(BrokerOf(world.broker, world.assigned), None)
    with loop_stops() as stops:
        await counts.count()
    assert counts.partitions_by_state == {"START": len(world.assigned)}
    assert counts.not_served.total == len(world.assigned)
    assert is_short(stops.longest_s, 0.020), stops.longest_s
    await end(world)


@pytest.mark.slow
async def test_very_many_open_transactions_are_looked_at_without_a_stop() -> None:
    async with transactions_world.running(transactions_world.World()) as world:
        state = (await world.a.serving()).state
        ongoing = StoredTransaction(1, 0, 1, TransactionState.ONGOING, started_ms=LoopClock().now_ms() - 7_000)
        for number in range(200_000):
            state.apply(TransactionRecord(f"id-{number}", ongoing))
        counts = Counts(None, TransactionsOf(world.a.apis))
        with loop_stops() as stops:
            await counts.count()
    assert counts.oldest_transaction_s == 7.0
    assert is_short(stops.longest_s, 0.020), stops.longest_s
