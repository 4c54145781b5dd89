"""A process that stood still does not go on as if nothing had happened: clients have gone on without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
from kafka.protocol.consumer import JoinGroupResponse, LeaveGroupResponse, OffsetCommitResponse

from bmq.coordinator.shard.freshness import FRESH_S
from bmq.core.errors import ErrorCode
from tests.simulation.abandoned_requests import (
    GIVES_UP_S,
    Message,
    abandon,
    commit,
    commit_request,
    committed,
    heartbeat,
    insist,
    join,
    join_request,
    leave_request,
    respond,
    settle,
)
from tests.simulation.cluster_checks import BugsTold, check_quiet
from tests.simulation.cluster_world import CLIENT, ClusterClient, ClusterWorld, Place, Process
from tests.simulation.kafka_clients import check, create_topic
from tests.simulation.kafka_world import CONFIG
from tests.simulation.test_cut_from_store import ROLES, SEGMENT_BYTES

TOPIC, GROUP = "orders", "g"


@asynccontextmanager
async def three_nodes(seed: int) -> AsyncIterator[ClusterWorld]:
    """Three processes of all roles, of which every one can serve every client."""
    world = ClusterWorld(seed, config=replace(CONFIG, log_segment_bytes=SEGMENT_BYTES))
    with BugsTold(world):
        for number in range(3):
            world.place(f"node{number}", *ROLES)
        await create_topic(world, TOPIC, 1)
        yield world
        world.is_over = True
        await world.heal()
        await check_quiet(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


def process_of(place: Place) -> Process:
    assert place.process is not None
    return place.process


def coordinator(world: ClusterWorld) -> Place:
    """Return the place whose process serves the group."""
    node = process_of(world.places[0]).node
    assert node is not None
    assert node.coordinator is not None
    owner = node.view.shard(node.coordinator.coordinator.shard_of(GROUP))
    assert owner is not None
    return next(place for place in world.places if process_of(place).incarnation == owner.incarnation)


def cut_off(world: ClusterWorld, place: Place, *, is_cut: bool) -> None:
    """Cut a place off from the store and from all other places, or join them again.  Clients reach it."""
    place.cut_store(is_cut)
    change = world.network.cut if is_cut else world.network.heal
    for other in world.places:
        if other is not place:
            change(place.host, other.host)


async def two_clients(world: ClusterWorld) -> tuple[Process, ClusterClient, ClusterClient]:
    """Return a process that does not serve the group, a client of it, and a client of the group's coordinator."""
    anywhere = world.client()
    await insist(world, anywhere, partial(commit, group=GROUP, topic=TOPIC, offset=1))
    anywhere.close()
    there = coordinator(world)
    place = next(each for each in world.places if each is not there)
    slow, other = ClusterClient(world, place.host), ClusterClient(world, there.host)
    await insist(world, slow, partial(committed, group=GROUP, topic=TOPIC))
    return process_of(place), slow, other


@pytest.mark.seed(1)
@pytest.mark.parametrize("gives_up_s", [GIVES_UP_S, 1.0])
@pytest.mark.parametrize("then", [200, 0])
async def test_a_commit_that_lay_in_a_stopped_process_takes_no_later_one_back(then: int, gives_up_s: float) -> None:
    """``then`` 0: a reset, after which the old commit would skip records.

    The end of the connection has arrived if the time-out is 1 s: the process stands still too shortly to give all
    clients up.  After 3 s it has not arrived.
    """
    async with three_nodes(1) as world:
        stopped, slow, other = await two_clients(world)
        stopped.stop()
        message = Message(commit_request(GROUP, TOPIC, 100), OffsetCommitResponse, 7)
        giving_up = asyncio.create_task(abandon(slow, message, gives_up_s))
        await asyncio.sleep(0.1)
        if gives_up_s == GIVES_UP_S:
            world.network.cut(CLIENT, stopped.place.host)
        await giving_up
        await insist(world, other, partial(commit, group=GROUP, topic=TOPIC, offset=100))
        await insist(world, other, partial(commit, group=GROUP, topic=TOPIC, offset=then))
        stopped.resume()
        await settle()
        assert stopped.node is not None
        assert bool(stopped.node.counters.clients_given_up) == (gives_up_s == GIVES_UP_S)
        assert await insist(world, other, partial(committed, group=GROUP, topic=TOPIC)) == then
        other.close()


@pytest.mark.seed(1)
@pytest.mark.parametrize("gives_up_s", [GIVES_UP_S, 1.0])
async def test_a_commit_that_had_begun_in_a_stopped_process_takes_no_later_one_back(gives_up_s: float) -> None:
    """The process has read the commit, and is stopped before it calls the coordinator.

    So the call is the first thing that the process does when it goes on.  It comes before any request and any beat,
    which would look for the standstill.
    """
    async with three_nodes(1) as world:
        stopped, slow, other = await two_clients(world)
        stopped.stop_before_next_request()
        await abandon(slow, Message(commit_request(GROUP, TOPIC, 100), OffsetCommitResponse, 7), gives_up_s)
        assert stopped.is_stopped
        await insist(world, other, partial(commit, group=GROUP, topic=TOPIC, offset=200))
        stopped.resume()
        await settle()
        assert await insist(world, other, partial(committed, group=GROUP, topic=TOPIC)) == 200
        other.close()


