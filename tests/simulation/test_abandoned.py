"""Random histories of clients that give requests up, which lie unread in a process that stands still.

Each history has some rounds.  In each round one of three processes is stopped, and clients of several kinds send it a
request: by connections that stand, and by connections that only its kernel accepts.  The clients give up after
`GIVES_UP_S`, go on through another process, and note what that acknowledged.  Then the process goes on.  In every other
round it stands still too shortly to give its clients up, and their time-outs are shorter.  In some others the end of
the connections arrives late.  In a quarter of all rounds the process has read one request, and has not acted on it.
A request that was given up may undo nothing that was acknowledged later, and no response may be older than what was
acknowledged before it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import NamedTuple

import pytest
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from bmq.core.aio.standstill import DOUBT_S, GIVEN_UP_S, TICK_S
from bmq.core.config import ROLES
from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.proxy.apis import ALL_APIS
from tests.simulation.abandoned_apis import KINDS, NOT_PLAYED
from tests.simulation.abandoned_requests import SHORT_S, Message, commit, committed, respond
from tests.simulation.abandoning import PARTITIONS, TOPIC, Abandoning, Places
from tests.simulation.cluster_checks import BugsTold, check_quiet
from tests.simulation.cluster_world import CLIENT, ClusterWorld, Place
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
TOGETHER = 7
"""Most kinds of clients in a round."""


class Stop(NamedTuple):
    """The way in which a process is stopped in one round."""

    is_short: bool
    """The process stands still too shortly to give its clients up."""
    has_no_end: bool
    """The end of the connections arrives only after the process goes on."""
    has_begun: bool
    """The process is stopped right after it has read a request, before the request causes a call."""
    is_steered: bool
    """The process serves the groups, the transactional ids and the logs of the clients."""
    is_cut: bool
    """The process goes on without the store for a moment."""


@asynccontextmanager
async def three_processes(seed: int, latency_s: float) -> AsyncIterator[ClusterWorld]:
    world = ClusterWorld(seed, config=SECURED, latency_s=latency_s)
    with BugsTold(world):
        for number in range(3):
            world.place(f"all{number}", *ROLES)
        await create_topic(world, TOPIC, PARTITIONS)
        yield world
        world.is_over = True
        await world.heal()
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


async def history(seed: int) -> None:
    rng = Random(seed)
    async with three_processes(seed, rng.choice((0.001, 0.02))) as world:
        for number in range(rng.randint(1, 3)):
            is_short = rng.random() < 0.5
            stop = Stop(
                is_short=is_short,
                has_no_end=not is_short and rng.random() < 0.5,
                has_begun=rng.random() < 0.25,
                is_steered=rng.random() < 0.5,
                is_cut=rng.random() < 0.5,
            )
            kinds = rng.sample(KINDS, rng.randint(2, TOGETHER))
            await play_round(Places(world, rng, rng.choice(world.places), number), stop, kinds)


async def play_round(at: Places, stop: Stop, kinds: Sequence[type[Abandoning]]) -> None:
    rng = at.rng
    at.has_begun, at.is_steered = stop.has_begun, stop.is_steered
    if stop.is_short:
        at.gives_up_s = SHORT_S[0] if stop.is_steered else rng.uniform(*SHORT_S)
    if stop.is_steered:
        await create_shards(at)
    clients = [kind(at) for kind in kinds]
    await asyncio.gather(*(each.prepare() for each in clients))
    process = at.slow.process
    assert process is not None
    stopped_at = at.world.loop.time()
    if stop.has_begun:
        process.stop_in_next_request()
    else:
        process.stop()
    giving_up = asyncio.gather(*(each.give_up() for each in clients))
    await asyncio.sleep(ARRIVES_S)
    at.world.network.stop_at_no_read(process.incarnation)
    process.stop()
    if stop.has_no_end:
        at.world.network.cut(CLIENT, at.slow.host)
    await giving_up
    going_on = asyncio.gather(*(each.go_on() for each in clients))
    if stop.is_short:
        shortest_s = max(DOUBT_S, at.gives_up_s + ARRIVES_S)
        longest_s = GIVEN_UP_S - TICK_S
        stands_s = longest_s if stop.is_steered else rng.uniform(shortest_s, longest_s)
        await asyncio.sleep(stopped_at + stands_s - at.world.loop.time())
    else:
        await going_on
        await asyncio.sleep(rng.choice((0.0, 5.0, 20.0)) * rng.random())
    at.slow.cut_store(stop.is_cut)
    process.resume()
    if stop.is_cut:
        await asyncio.sleep(STORE_LATE_S * rng.random())
        at.slow.cut_store(False)
    if stop.has_no_end:
        await asyncio.sleep(rng.random())
        at.world.network.heal(CLIENT, at.slow.host)
    await going_on
    await asyncio.sleep(rng.uniform(2.0, 8.0))
    outcomes = await asyncio.gather(*(each.check() for each in clients), return_exceptions=True)
    if wrong := [each for each in outcomes if each is not None]:
        raise BaseExceptionGroup("requests that were given up had effects, or responses were old", wrong)


async def create_shards(at: Places) -> None:
    """Create the topics of the coordinators' shards, so that each shard has an owner."""
    await at.ask(partial(committed, group="none", topic=TOPIC))
    await at.ask(partial(commit, group="none", topic=TOPIC, offset=0))
    request = InitProducerIdRequest(
        transactional_id="none", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    await at.ask(partial(respond, message=Message(request, InitProducerIdResponse, 4)))


@pytest.mark.slow
@HISTORIES.each_block
def test_what_was_given_up_undoes_nothing(block: int) -> None:
    for seed in HISTORIES.seeds_of(block):
        HISTORIES.play(history, seed)


STOPS = {
    "short": Stop(is_short=True, has_no_end=False, has_begun=False, is_steered=True, is_cut=True),
    "long": Stop(is_short=False, has_no_end=True, has_begun=False, is_steered=True, is_cut=True),
    "elsewhere": Stop(is_short=False, has_no_end=True, has_begun=False, is_steered=False, is_cut=False),
    "begun": Stop(is_short=True, has_no_end=False, has_begun=True, is_steered=False, is_cut=False),
}


@pytest.mark.seed(1)
@pytest.mark.parametrize("stop", STOPS.values(), ids=STOPS)
async def test_every_kind_of_client_together(stop: Stop) -> None:
    """No kind waits for its seed: a change that lets one request through fails here."""
    async with three_processes(1, 0.001) as world:
        slow = next(each for each in world.places if not leads(each))
        await play_round(Places(world, Random(1), slow, 0), stop, KINDS)


@pytest.mark.seed(1)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.apis], ids=lambda kind: kind.__name__)
async def test_a_request_that_had_begun_goes_on_for_nobody(kind: type[Abandoning]) -> None:
    """The process has read the request of this kind, and no other."""
    async with three_processes(1, 0.001) as world:
        slow = next(each for each in world.places if not leads(each))
        await play_round(Places(world, Random(1), slow, 0), STOPS["begun"], [kind])


def leads(place: Place) -> bool:
    """Return whether the process is the controller that declares others dead."""
    process = place.process
    assert process is not None
    assert process.node is not None
    return process.node.controller is not None and process.node.controller.is_leader


def test_each_api_is_played_or_has_a_reason() -> None:
    served = {api.key for api in ALL_APIS}
    played = {api for kind in KINDS for api in kind.apis}
    assert played | set(NOT_PLAYED) == served, "play an API that is served, or tell why a late request does no harm"
    assert not played & set(NOT_PLAYED), "an API that is played needs no reason"
    assert all(kind.found_by for kind in KINDS)
