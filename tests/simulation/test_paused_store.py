"""A store that stands still as a whole, as one etcd server does that is paused: its clock goes on, and leases end.

A store that was away gives every lease its whole time again, as a new leader of etcd does.  One that was only paused
has no new leader.
"""

from __future__ import annotations

import asyncio

import pytest

from bmq.controller.failures import LEASE_ENDED, NO_ANSWER
from bmq.meta.cluster.membership import TTL_S
from tests.simulation.histories import seeds_wanted
from tests.simulation.test_cut_from_store import Story, demand_progress, history, reading_through
from tests.simulation.test_isolated_leader import leader, owners
from tests.simulation.test_slow_process import term_of

SEEDS = range(seeds_wanted() // 1000 or 1)
AGAIN_S = 10.0
"""Until every process has joined again, and its partitions are open."""


def pause(one: Story, seconds: float) -> None:
    """Let no call have a response for so long, and the leases end whose time is over by then."""
    until = one.now() + seconds
    one.world.store.stall(until)
    one.world.loop.call_at(until - 0.001, one.world.store.expire, until - 0.001)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [5.0, TTL_S + 5.0])
async def test_a_pause_of_the_store_moves_no_partition_and_nobody_is_declared_dead(seed: int, seconds: float) -> None:
    """Pause it for longer than the leader's lease lasts, and for longer than all members'."""
    async with history(seed) as one:
        reader = await reading_through(one, "proxy0")
        await one.until(lambda: bool(leader(one)) and len(set(owners(one))) == 2, 30, "both brokers own partitions")
        await asyncio.sleep(5)
        members = {place.host: one.process(place.host).incarnation for place in one.world.places}
        before, first = owners(one), term_of(one)
        pause(one, seconds)
        await asyncio.sleep(seconds)
        until = one.now() + AGAIN_S
        while one.now() < until:
            await asyncio.sleep(0.02)
            assert owners(one) == before, f"of {one.world!r}"
        assert all(map(one.is_member, members))
        assert all(one.process(host).incarnation == name for host, name in members.items())
        last = term_of(one)
        assert last is not first, "the lease of the first one has ended"
        assert last.watch.declared_dead == {LEASE_ENDED: 0, NO_ANSWER: 0}
        await demand_progress(one, reader, one.now() + AGAIN_S)
