"""A process that stands still: found soon if it stays so, and not taken for dead again and again if it is only slow.

And a leader that is killed.
"""

from __future__ import annotations

import asyncio

import pytest

from bmq.controller.election import TTL_S
from bmq.controller.failures import NO_ANSWER
from bmq.controller.heartbeats import BEAT_S, SUSPECT_S
from bmq.controller.patience import LEAST_S
from bmq.controller.term import Term
from tests.simulation.histories import seeds_wanted
from tests.simulation.test_cut_from_store import Story, history
from tests.simulation.test_isolated_leader import leader, owners

SEEDS = range(seeds_wanted() // 1000 or 1)
SLOW = "broker0"
FOUND_S = BEAT_S + SUSPECT_S + LEAST_S
MOVED_S = 0.5
"""From the declaration until each process has seen where the partitions go: calls to the store that take their time."""


def term_of(one: Story) -> Term:
    """Return the leader's term."""
    node = one.process(leader(one)).node
    assert node is not None
    assert node.controller is not None
    assert node.controller.controller.leading is not None
    return node.controller.controller.leading


async def blink(one: Story, seconds: float) -> None:
    """Let the broker stand still for so long."""
    one.process(SLOW).stop()
    await asyncio.sleep(seconds)
    one.process(SLOW).resume()


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_partitions_of_a_process_that_stands_still_are_given_to_others_within_two_seconds(seed: int) -> None:
    async with history(seed) as one:
        await one.until(lambda: bool(leader(one)) and SLOW in owners(one), 30, "it owns a partition")
        one.process(SLOW).stop()
        await one.until(lambda: SLOW not in owners(one), FOUND_S + MOVED_S, "its partitions are moved")
        one.process(SLOW).resume()
        await one.until(lambda: one.is_member(SLOW), 60, "it is a member again")


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_process_that_stands_still_for_a_second_now_and_then_keeps_its_partitions(seed: int) -> None:
    async with history(seed) as one:
        await one.until(lambda: bool(leader(one)) and SLOW in owners(one), 30, "it owns a partition")
        first = term_of(one)
        for _ in range(10):
            await blink(one, SUSPECT_S + LEAST_S - 0.2)
            await asyncio.sleep(3)
        assert term_of(one) is first
        assert first.watch.declared_dead[NO_ANSWER] == 0
        assert one.is_member(SLOW)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_process_that_stands_still_for_two_seconds_now_and_then_loses_its_partitions_once(seed: int) -> None:
    async with history(seed) as one:
        await one.until(lambda: bool(leader(one)) and SLOW in owners(one), 30, "it owns a partition")
        first = term_of(one)
        for _ in range(5):
            await blink(one, 2.0)
            await one.until(lambda: one.is_member(SLOW), 10, "it is a member again")
            await asyncio.sleep(5)
        assert term_of(one) is first
        assert first.watch.declared_dead[NO_ANSWER] == 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("turn_s", [0.45, 0.9])
async def test_a_process_whose_loop_turns_slowly_keeps_its_partitions(seed: int, turn_s: float) -> None:
    """Let it run for a millisecond only, again and again: a new connection and a ping on it take it several turns."""
    async with history(seed) as one:
        await one.until(lambda: bool(leader(one)) and SLOW in owners(one), 30, "it owns a partition")
        first = term_of(one)
        until = one.now() + 30
        while one.now() < until:
            await blink(one, turn_s)
            await asyncio.sleep(0.001)
        assert term_of(one) is first
        assert first.watch.declared_dead[NO_ANSWER] == 0
        assert one.is_member(SLOW)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_leader_that_is_killed_is_followed_before_its_lease_ends(seed: int) -> None:
    async with history(seed) as one:
        await one.until(lambda: bool(leader(one)), 30, "a controller leads")
        await asyncio.sleep(5)
        first = leader(one)
        one.place(first).crash(5.0)
        await one.until(lambda: leader(one) not in ("", first), TTL_S / 2, "another leads")
