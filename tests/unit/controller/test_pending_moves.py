"""Moves that are waited for, and those that are over: when, how long they took, and how many are remembered."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bmq.controller import pending_moves
from bmq.controller.pending_moves import PAST_MAX, WAIT_MAX_S, PendingMoves
from bmq.controller.planning.planner_view import Move, Why
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey
from bmq.meta.kv import Delete, KeyValue
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.ownership import PartitionRecord, partition_key, read, store
from bmq.meta.shard_kinds import GROUPS

TOPIC = uuid.UUID(int=7)


def move(number: int = 0, why: Why = Why.ASKED) -> Move:
    return Move(PartitionKey(TOPIC, number), "a", "b", why)


async def owns(kv: KeyValue, number: int, owner: str) -> None:
    key = partition_key("c", PartitionKey(TOPIC, number))
    await store(kv, key, PartitionRecord(owner=owner), (await read(kv, key))[1])


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[PendingMoves, KeyValue, asyncio.Event]]:
    """Run an `PendingMoves`; the event is set each time something is over."""
    kv, done = MemoryKeyValue(MemoryStore()), asyncio.Event()
    made = PendingMoves(kv, "c", LoopClock(), done.set)
    task = asyncio.create_task(made.run())
    try:
        yield made, kv, done
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_move_is_over_when_its_target_owns_the_partition() -> None:
    async with watching() as (made, kv, done):
        await owns(kv, 0, "a")
        made.add(move())
        await asyncio.sleep(1)
        await owns(kv, 0, "")  # handed over, and not taken yet
        await asyncio.sleep(1)
        assert (len(made), made.past, done.is_set()) == (1, (), False)
        await owns(kv, 0, "b")
        await done.wait()
        (past,) = made.past
        assert (past.move, past.ended_ms) == (move(), LoopClock().now_ms())
        assert past.took_ms is not None
        assert 2_000 <= past.took_ms <= 2_000 + pending_moves.POLL_S * 1000 + 1
        assert len(made) == 0


async def test_a_move_that_takes_too_long_ends_as_not_finished() -> None:
    async with watching() as (made, kv, _done):
        await owns(kv, 0, "a")
        made.add(move())
        await asyncio.sleep(WAIT_MAX_S + 1)
        assert [(past.move, past.took_ms) for past in made.past] == [(move(), None)]


async def test_a_partition_that_is_deleted_meanwhile_was_not_moved() -> None:
    async with watching() as (made, kv, done):
        await owns(kv, 0, "a")
        made.add(move())
        await kv.commit([], [Delete(partition_key("c", PartitionKey(TOPIC, 0)))])
        await done.wait()
        assert (len(made), made.past) == (0, ())


async def test_a_move_from_a_dead_owner_is_not_pending() -> None:
    async with watching() as (made, _kv, _done):
        for each in (
            move(why=Why.DEAD),
            move(why=Why.UNASSIGNED),
            Move(PartitionKey(GROUPS.planned_as, 0), "a", "b", Why.BALANCE),
        ):
            made.add(each)
        assert len(made) == 0


async def test_the_newest_finished_moves_are_kept_newest_first() -> None:
    async with watching() as (made, kv, done):
        for number in range(PAST_MAX + 3):
            await owns(kv, number, "b")
            made.add(move(number))
            await done.wait()
            done.clear()
        numbers = [past.move.key.partition for past in made.past]
        assert numbers == list(range(PAST_MAX + 2, 2, -1))
