"""The leader of the controllers loses its connections to members, while etcd and the clients reach everybody."""

from __future__ import annotations

import asyncio

import pytest

from bmq.controller.election import TTL_S
from tests.simulation.histories import seeds_wanted
from tests.simulation.test_cut_from_store import PARTITIONS, Story, demand_progress, history, reading_through

PROBED_S = 10.0
"""From the cut until the leader has resigned: a heartbeat has no response, then the pings to the member and those to
others, with the most patience."""
CUT_S = 60.0
JOINED_S = 60.0
"""From the end of the cut until the broker is a member for good: its tries are ever longer apart."""
CONTROLLERS = ("controller0", "controller1")
SEEDS = range(seeds_wanted() // 1000 or 1)


def leader(one: Story) -> str:
    """Return the host of the leader; empty while none leads."""
    for host in CONTROLLERS:
        node = one.process(host).node
        if node is not None and node.controller is not None and node.controller.controller.leading is not None:
            return host
    return ""


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_leader_that_is_cut_off_from_all_members_leaves_them_alone(seed: int) -> None:
    async with history(seed) as one:
        reader = await reading_through(one, "proxy0")
        await one.until(lambda: bool(leader(one)), 10, "a controller leads")
        first = leader(one)
        members = {place.host: one.process(place.host).incarnation for place in one.world.places}
        before = owners(one)
        for host in members:
            if host != first:
                one.world.network.cut(first, host)
        await one.until(lambda: leader(one) not in ("", first), PROBED_S + TTL_S, "another leads")
        await demand_progress(one, reader, one.now() + PROBED_S)
        assert leader(one) != first
        assert owners(one) == before
        others = members.keys() - {first}
        assert all(one.is_member(host) and one.process(host).incarnation == members[host] for host in others)
        one.world.network.heal_all()
        await one.until(lambda: all(map(one.is_member, members)), 60, "all are members")


@pytest.mark.parametrize("seed", SEEDS)
async def test_controllers_that_are_cut_off_together_leave_the_others_alone(seed: int) -> None:
    """Cut both controllers off from all others: they reach each other, no other process can lead, leases go on."""

    async with history(seed) as one:
        reader = await reading_through(one, "proxy0")
        members = {place.host: one.process(place.host).incarnation for place in one.world.places}
        before = owners(one)
        for controller in CONTROLLERS:
            for host in members.keys() - set(CONTROLLERS):
                one.world.network.cut(controller, host)
        await demand_progress(one, reader, one.now() + CUT_S)
        assert owners(one) == before
        assert all(one.is_member(host) and one.process(host).incarnation == members[host] for host in members)
        one.world.network.heal_all()
        await one.until(lambda: bool(leader(one)), 10, "a controller leads")
        await demand_progress(one, reader, one.now() + PROBED_S)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_broker_that_the_leader_alone_does_not_reach_is_given_up_once(seed: int) -> None:
    """Cut it off from the leader: it joins again and again, and its partitions stay where they are.

    Later it serves what an operator moves to it.  Balance gives it a share as it does any broker
    (``test_a_member_declared_dead_joins_again_and_is_given_its_share``).
    """

    async with history(seed) as one:
        reader = await reading_through(one, "proxy0")
        await one.until(lambda: bool(leader(one)), 10, "a controller leads")
        await one.until(lambda: "broker0" in owners(one), 30, "it owns a partition")
        one.world.network.cut(leader(one), "broker0")
        await one.until(lambda: set(owners(one)) == {"broker1"}, PROBED_S, "its partitions are moved")
        until, joined = one.now() + CUT_S, 0
        was_member = False
        while one.now() < until:
            await asyncio.sleep(0.02)
            is_member = one.is_member("broker0")
            joined += is_member and not was_member
            was_member = is_member
            assert set(owners(one)) == {"broker1"}, f"of {one.world!r}"
        assert joined >= 2, "it joins again and again, ever more slowly"
        one.world.network.heal_all()
        await one.until(lambda: one.is_member("broker0"), JOINED_S, "it is a member")
        await one.move(0, "broker0")
        await demand_progress(one, reader, one.now() + PROBED_S)


def owners(one: Story) -> list[str]:
    """Return the host of each partition's owner."""
    return [one.owner_of(partition) for partition in range(PARTITIONS)]
