"""Random histories: owners that crash, hang and come back as zombies; storage and store that fail.

The judge of ``world`` checks each.  ``BMQ_SIM_SEEDS`` says how many; ``BMQ_SIM_SEED`` replays the one that a failure
printed.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from random import Random

import pytest

from bmq.broker.config import LogConfig
from bmq.meta.memory import KvFaults
from bmq.storage.memory import Faults
from tests.simulation.loop import run
from tests.simulation.world import KEY, SMALL_LOG, Process, World, observe, produce, trim, until

SEEDS = int(os.environ.get("BMQ_SIM_SEEDS", "100"))
ONE = os.environ.get("BMQ_SIM_SEED")
BLOCKS = 20
HOUR_MS = 3_600_000


def storage_faults(rng: Random) -> Faults:
    """Each history has its own weather: some faults frequent, most absent."""

    def some(chance: float) -> float:
        return rng.choice((0.0, 0.0, chance / 5, chance))

    return Faults(
        call_s=(0.0, rng.choice((0.002, 0.05))),
        ack_s=(0.0, rng.choice((0.002, 0.05, 0.3))),
        slow_ack=some(0.1),
        hung_ack=some(0.02),
        pipeline_fails=some(0.1),
        early_bytes=some(0.5),
        create_fails=some(0.2),
        out_of_space=some(0.1),
        unavailable=some(0.1),
        lost_answer=some(0.1),
        namenode_dies=some(0.01),
        namenode_down_s=(0.1, 5.0),
        waits_for_namenode=some(0.5),
        lease_recovery=some(0.5),
    )


def store_faults(rng: Random) -> KvFaults:
    def some(chance: float) -> float:
        return rng.choice((0.0, 0.0, chance / 5, chance))

    return KvFaults(
        latency_s=rng.choice((0.001, 0.05)),
        unavailable=some(0.1),
        unknown_applied=some(0.1),
        unknown_lost=some(0.1),
        unknown_late=some(0.1),
    )


def topic_config(rng: Random) -> LogConfig:
    """Most histories delete: by time, by an administrator (``trim``), and files soon after it."""
    return replace(
        SMALL_LOG,
        retention_ms=rng.choice((-1, 3_000, 15_000, 60_000)),
        file_delete_delay_ms=rng.choice((0, 2_000, 10_000, 1 << 40)),
        flush_sync=rng.random() < 0.3,
    )


async def history(seed: int) -> int:
    """One history; how many batches were acknowledged."""
    rng = Random(seed)
    world = World(seed, faults=storage_faults(rng), kv_faults=store_faults(rng), log_config=topic_config(rng))
    world.are_clocks_wrong = rng.random() < 0.3
    world.is_journal_busy = rng.random() < 0.3
    world.process()
    clients = [
        asyncio.create_task(produce(world, 1, rng.randint(10, 60), is_idempotent=True)),
        asyncio.create_task(produce(world, 2, rng.randint(10, 60), is_idempotent=True, window=2)),
        asyncio.create_task(produce(world, 3, rng.randint(5, 30), is_idempotent=False)),
        asyncio.create_task(observe(world)),
    ]
    if rng.random() < 0.3:
        clients.append(asyncio.create_task(trim(world)))
    for _ in range(rng.randint(1, 6)):
        await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random())
        disturb(world, rng)
    await asyncio.sleep(rng.uniform(1.0, 10.0))
    await world.verdict()
    await world.check_producers()
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return len(world.judge.acked)


def disturb(world: World, rng: Random) -> None:
    """One misfortune, usually with a new owner after it; the old one may live on as a zombie."""
    victim = rng.choice(world.processes)
    nodes = list(world.storage.datanodes)
    match 8 if world.log_config.flush_sync and rng.random() < 0.25 else rng.randrange(15):
        case 0 | 1:
            victim.crash()
        case 2:
            victim.pause()
            asyncio.get_running_loop().call_later(rng.uniform(0.1, 20.0), victim.resume)
        case 3:
            world.storage.kill_datanode(rng.choice(nodes))
        case 4:
            up = [name for name in nodes if world.storage.datanodes[name].is_up]
            if up:
                world.storage.stop_datanode(rng.choice(up))
        case 5:
            world.storage.restart_namenode(rng.uniform(0.1, 5.0), safe_mode_s=rng.uniform(0.0, 3.0))
        case 6:
            for name in nodes:
                if not world.storage.datanodes[name].is_up:
                    world.storage.datanodes[name].state = type(world.storage.datanodes[name].state).UP
        case 7:
            if victim.is_serving:
                victim.moving = asyncio.create_task(move_away(victim))
        case 8 if world.log_config.flush_sync:
            world.lose_power(is_partial=True)
        case 9 if world.are_clocks_wrong:
            victim.clock.ahead_ms = rng.choice((0, -HOUR_MS, 10_000, HOUR_MS))
        case 10:
            world.storage.is_full = True
            asyncio.get_running_loop().call_later(rng.uniform(0.2, 8.0), world.has_room_again)
        case 11 | 12:
            if victim.is_serving:
                victim.moving = asyncio.create_task(return_under_its_name(victim))
        case 13:
            if victim.is_alive:
                victim.write_undecodable()
                asyncio.get_running_loop().call_later(rng.uniform(0.0, 0.5), victim.crash)
        case _:
            pass
    if rng.random() < 0.8 and len(world.processes) < 8:
        world.process()


async def move_away(process: Process) -> None:
    """A planned hand-over, which may well be interrupted."""
    if process.broker.get(KEY) is not None:
        await process.broker.move(KEY)


async def return_under_its_name(process: Process) -> None:
    """The store declares it dead; it registers again, and may take the partition back before anybody else does."""
    process.broker.fence_all()
    await until(lambda: process.broker.get(KEY) is None)
    await process.open()


def play(seed: int) -> int:
    try:
        return run(history(seed), seed)
    except BaseException as error:
        error.add_note(f"replay with: BMQ_SIM_SEED={seed} pytest tests/simulation/test_partition.py")
        raise


@pytest.mark.parametrize("block", range(1 if ONE else BLOCKS))
def test_histories(block: int) -> None:
    """No acked batch lost, none visible and later gone, none doubled, order kept, offsets dense, log available."""
    if ONE:
        play(int(ONE))
        return
    acked = sum(play(seed) for seed in range(block, SEEDS, BLOCKS))
    assert acked > 0, "the histories did nothing"
