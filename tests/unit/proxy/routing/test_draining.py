"""A proxy that leaves while its clients wait for owners: for those that may come, and for none that cannot."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.cluster.view import ViewChange
from tests.harness.fakes import member
from tests.harness.waiting import now
from tests.unit.proxy.cluster import Cluster, cluster, idempotent

SOON_S = 0.01


def drained(world: Cluster, name: str) -> None:
    """Show the broker as draining in the proxy's view."""
    world.view.members[name] = member(name).draining()
    world.view.notify(ViewChange(members={name}))


def without_owner(world: Cluster) -> None:
    """End both brokers; no broker gets their partitions."""
    for name in ("b1", "b2"):
        world.kill(name)
        world.view.leave(name)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_waiting_requests_are_answered_when_the_last_broker_has_gone(when: str) -> None:
    """Remove the last broker before the proxy drains, or after: responses come in order, with a retriable error."""

    async with cluster() as world:
        await world.send(idempotent(0))
        if when == "before":
            without_owner(world)
        else:
            world.kill("b1")
        sent = [world.send(idempotent(number)) for number in (1, 2)]
        other = world.send(idempotent(0, producer_id=8), partition=1)
        await asyncio.sleep(0.5)
        assert not any(each.done() for each in (*sent, other)), "a proxy that stays waits for the next owner"
        began = now()
        world.remote_owners.drain()
        if when == "after":
            await asyncio.sleep(SOON_S)
            assert not sent[0].done(), "the other broker may be given it"
            world.view.leave("b1")
            world.kill("b2")
            world.view.leave("b2")
        answers = await asyncio.gather(*sent, other)
        assert now() - began < 2 * SOON_S
        assert all(ErrorCode(response.error_code).is_retriable for response in answers)
        assert ErrorCode(answers[-1].error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        late = await world.send(idempotent(3))
        assert ErrorCode(late.error_code).is_retriable
        assert now() - began < 3 * SOON_S


async def test_brokers_that_drain_are_not_waited_for() -> None:
    async with cluster() as world:
        world.kill("b1")
        world.view.leave("b1")
        sent = world.send(idempotent(0))
        await asyncio.sleep(SOON_S)
        world.remote_owners.drain()
        await asyncio.sleep(SOON_S)
        assert not sent.done()
        drained(world, "b2")
        assert (await sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_broker_that_leaves_last_still_takes_what_it_owns() -> None:
    async with cluster() as world:
        await world.send(idempotent(0))
        drained(world, "b1")
        drained(world, "b2")
        world.remote_owners.drain()
        assert (await world.send(idempotent(1))).error_code == ErrorCode.NONE


async def test_with_a_broker_that_stays_the_hand_over_is_waited_for() -> None:
    async with cluster() as world:
        await world.send(idempotent(0))
        drained(world, "b1")
        world.remote_owners.drain()
        sent = [world.send(idempotent(number)) for number in (1, 2)]
        world.move(0, "b2")
        sent.append(world.send(idempotent(3)))
        assert [response.error_code for response in await asyncio.gather(*sent)] == [0, 0, 0]


async def test_questions_are_not_repeated_without_a_broker_that_stays() -> None:
    async with cluster() as world:
        await world.send(idempotent(0))
        owner = world.remote_owners.get(world.key())
        assert owner is not None
        without_owner(world)
        asking = asyncio.ensure_future(owner.ends())
        await asyncio.sleep(0.5)
        assert not asking.done()
        world.remote_owners.drain()
        began = now()
        with pytest.raises(RequestError) as refused:
            await asking
        assert refused.value.code.is_retriable
        assert now() - began < 0.1
