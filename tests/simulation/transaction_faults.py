"""Faults that befall a process at a chosen step of a transaction, and what operators do while transactions are open.

Each fault is called with the world, its random numbers and the process at the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

from bmq.cli.rebuild.run import rebuild
from bmq.core.errors import RequestError
from bmq.core.features import TRANSACTION_VERSION, UpgradeType
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.memory import MemoryFileSystem
from tests.harness.network import Disconnected
from tests.simulation.cluster_events import DOWN_S, run_in
from tests.simulation.cluster_world import ClusterWorld, Process
from tests.simulation.kafka_clients import create_topic, delete_topic
from tests.simulation.transaction_attempts import SIDE

REBUILT_AFTER_S = (0.0, 5.0)
"""From the loss of the store until its rebuilding begins, at most."""
MOVED_S = 2.5
"""Time in which another process has the shards, and its markers have arrived."""
_AWAY_S = 1_000.0
"""Longer than a rebuilding takes."""


def _after(world: ClusterWorld, delay_s: float, call: Callable[..., None], *arguments: object) -> None:
    world.loop.call_later(delay_s, call, *arguments)


def dies(world: ClusterWorld, rng: Random, process: Process) -> None:
    process.place.crash(rng.choice(DOWN_S))


def all_die(world: ClusterWorld, rng: Random, process: Process) -> None:
    for place in world.places:
        place.crash(rng.choice(DOWN_S))


def stands_still(world: ClusterWorld, rng: Random, process: Process) -> None:
    process.stop()
    _after(world, rng.choice((1.4, 6.0, 14.0, 25.0)), process.resume)


def loses_the_store(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Let the process go on as a zombie, whose shards and partitions others get."""
    place = process.place
    place.cut_store(True)
    _after(world, rng.choice((8.0, 20.0)), place.cut_store, False)


def the_store_is_away(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Stop the store for the rest of the history."""
    world.store.stop()


def loses_the_others(world: ClusterWorld, rng: Random, process: Process) -> None:
    for place in world.places:
        if place is not process.place:
            world.network.cut(process.place.host, place.host)
            _after(world, 12.0, world.network.heal, process.place.host, place.host)


def views_stand_still(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Let only one other process, and the clients, see that the shards of this one move to it; all stay members."""
    others = [place for place in world.with_role("coordinator") if place is not process.place]
    leader = process.node.view.controller if process.node is not None else None
    leading = [place for place in others if leader is not None and place.is_at(leader.incarnation)]
    seeing = rng.choice(leading or others)  # the leader moves the shards as it sees them
    still_s = rng.choice((6.0, 15.0))
    for place in world.places:
        if place is not seeing and place.process is not None:
            place.process.kv.sees.clear()
            _after(world, still_s, place.process.kv.sees.set)
    if "proxy" in seeing.roles:
        world.only_proxy = seeing.host
        _after(world, still_s, setattr, world, "only_proxy", "")
    if seeing.process is not None and (node := seeing.process.node) is not None and node.admin is not None:
        run_in(seeing.process, _drain(seeing.process, process.incarnation))


def is_drained(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Move all partitions and shards of the process away."""
    if process.node is not None and process.node.admin is not None:
        run_in(process, _drain(process, process.incarnation))


async def _drain(process: Process, drained: str) -> None:
    """Have a process move all away from ``drained``."""
    assert process.node is not None
    assert process.node.admin is not None
    with suppress(RequestError):  # an operator reads the reason
        await process.node.admin.drain(drained)


def loses_the_store_for_good(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Kill all processes, lose the store, and make it again from storage with ``bmq cluster rebuild``."""
    for place in world.places:
        place.crash(_AWAY_S)
    world.store = MemoryStore()
    world.rebuilding = asyncio.create_task(_rebuild(world, rng.uniform(*REBUILT_AFTER_S)), name="rebuild")


def moves_and_loses_the_store(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Move the shards of the process to another one, which sends markers; then lose the store for good."""
    is_drained(world, rng, process)
    _after(world, MOVED_S, loses_the_store_for_good, world, rng, process)


async def _rebuild(world: ClusterWorld, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    await rebuild(MemoryFileSystem(world.storage, "rebuild"), MemoryKeyValue(world.store), world.config)
    for place in world.places:
        place.may_start()


def deletes_a_topic(world: ClusterWorld, rng: Random, process: Process) -> None:
    """Delete the topic that some transactions write to, at this step."""
    world.loop.create_task(_delete(world), name="delete")


async def _delete(world: ClusterWorld) -> None:
    client = world.client()
    with suppress(Disconnected):
        await delete_topic(world, client, SIDE)
    client.close()


# ------------------------------------------------------------------------------------------------------------ operators


async def delete_and_create(world: ClusterWorld, rng: Random) -> None:
    """Create the topic ``SIDE``, and delete it, again and again."""
    client = world.client()
    while not world.is_over:
        await create_topic(world, SIDE, 1)
        await asyncio.sleep(rng.uniform(0.5, 6.0))
        with suppress(Disconnected):  # done or not: the next round finds out
            await delete_topic(world, client, SIDE)
        await asyncio.sleep(rng.choice((0.0, 0.2, 2.0)))
    client.close()


async def switch_levels(world: ClusterWorld, rng: Random) -> int:
    """Lower ``transaction.version`` to 1, and raise it to 2, again and again; return how often it was done."""
    client, done, level = world.client(), 0, 2
    while not world.is_over:
        await asyncio.sleep(rng.uniform(0.5, 5.0))
        level = 3 - level
        kind = UpgradeType.UPGRADE if level == 2 else UpgradeType.SAFE_DOWNGRADE
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=kind.value
        )
        request = UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=False)
        with suppress(Disconnected):  # done or not: the clients find out
            response = await client.call(request, UpdateFeaturesResponse, 2)
            done += not response.error_code
    client.close()
    return done
