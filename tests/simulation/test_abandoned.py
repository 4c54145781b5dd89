"""Random histories of clients that give requests up, which lie unread in a process that stands still.

Each history has some rounds.  In each round one of three processes is stopped, and clients of several kinds send it a
request: by connections that stand, and by connections that only its kernel accepts.  The clients give up after
`GIVES_UP_S`, go on through another process, and note what that acknowledged.  Then the process goes on.  In every other
round it stands still too shortly to give its clients up, and their time-outs are shorter.  In some others the end of
the connections arrives late.  A request that was given up may undo nothing that was acknowledged later, and no response
may be older than what was acknowledged before it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from bmq.core.aio.standstill import DOUBT_S, GIVEN_UP_S, TICK_S
from bmq.core.config import ROLES
from bmq.core.security.settings import STANDARD_AUTHORIZER
from tests.simulation import abandoning, abandoning_admins, abandoning_producers
from tests.simulation.abandoned_requests import SHORT_S
from tests.simulation.abandoning import PARTITIONS, TOPIC, Abandoning, Places
from tests.simulation.cluster_checks import BugsTold, check_quiet
from tests.simulation.cluster_world import CLIENT, ClusterWorld
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import create_topic
from tests.simulation.kafka_world import CONFIG

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() // 40 or 1, blocks=4)
STORE_LATE_S = 1.5
ARRIVES_S = 0.1
"""Seconds until a client has connected and sent its request, or its end, at any latency."""
SEGMENT_BYTES = 1 << 20
SECURED = replace(
    CONFIG, log_segment_bytes=SEGMENT_BYTES, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS"
)
"""Rights can be granted, and these clients need none."""
KINDS: Sequence[type[Abandoning]] = (*abandoning.KINDS, *abandoning_admins.KINDS, *abandoning_producers.KINDS)
TOGETHER = 7
"""Most kinds of clients in a round."""


async def history(seed: int) -> None:
    rng = Random(seed)
    world = ClusterWorld(seed, config=SECURED, latency_s=rng.choice((0.001, 0.02)))
    with BugsTold(world):
        for number in range(3):
            world.place(f"all{number}", *ROLES)
        await create_topic(world, TOPIC, PARTITIONS)
        for number in range(rng.randint(1, 3)):
            await play_round(Places(world, rng, rng.choice(world.places), number))
        world.is_over = True
        await world.heal()
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def play_round(at: Places) -> None:
    rng = at.rng
    if is_short := rng.random() < 0.5:
        at.gives_up_s = rng.uniform(*SHORT_S)
    has_no_end = not is_short and rng.random() < 0.5
    clients = [kind(at) for kind in rng.sample(KINDS, rng.randint(2, TOGETHER))]
    await asyncio.gather(*(each.prepare() for each in clients))
    process = at.slow.process
    assert process is not None
    stopped_at = at.world.loop.time()
    process.stop()
    giving_up = asyncio.gather(*(each.give_up() for each in clients))
    await asyncio.sleep(ARRIVES_S)
    if has_no_end:
        at.world.network.cut(CLIENT, at.slow.host)
    await giving_up
    going_on = asyncio.gather(*(each.go_on() for each in clients))
    if is_short:
        stands_s = rng.uniform(max(DOUBT_S, at.gives_up_s + ARRIVES_S), GIVEN_UP_S - TICK_S)
        await asyncio.sleep(stopped_at + stands_s - at.world.loop.time())
    else:
        await going_on
        await asyncio.sleep(rng.choice((0.0, 5.0, 20.0)) * rng.random())
    at.slow.cut_store(is_cut := rng.random() < 0.5)
    process.resume()
    if is_cut:
        await asyncio.sleep(STORE_LATE_S * rng.random())
        at.slow.cut_store(False)
    if has_no_end:
        await asyncio.sleep(rng.random())
        at.world.network.heal(CLIENT, at.slow.host)
    await going_on
    await asyncio.sleep(rng.uniform(2.0, 8.0))
    await asyncio.gather(*(each.check() for each in clients))


@pytest.mark.slow
@HISTORIES.each_block
def test_what_was_given_up_undoes_nothing(block: int) -> None:
    for seed in HISTORIES.seeds_of(block):
        HISTORIES.play(history, seed)
