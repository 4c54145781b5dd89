"""The election of one leader, for as long as its lease certainly holds by its own clock."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.controller.election import MARGIN_S, TTL_S, Election, Leadership
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.cluster.keys import controller_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.kv import Compare, Delete
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from tests.harness.loop import run

KEY = controller_key("c")


class Candidate:
    def __init__(self, store: MemoryStore, name: str, seed: int = 0) -> None:
        self.name = name
        self.kv = MemoryKeyValue(store, random=Random(seed))
        self.view = KvClusterView(MemoryKeyValue(store), "c", name)
        self.store_states: list[bool] = []
        self.election = Election(self.kv, self.view, "c", name, LoopClock(), on_store=self.store_states.append)

    async def elected(self) -> Leadership:
        await self.view.start()
        return await self.election.campaign()


async def test_one_candidate_is_elected_and_another_when_it_resigns() -> None:
    store = MemoryStore()
    a, b = Candidate(store, "a"), Candidate(store, "b")
    first = await a.elected()
    entry = store.get(KEY)
    assert entry is not None
    assert (entry.value, entry.lease, first.compare()) == (b"a", first.lease, Compare(KEY, entry.revision))
    waiting = asyncio.ensure_future(b.elected())
    keeping = asyncio.ensure_future(a.election.keep(first))
    await asyncio.sleep(60)
    assert not waiting.done()
    assert first.may_act
    await a.election.resign(first)
    second = await waiting
    assert not first.may_act
    assert second.may_act
    assert second.revision > first.revision
    await keeping
    with pytest.raises(RequestError) as caught:
        first.guard()
    assert caught.value.code is ErrorCode.NOT_CONTROLLER
    await a.view.close()
    await b.view.close()


def test_of_many_at_once_one_is_elected_whatever_the_store_answers() -> None:
    async def main(seed: int) -> None:
        store = MemoryStore()
        all_of_them = [Candidate(store, f"c{n}", seed * 10 + n) for n in range(4)]
        for one in all_of_them:
            one.kv.faults = KvFaults(latency_s=0.1, unavailable=0.1, unknown_applied=0.2, unknown_lost=0.2)
        waiting = [asyncio.ensure_future(one.elected()) for one in all_of_them]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        entry = store.get(KEY)
        assert entry is not None
        assert entry.value == all_of_them[waiting.index(done.pop())].name.encode()
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        for one in all_of_them:
            await one.view.close()

    for seed in range(20):
        run(main(seed), seed)


async def test_rule_7_a_leader_that_cannot_renew_stops_before_its_lease_ends_and_goes_on_if_it_has_not_ended() -> None:
    store = MemoryStore()
    a = Candidate(store, "a")
    leadership = await a.elected()
    keeping = asyncio.ensure_future(a.election.keep(leadership))
    await asyncio.sleep(5)
    store.stop()
    await asyncio.sleep(TTL_S - MARGIN_S)
    assert not leadership.may_act
    await asyncio.sleep(30)
    store.start(asyncio.get_running_loop().time())
    await asyncio.sleep(1)
    assert leadership.may_act
    assert a.store_states[-1]
    assert not all(a.store_states)
    keeping.cancel()
    await asyncio.wait([keeping])
    await a.view.close()


@pytest.mark.parametrize("how", ["lease", "key"])
async def test_the_term_is_over_when_the_lease_or_the_key_is_gone(how: str) -> None:
    store = MemoryStore()
    a = Candidate(store, "a")
    leadership = await a.elected()
    keeping = asyncio.ensure_future(a.election.keep(leadership))
    await asyncio.sleep(5)
    other = MemoryKeyValue(store)
    if how == "lease":
        await other.revoke(leadership.lease)
    else:
        await other.commit([], [Delete(KEY)])
    async with asyncio.timeout(0.1):
        await keeping
    assert leadership.is_over
    assert not leadership.may_act
    await a.view.close()


async def test_a_leader_whose_key_another_removed_stops_without_a_response_of_the_store() -> None:
    """A process that finds connections to it refused removes the key of a leader that lives (a firewall)."""
    store = MemoryStore()
    a, b = Candidate(store, "a"), Candidate(store, "b")
    leadership = await a.elected()
    keeping = asyncio.ensure_future(a.election.keep(leadership))
    await asyncio.sleep(5)
    a.kv.pause()
    await b.election.vacate(leadership.revision)
    async with asyncio.timeout(0.1):
        await keeping
    assert not leadership.may_act
    a.kv.resume()
    await a.view.close()


async def test_a_leader_that_stood_still_does_not_act_when_it_goes_on() -> None:
    store = MemoryStore()
    a, b = Candidate(store, "a"), Candidate(store, "b")
    first = await a.elected()
    await asyncio.sleep(TTL_S - MARGIN_S - 0.01)  # no renewal: as if the process were stopped
    assert first.may_act
    await asyncio.sleep(0.02)
    assert not first.may_act
    second = await b.elected()
    assert second.may_act
    await a.election.keep(first)
    assert first.is_over
    await a.view.close()
    await b.view.close()
