"""Random histories: owners that crash, hang and come back as zombies; storage and store that fail.

The judge of ``world`` checks each.  ``BMQ_SIM_SEEDS`` says how many; ``BMQ_SIM_SEED`` replays the one that a failure
printed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from bmq.broker.config import BrokerConfig, LogConfig
from bmq.meta.kv_memory import KvFaults
from bmq.storage.memory import Faults
from tests.simulation.compacted import CompactedWorld, RoundEvents, compacted_config, play_compacted
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.partition_clients import ask_copies, observe, produce, produce_one_ack, trickle, trim
from tests.simulation.partition_events import Events
from tests.simulation.world import SMALL, SMALL_LOG, World

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() * 2 // 3 or 1, blocks=20, limit_s=3_600)


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


def small(rng: Random) -> BrokerConfig:
    """Return a configuration; some have room for one open file, so that room that is never given back is missed."""
    return replace(SMALL, open_pipelines_max=rng.choice((1, 2, 1000)), short_hold_ms=rng.choice((300, 5_000)))


def is_compacted(seed: int) -> bool:
    """Return whether the history is of a compacted log.  It costs as much as four others."""
    return seed % 40 == 7


async def compacted_history(seed: int) -> int:
    """One history of a compacted log; how many records are known."""
    rng = Random(seed)
    world = CompactedWorld(
        seed,
        faults=storage_faults(rng),
        kv_faults=store_faults(rng),
        config=small(rng),
        log_config=compacted_config(rng),
    )
    if rng.random() < 0.5:  # else hardly a round comes to its end
        world.storage.faults = Faults(call_s=world.storage.faults.call_s, ack_s=world.storage.faults.ack_s)
        world.kv_faults = KvFaults()
    events = RoundEvents(world, rng)
    try:
        return await play_compacted(world, rng, events)
    except BaseException as error:
        error.add_note("\n".join(events.lines))
        raise


async def history(seed: int) -> int:
    """One history; how many batches were acknowledged."""
    if is_compacted(seed):
        return await compacted_history(seed)
    rng = Random(seed)
    world = World(
        seed,
        faults=storage_faults(rng),
        kv_faults=store_faults(rng),
        config=small(rng),
        log_config=topic_config(rng),
    )
    is_slow = rng.random() < 0.35
    if is_slow:
        world.log_config = replace(world.log_config, segment_bytes=6_000, segment_ms=500)
        world.are_merges_interrupted = world.log_config.retention_ms in (3_000, 15_000) and rng.random() < 0.7
    if world.are_merges_interrupted:
        _favour_merges(world)
    world.are_clocks_wrong = rng.random() < 0.3
    world.is_journal_busy = rng.random() < 0.3
    world.are_copies_asked = rng.random() < 0.25
    world.are_versions_mixed = rng.random() < 0.3
    events = Events(world, rng)
    try:
        await _play(world, rng, events, is_slow=is_slow)
    except BaseException as error:
        error.add_note("\n".join(events.lines))
        raise
    return len(world.judge.acked)


def _favour_merges(world: World) -> None:
    """Give fair weather, else hardly a merge is begun, and time for one while all its parts are kept."""
    faults = world.storage.faults
    world.storage.faults, world.kv_faults = Faults(call_s=faults.call_s, ack_s=faults.ack_s), KvFaults()
    world.log_config = replace(world.log_config, retention_ms=max(5_000, world.log_config.retention_ms))
    world.judge.retention_ms = world.log_config.retention_ms


async def _play(world: World, rng: Random, events: Events, *, is_slow: bool) -> None:
    """``is_slow``: little is written at a time, into many segments that are small enough to be merged."""
    world.process()
    least, most = (3, 10) if is_slow else (10, 60)
    clients = [
        asyncio.create_task(produce(world, 1, rng.randint(least, most), is_idempotent=True)),
        asyncio.create_task(produce(world, 2, rng.randint(least, most), is_idempotent=True, window=2)),
        asyncio.create_task(produce(world, 3, rng.randint(least // 2, most // 2), is_idempotent=False)),
        asyncio.create_task(observe(world)),
    ]
    if is_slow:
        clients.append(asyncio.create_task(trickle(world, 5)))
    if rng.random() < 0.4:
        clients.append(asyncio.create_task(trim(world)))
    if world.are_copies_asked:
        clients.append(asyncio.create_task(produce_one_ack(world, 4, rng.randint(5, 30))))
        clients.append(asyncio.create_task(ask_copies(world)))
    for _ in range(rng.randint(0, 2) if world.are_merges_interrupted else rng.randint(1, 6)):
        await asyncio.sleep(rng.choice((1.0, 8.0) if is_slow else (0.05, 0.5, 2.0, 8.0)) * rng.random())
        events.befall()
    await asyncio.sleep(rng.uniform(15.0, 30.0) if world.are_merges_interrupted else rng.uniform(1.0, 10.0))
    await world.verdict()
    await world.check_producers()
    await world.check_retention()
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def play(seed: int) -> int:
    return HISTORIES.play(history, seed)


@HISTORIES.each_block
def test_histories(block: int) -> None:
    """No acked batch lost, none visible and later gone, none doubled, order kept, offsets dense, log available."""
    acked = sum(map(play, HISTORIES.seeds_of(block)))
    HISTORIES.check_acted(block, acked)


@pytest.mark.parametrize("seed", [10367])
def test_a_compacted_history_that_shows_a_fault_of_the_cleaner(seed: int) -> None:
    """Play a seed that finds one of the planted faults of docs/design/mutations.md."""
    play(seed)


def test_a_merge_whose_draft_could_not_be_closed_holds_no_later_merge_up() -> None:
    play(6002)


def test_files_expire_in_time_beside_a_merge_that_may_still_come() -> None:
    play(3605)


def test_a_history_acknowledges_something() -> None:
    HISTORIES.check_one_acts(history)