@pytest.mark.seed(1)
async def test_a_coordinator_that_stood_still_says_no_old_offset() -> None:
    """A client connects to it while it stands still, when another coordinator has acknowledged a later commit.

    Its last proof is younger than ``FRESH_S``.  It reaches the store and the other members late, so that it does not
    learn of its successor at once.
    """
    async with three_nodes(1) as world:
        anywhere = world.client()
        await insist(world, anywhere, partial(commit, group=GROUP, topic=TOPIC, offset=100))
        anywhere.close()
        old = coordinator(world)
        stopped, began = process_of(old), world.loop.time()
        other = ClusterClient(world, next(each.host for each in world.places if each is not old))
        stopped.stop()
        await insist(world, other, partial(commit, group=GROUP, topic=TOPIC, offset=200))
        await asyncio.sleep(max(0.0, began + FRESH_S / 2 - world.loop.time()))
        cut_off(world, old, is_cut=True)
        late = ClusterClient(world, old.host)
        asked = asyncio.create_task(insist(world, late, partial(committed, group=GROUP, topic=TOPIC)))
        await asyncio.sleep(0.1)
        stopped.resume()
        await asyncio.sleep(2)
        cut_off(world, old, is_cut=False)
        assert await asked == 200
        late.close()
        other.close()


@pytest.mark.seed(1)
async def test_a_coordinator_that_stood_still_keeps_no_member_that_has_left() -> None:
    """A removed member sends a heartbeat while its coordinator stands still, when another coordinator has the group.

    The old one's last proof is younger than ``FRESH_S``, and it reaches the store and the other members late.
    """
    async with three_nodes(1) as world:
        anywhere = world.client()
        member, generation = await insist(world, anywhere, partial(join, group=GROUP, topic=TOPIC, instance="i1"))
        anywhere.close()
        old = coordinator(world)
        stopped, began = process_of(old), world.loop.time()
        other = ClusterClient(world, next(each.host for each in world.places if each is not old))
        stopped.stop()

        async def beat(client: ClusterClient) -> ErrorCode:
            code = await heartbeat(client, GROUP, "i1", member, generation)
            if code.is_retriable:
                check(code)
            return code

        leaving = Message(leave_request(GROUP, "i1"), LeaveGroupResponse, 3)
        await insist(world, other, partial(respond, message=leaving, done=[ErrorCode.UNKNOWN_MEMBER_ID]))
        await asyncio.sleep(max(0.0, began + FRESH_S / 2 - world.loop.time()))
        cut_off(world, old, is_cut=True)
        late = ClusterClient(world, old.host)
        asked = asyncio.create_task(insist(world, late, beat))
        await asyncio.sleep(0.1)
        stopped.resume()
        await asyncio.sleep(2)
        cut_off(world, old, is_cut=False)
        assert await asked is ErrorCode.UNKNOWN_MEMBER_ID
        late.close()
        other.close()


@pytest.mark.seed(1)
async def test_a_join_that_lay_in_a_stopped_process_does_not_fence_the_member_that_joined_again() -> None:
    async with three_nodes(1) as world:
        stopped, slow, other = await two_clients(world)
        stopped.stop()
        await abandon(slow, Message(join_request(GROUP, TOPIC, "i1"), JoinGroupResponse, 5))
        member, generation = await insist(world, other, partial(join, group=GROUP, topic=TOPIC, instance="i1"))
        stopped.resume()
        for _ in range(10):
            await asyncio.sleep(1)
            assert await heartbeat(other, GROUP, "i1", member, generation) is ErrorCode.NONE
        other.close()


@pytest.mark.seed(1)
@pytest.mark.parametrize("gives_up_s", [GIVES_UP_S, 1.0])
async def test_a_join_that_had_begun_in_a_stopped_process_fences_nobody(gives_up_s: float) -> None:
    """The process has read the join, and is stopped before it calls the coordinator."""
    async with three_nodes(1) as world:
        stopped, slow, other = await two_clients(world)
        stopped.stop_before_next_request()
        await abandon(slow, Message(join_request(GROUP, TOPIC, "i1"), JoinGroupResponse, 5), gives_up_s)
        assert stopped.is_stopped
        member, generation = await insist(world, other, partial(join, group=GROUP, topic=TOPIC, instance="i1"))
        stopped.resume()
        await settle()
        assert await heartbeat(other, GROUP, "i1", member, generation) is ErrorCode.NONE
        other.close()
