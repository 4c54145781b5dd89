"""Snapshots of a shard while transactions are open: nothing undecided may go, whatever falls between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.errors import ErrorCode
from tests.harness.loop import run
from tests.harness.seeds import example_count
from tests.unit.coordinator.fakes import World, running
from tests.unit.coordinator.txn_requests import end, stable, txn_commit

GROUPS = 12
Act = Callable[[World], Awaitable[object]]

ACTS: dict[str, Act] = {
    "nothing": lambda world: asyncio.sleep(0),
    "commit": lambda world: end(world),
    "abort": lambda world: end(world, commits=False),
    "another in the transaction": lambda world: txn_commit(world, "g7", 70),
    "plain commit": lambda world: world.commit("g3", 33),
    "another transaction": lambda world: txn_commit(world, "g3", 34, producer=2),
}


def _snapshot(world: World) -> None:
    world.coordinator.shards._shards[0]._snapshot_at = 0


async def _history(act: Act, steps: int) -> None:
    """Begin a snapshot while a transaction is open, let ``act`` happen after some steps, and fail over."""
    world = World(snapshot_bytes=1 << 30, snapshot_chunk_bytes=100)
    async with running(world):
        for number in range(GROUPS):
            assert await world.commit(f"g{number}", number) == 0
        world.log.flush_s = 0.001
        assert await txn_commit(world, "g3", 30) is ErrorCode.NONE
        assert await txn_commit(world, "new", 31) is ErrorCode.NONE
        opened = world.log.batches[-2][0]
        _snapshot(world)
        assert await world.commit("begin", 1) == 0
        await asyncio.sleep(steps * 0.0005)
        await act(world)
        await asyncio.sleep(1)
        assert world.log.snapshots == 1
        assert world.log.log_start == opened, "not past the first batch of what was open, and no earlier"
        before = world.facts()
        await world.crash()
        await world.coordinator.ready("g0")
        assert world.facts() == before
        is_open = ("open", 1) in before
        assert await end(world) is ErrorCode.NONE
        assert await end(world, 2) is ErrorCode.NONE
        decided = world.offsets()
        if is_open:
            assert await stable(world, "new") == (ErrorCode.NONE, 31)
        _snapshot(world)
        assert await world.commit("begin", 2) == 0
        await asyncio.sleep(1)
        assert world.log.log_start > opened, "nothing is open any more"
        await world.crash()
        await world.coordinator.ready("g0")
        assert {key: value for key, value in world.offsets().items() if key[0] != "begin"} == {
            key: value for key, value in decided.items() if key[0] != "begin"
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_a_snapshot_with_a_transaction_open_at_each_step_loses_nothing(name: str) -> None:
    for steps in range(30):
        run(_history(ACTS[name], steps))


_group = st.sampled_from(["a", "b"])
_step = st.one_of(
    st.tuples(st.just("commit"), _group, st.integers(0, 2), st.integers(0, 99)),
    st.tuples(st.just("pending"), _group, st.integers(0, 2), st.integers(0, 99), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("fail")),
)


async def _act(world: World, step: tuple[object, ...]) -> None:
    match step:
        case ("commit", str(group), int(partition), int(offset)):
            await world.commit(group, offset, partition=partition)
        case ("pending", str(group), int(partition), int(offset), int(producer)):
            await txn_commit(world, group, offset, partition=partition, producer=producer)
        case ("end", int(producer), bool(commits)):
            await end(world, producer, commits=commits)
        case ("snapshot",):
            serving = world.coordinator.shards._shards[0].serving
            if serving is not None:
                _snapshot(world)


@pytest.mark.slow
@settings(max_examples=example_count(50, 1_500), deadline=None)
@given(st.lists(_step, max_size=40))
def test_transactions_after_any_history_of_snapshots_and_failovers_are_as_before(
    steps: list[tuple[object, ...]],
) -> None:
    """Several requests at the same time, so that markers, snapshots and commits meet in the writer's queue."""

    async def main() -> None:
        world = World(snapshot_bytes=1 << 30, snapshot_chunk_bytes=60, read_bytes=300)
        async with running(world):
            await world.coordinator.ready("a")
            tasks = []
            for step in steps:
                if step == ("wait",):
                    await asyncio.sleep(0.002)
                elif step == ("fail",):
                    world.log.fail_next = 1
                elif step == ("crash",):
                    await world.crash()
                else:
                    tasks.append(asyncio.ensure_future(_act(world, step)))
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            world.log.fail_next = 0
            await asyncio.sleep(30)
            await world.coordinator.ready("a")
            before = world.facts()
            await world.crash()
            await world.coordinator.ready("a")
            assert world.facts() == before

    run(main())
