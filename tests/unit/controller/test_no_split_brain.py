"""Controllers over a store that loses, doubles and delays, on clocks that differ, stopped and killed at random.

What must hold in every run, whatever its seed:

* the assignment is written by whoever leads at that moment, however late a write arrives (``World.noted``);
* no two processes ever may act together (``World.leader``);
* a shard's ownership number never repeats and never goes back, and no two coordinators have one;
* when the faults end, everything is assigned to the living.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.clock import LoopClock
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Write
from bmq.meta.kv_memory import KvFaults
from tests.harness.loop import run
from tests.harness.seeds import example_count
from tests.unit.controller.world import SHARDS, World

pytestmark = pytest.mark.slow

STEPS = 40
FAULTS = KvFaults(
    latency_s=0.15, unavailable=0.05, unknown_applied=0.05, unknown_lost=0.05, unknown_late=0.2, late_s=8.0
)
CUT_OFF = KvFaults(unavailable=1.0)
NONE = KvFaults()


class DriftingClock(LoopClock):
    """Goes too fast or too slow by some percent, from another zero."""

    def __init__(self, rate: float, zero: float) -> None:
        super().__init__()
        self._rate = rate
        self._zero = zero

    def monotonic(self) -> float:
        return self._zero + super().monotonic() * self._rate


class Watcher(World):
    """A world that compares every ownership of a shard with all before."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.given: dict[int, ShardOwner] = {}
        self.terms: set[str] = set()

    def noted(self, name: str, writes: Sequence[Write]) -> None:
        super().noted(name, writes)
        self.terms.add(name)
        for shard, owner in self.shards().items():
            before = self.given.get(shard, ShardOwner("", 0))
            assert owner == before or owner.number > before.number, f"shard {shard}: {before} then {owner}"
            self.given[shard] = owner
        assert self.given.keys() == self.shards().keys(), "a shard was forgotten, and its numbers with it"


async def _live(seed: int) -> Watcher:
    random = Random(seed)
    w = Watcher(random)
    await w.start()
    await w.join("a", "b", "c")
    for number in range(2):
        await w.controller(f"c{number}", DriftingClock(random.uniform(0.95, 1.05), random.uniform(0, 1e6)))
    await w.until(lambda: w.leader is not None)
    topics = w.led_by().topics
    await topics.create_topic("t", 9)
    watching = asyncio.create_task(_watch(w))
    try:
        for _ in range(STEPS):
            await _disturb(w, random)
            await asyncio.sleep(random.expovariate(1.0))
        await _heal(w)
        living = sorted({"a", "b", "c"} - w.members.silent)
        await w.until(lambda: w.is_assigned(*living), 120)
        assert not watching.done(), "watched to the end"
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await w.close()
    if not watching.cancelled():
        watching.result()
    return w


async def _watch(w: World) -> None:
    while True:
        assert w.leader is None or w.leader.controller.leading is not None
        await asyncio.sleep(0.02)


async def _disturb(w: Watcher, random: Random) -> None:
    one = random.choice(w.standbys)
    act = random.randrange(9)
    if act == 0:
        one.kv.pause()
    elif act == 1:
        for each in w.standbys:
            each.kv.resume()
    elif act == 2:
        one.kv.faults = FAULTS
    elif act == 3:
        one.kv.faults = NONE
    elif act == 4:
        if w.leader is not None:
            w.leader.kv.faults = CUT_OFF
    elif act == 5:
        w.store.start(asyncio.get_running_loop().time()) if w.store.down else w.store.stop()
    elif act == 6:
        w.members.isolated ^= {one.name}
        if one.controller.leading is not None:
            one.controller.report("proxy", random.choice("abc"))
    elif not w.store.down:
        await _change_members(w, random)


async def _change_members(w: Watcher, random: Random) -> None:
    name = random.choice("abc")
    if name in w.members.silent:
        await w.join(name)
    elif len(w.members.silent) < 2:
        await w.kill(name)
        if random.random() < 0.5:
            await w.lose_lease(name)
        for call in list(w.members.broken):
            call(name, "reset")


async def _heal(w: World) -> None:
    if w.store.down:
        w.store.start(asyncio.get_running_loop().time())
    for each in w.standbys:
        each.kv.faults = NONE
        each.kv.resume()
    w.members.isolated.clear()
    await w.until(lambda: w.leader is not None)
    await asyncio.sleep(15)  # what a member's lease alone says is not believed before
    for name in w.members.silent:
        for call in list(w.members.broken):
            call(name, "reset")
    await asyncio.sleep(5)
    await w.join(*(name for name in "abc" if name not in w.members.silent and not w.is_member(name)))


@given(st.integers(0, 2**32))
@settings(max_examples=example_count(6, 250), deadline=None)
def test_only_the_leader_writes_and_numbers_only_grow(seed: int) -> None:
    w = run(_live(seed), seed)
    assert len(w.given) == SHARDS


def test_the_runs_change_leaders_and_owners() -> None:
    """Count leaders and owners in four runs: without changes the property would show nothing."""
    runs = [run(_live(seed), seed) for seed in range(4)]
    assert any(len({name for name, _ in w.writes}) == 2 for w in runs)
    assert max(owner.number for w in runs for owner in w.given.values()) >= 5
