"""Joining, staying, being declared dead, leaving; and the ids that proxies have towards clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from bmq.core.features import LevelRange
from bmq.core.rpc.messages.member import Unregistered
from bmq.meta.cluster.keys import controller_key, features_key, member_key, node_id_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import Address, Member, decode_member
from bmq.meta.cluster.membership import (
    REJOIN_PAUSE_S,
    STEADY_S,
    TTL_S,
    JoinRefused,
    Membership,
    NodeIdTaken,
)
from bmq.meta.kv import Commit, Compare, Delete, KeyValue, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from tests.harness.seeds import seeds
from tests.harness.waiting import until

pytestmark = pytest.mark.slow

BROKER = Member(incarnation="b", roles=frozenset({"broker"}))
PROXY = Member(incarnation="p", roles=frozenset({"proxy"}), kafka=Address(host="h", port=1))


class Joined:
    """A membership and the view that it stands on."""

    def __init__(self, kv: KeyValue, member: Member) -> None:
        self.losses = 0
        self.joins = 0  # after a loss
        self.confirmed = 0
        self.failures: list[str] = []
        self.ids: list[int] = []
        self.refusal: JoinRefused | None = None
        self.view = KvClusterView(kv, "c", member.incarnation)
        self.membership = Membership(
            kv, "c", member, self.view, on_lost=self._lost, on_failed=self.failures.append, on_id=self.ids.append,
            on_joined=self._joined, on_confirmed=self._confirmed, before_join=self._before_join,
        )  # fmt: skip

    async def _before_join(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _lost(self) -> None:
        self.losses += 1

    def _confirmed(self) -> None:
        self.confirmed += 1

    def _joined(self) -> None:
        self.joins += 1


@asynccontextmanager
async def joined(kv: KeyValue, member: Member) -> AsyncIterator[Joined]:
    one = Joined(kv, member)
    await one.view.start()
    try:
        await one.membership.start()
        yield one
        await one.membership.stop()
    finally:
        await one.view.close()


async def shown(kv: KeyValue, incarnation: str) -> Member | None:
    entry = await kv.get(member_key("c", incarnation))
    return decode_member(entry.value) if entry is not None else None


async def test_it_is_there_as_long_as_it_lives_and_gone_at_once_when_it_leaves() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        await asyncio.sleep(5 * TTL_S)
        assert await shown(kv, "b") == BROKER
        assert one.losses == 0
    assert await shown(kv, "b") is None


async def test_a_process_that_may_not_join_again_ends() -> None:
    """A process asks before it joins again, and before anything of it is registered; if it is refused, it ends."""

    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        one.refusal = JoinRefused("another root")
        await kv.revoke(one.membership.lease)
        await until(lambda: bool(one.failures))
        assert "another root" in one.failures[0]
        assert await shown(kv, "b") is None


async def test_a_change_is_told_soon() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        one.membership.update(BROKER.draining())
        await until(lambda: one.view.members.get("b") == BROKER.draining(), 1)


async def test_declared_dead_it_stops_first_and_then_joins_again() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        await kv.commit([], [Delete(member_key("c", "b"))])
        await until(lambda: one.losses == 1, 1)
        await until(lambda: "b" in one.view.members)
        await asyncio.sleep(5 * TTL_S)
        assert one.losses == 1, "what the view told of the time before is old"
        assert one.membership.is_member


async def test_a_doubt_has_the_own_key_read_before_the_next_renewal() -> None:
    kv = MemoryKeyValue(store := MemoryStore())
    async with joined(kv, BROKER) as one:
        one.membership.doubt()
        await until(lambda: one.confirmed == 1, 1)
        store.stop()
        one.membership.doubt()
        await asyncio.sleep(TTL_S)
        assert one.confirmed == 1
        store.start(asyncio.get_running_loop().time())
        await until(lambda: one.confirmed == 2, TTL_S)
        await kv.commit([], [Delete(member_key("c", "b"))])
        one.membership.doubt()
        await until(lambda: one.losses == 1, 1)


async def test_declared_dead_again_and_again_it_joins_again_after_longer_pauses() -> None:
    """A member reaches the store, and no other member reaches it: each return costs all members a reassignment."""

    kv = MemoryKeyValue(MemoryStore())
    loop = asyncio.get_running_loop()

    async def pause() -> float:
        began = loop.time()
        losses = one.losses
        await kv.commit([], [Delete(member_key("c", "b"))])
        await until(lambda: one.losses == losses + 1)
        await until(lambda: one.membership.is_member)
        return round(loop.time() - began)

    async with joined(kv, BROKER) as one:
        pauses = [await pause() for _ in range(8)]
        assert pauses == [0, 1, 2, 4, 8, 16, REJOIN_PAUSE_S.most, REJOIN_PAUSE_S.most]
        await asyncio.sleep(STEADY_S)
        assert await pause() == 0, "it was a member for a while"


async def test_it_joins_again_at_once_when_another_leads() -> None:
    """The former leader may have been the one that reached no member."""

    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        for losses in range(1, 7):
            await until(lambda: one.membership.is_member)
            await kv.commit([], [Delete(member_key("c", "b"))])
            await until(lambda count=losses: one.losses == count)  # type: ignore[misc]
        await asyncio.sleep(1)
        assert not one.membership.is_member
        await kv.commit([], [Put(controller_key("c"), b"c-2")])
        await until(lambda: one.membership.is_member, 1)
        await kv.commit([], [Delete(member_key("c", "b"))])
        await until(lambda: one.losses == 7, 1)
        await until(lambda: one.membership.is_member, 1)


async def test_an_expired_lease_is_a_lost_membership() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        await kv.revoke(one.membership.lease)
        await until(lambda: one.losses == 1)
        await until(lambda: "b" in one.view.members)


async def test_a_store_that_is_away_is_no_lost_membership() -> None:
    """Rule 7.  Its lease has ended by the time it is back: then it is lost, not before."""

    kv = MemoryKeyValue(MemoryStore(), random=Random(1))
    async with joined(kv, BROKER) as one:
        kv.faults = KvFaults(unavailable=1.0)
        await asyncio.sleep(3 * TTL_S)
        assert one.losses == 0
        assert one.membership.is_member
        kv.faults = KvFaults()
        await until(lambda: one.losses == 1)
        await until(lambda: one.membership.is_member)


async def test_a_lease_that_is_renewed_late_shows_that_the_store_stood_still() -> None:
    """Let the store respond after 7 s: the lease of this process has not ended, those of others may have."""
    store = MemoryStore()
    async with joined(MemoryKeyValue(store), BROKER) as one:
        loop, found = asyncio.get_running_loop(), one.membership
        await asyncio.sleep(3 * TTL_S)
        assert found.since_outage_s == float("inf")
        store.stall(loop.time() + 7)
        await asyncio.sleep(6.9)
        assert found.since_outage_s == 0
        await asyncio.sleep(1)
        assert found.since_outage_s == pytest.approx(0.9, abs=0.1)
        await asyncio.sleep(60)
        assert found.since_outage_s == pytest.approx(60.9, abs=0.1)


async def test_a_lease_that_has_ended_meanwhile_shows_it_too() -> None:
    store = MemoryStore()
    async with joined(MemoryKeyValue(store), BROKER) as one:
        loop, found = asyncio.get_running_loop(), one.membership
        store.stall(loop.time() + 2 * TTL_S)
        loop.call_at(loop.time() + 2 * TTL_S - 0.001, store.expire, loop.time() + 2 * TTL_S)
        await asyncio.sleep(2 * TTL_S + 1)
        assert one.joins == 1
        assert found.since_outage_s == pytest.approx(1, abs=0.1)


async def test_a_member_that_does_not_reach_the_store_believes_those_who_do() -> None:
    """Once its lease must be over, of its present key, and once; it joins again when the store is back."""

    store = MemoryStore()
    kv = MemoryKeyValue(store, random=Random(1))
    async with joined(kv, BROKER) as one:
        heard = one.membership.on_unregistered
        brokers = frozenset({"broker", "proxy"})
        kv.faults = KvFaults(unavailable=1.0)
        await asyncio.sleep(TTL_S / 2)
        heard(Unregistered(store.revision, brokers))
        assert one.losses == 0, "the lease may still hold"
        await asyncio.sleep(TTL_S)
        assert one.membership.overdue_s > 0
        assert await shown(MemoryKeyValue(store), "b") is None
        heard(Unregistered(0, brokers))
        assert one.losses == 0, "older than its key"
        heard(Unregistered(store.revision, frozenset({"proxy"})))
        assert one.losses == 0, "nobody could have been given its partitions"
        heard(Unregistered(store.revision, brokers))
        assert (one.losses, one.membership.is_member) == (1, False)
        assert one.membership.overdue_s < 0
        heard(Unregistered(store.revision, brokers))
        assert one.losses == 1
        old = Unregistered(store.revision, brokers)
        kv.faults = KvFaults()
        await until(lambda: one.membership.is_member)
        assert one.joins == 1
        one.membership._renewed_at -= 2 * TTL_S
        heard(old)
        assert one.losses == 1, "it has joined again since"


async def test_a_finding_that_comes_early_has_the_store_asked_at_once() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, BROKER) as one:
        await kv.revoke(one.membership.lease)
        one.view._members["b"] = BROKER  # the news is late
        await one.view.close()
        began = asyncio.get_running_loop().time()
        one.membership.on_unregistered(Unregistered(1 << 40, frozenset({"broker"})))
        await until(lambda: one.losses == 1)
        assert asyncio.get_running_loop().time() - began < 0.1


async def test_proxies_take_the_lowest_free_id_and_give_it_back() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, PROXY) as first, joined(kv, replace(PROXY, incarnation="q")) as second:
        assert (first.membership.member.node_id, second.membership.member.node_id) == (0, 1)
    async with joined(kv, replace(PROXY, incarnation="r")) as third:
        assert third.membership.member.node_id == 0


async def test_a_hundred_proxies_that_start_together_make_few_commits() -> None:
    class Counted(MemoryKeyValue):
        commits = 0

        async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
            self.commits += 1
            return await super().commit(compares, writes)

    kv = Counted(MemoryStore(), random=Random(0), faults=KvFaults(latency_s=0.01))
    async with AsyncExitStack() as stack:
        proxies = [joined(kv, replace(PROXY, incarnation=f"p{number}")) for number in range(100)]
        started = await asyncio.gather(*(stack.enter_async_context(proxy) for proxy in proxies))
        assert {one.membership.member.node_id for one in started} == set(range(100))
        assert kv.commits < 1_000


async def lose_id(kv: KeyValue, one: Joined, holder: str) -> None:
    """Remove the member's key and give its node id to ``holder`` before it joins again."""
    id_key = node_id_key("c", one.membership.member.node_id)
    await kv.commit([], [Delete(member_key("c", one.membership.member.incarnation)), Put(id_key, holder.encode())])


async def test_a_proxy_that_chose_its_id_itself_chooses_another_when_that_is_taken_meanwhile() -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(store)
    async with joined(kv, PROXY) as one:
        await lose_id(kv, one, "another")
        await until(lambda: one.ids == [1])
        await until(lambda: one.view.members.get("p") == PROXY.with_id(1))
        assert (one.losses, one.failures) == (1, [])
        assert one.membership.member == PROXY.with_id(1)


async def test_a_proxy_that_joins_again_keeps_the_id_that_clients_know() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, PROXY), joined(kv, replace(PROXY, incarnation="q")) as second:
        await kv.commit([], [Delete(node_id_key("c", 0))])
        await kv.revoke(second.membership.lease)
        await until(lambda: second.losses == 1)
        await until(lambda: second.membership.is_member)
        assert second.membership.member.node_id == 1
        assert second.ids == [], "it is what it was"


async def test_a_given_id_that_is_taken_meanwhile_ends_the_process() -> None:
    """The process may have no other id, and one that waits for it in silence does not serve."""

    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, replace(PROXY, node_id=7)) as one:
        await lose_id(kv, one, "another")
        await until(lambda: bool(one.failures))
        assert "--node-id" in one.failures[0]
        assert one.losses == 1


async def test_what_is_told_while_it_joins_again_is_not_forgotten() -> None:
    kv = MemoryKeyValue(MemoryStore(), random=Random(1))
    async with joined(kv, PROXY) as one:
        before = one.membership.lease
        await kv.revoke(before)
        kv.faults = KvFaults(latency_s=1.0)
        await until(lambda: one.membership._lease != before)  # what it registers under is on its way
        one.membership.update(one.membership.member.draining())
        await until(lambda: one.membership.is_member)
        assert one.membership.member.is_draining
        await until(lambda: "p" in one.view.members and one.view.members["p"].is_draining)


async def test_many_proxies_at_once_have_an_id_each() -> None:
    kv = MemoryKeyValue(MemoryStore())
    members = [Joined(kv, replace(PROXY, incarnation=f"p{number}")) for number in range(10)]
    for one in members:
        await one.view.start()
    await asyncio.gather(*(one.membership.start() for one in members))
    assert sorted(one.membership.member.node_id for one in members) == list(range(10))
    for one in members:
        await one.membership.stop()
        await one.view.close()


async def test_a_given_id_is_waited_for_as_long_as_a_dead_process_holds_it() -> None:
    kv = MemoryKeyValue(MemoryStore())
    dead = Joined(kv, replace(PROXY, incarnation="dead", node_id=7))
    await dead.view.start()
    await dead.membership._join()  # and then it is never renewed
    async with joined(kv, replace(PROXY, node_id=7)) as one:
        assert one.membership.member.node_id == 7
    await dead.view.close()


async def test_a_given_id_of_a_live_proxy_is_refused() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, replace(PROXY, node_id=7)):
        with pytest.raises(NodeIdTaken, match="--node-id"):
            async with joined(kv, replace(PROXY, incarnation="q", node_id=7)):
                pass
        entry = await kv.get(node_id_key("c", 7))
        assert entry is not None
        assert entry.value == b"p"


@pytest.mark.parametrize("seed", seeds(50, 2_000))
async def test_under_faults_of_the_store_it_ends_up_a_member_once(seed: int) -> None:
    """Requests and answers are lost at random; a member that joined twice would have left a second key or id."""

    store = MemoryStore()
    kv, sure = MemoryKeyValue(store, random=Random(seed)), MemoryKeyValue(store)
    async with joined(kv, PROXY) as one:
        kv.faults = KvFaults(latency_s=0.2, unavailable=0.2, unknown_applied=0.2, unknown_lost=0.2, unknown_late=0.2)
        for _ in range(3):
            await asyncio.sleep(2 * TTL_S)
            await sure.commit([], [Delete(member_key("c", "p"))])
        kv.faults = KvFaults()
        await asyncio.sleep(4 * TTL_S)
        assert one.losses > 0
        assert one.membership.is_member
        found = await shown(sure, "p")
        assert found == one.membership.member
        assert [entry.key async for entry in sure.list("/c/ids/")] == [node_id_key("c", found.node_id)]


# --------------------------------------------------------------------------------------------- levels of features

AT_2 = encode_record(FeatureLevels(epoch=1, levels={"f": 2}))
TO_2 = encode_record(FeatureLevels(intended={"f": 2}))


def able(member: Member, highest: int) -> Member:
    return replace(member, features=(("f", LevelRange(0, highest)),))


@pytest.mark.parametrize("record", [AT_2, TO_2])
async def test_a_process_that_does_not_support_a_level_is_not_registered(record: bytes) -> None:
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(features_key("c"), record)])
    for process in (BROKER, able(BROKER, 1)):
        with pytest.raises(
            JoinRefused, match=r"f 2 is (about to be )?in force, this version supports 0 to \d\. Use a version of BMQ"
        ):
            async with joined(kv, process):
                pass
        assert await shown(kv, "b") is None
    async with joined(kv, able(BROKER, 2)):
        assert await shown(kv, "b") == able(BROKER, 2)


async def test_a_record_of_levels_that_cannot_be_read_refuses_every_process() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(features_key("c"), b'{"format":2}')])
    with pytest.raises(JoinRefused, match="format 2"):
        async with joined(kv, BROKER):
            pass


class IntendsMeanwhile(MemoryKeyValue):
    """A store in which the leader writes an intention between a registration's read and its commit."""

    record = TO_2

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        if self.record and any(compare.key == features_key("c") for compare in compares):
            record, self.record = self.record, b""
            await super().commit([], [Put(features_key("c"), record)])
        return await super().commit(compares, writes)


@pytest.mark.parametrize("process", [BROKER, PROXY])
async def test_an_intention_that_comes_first_refuses_the_registration(process: Member) -> None:
    kv = IntendsMeanwhile(MemoryStore())
    with pytest.raises(JoinRefused, match="f 2"):
        async with joined(kv, able(process, 1)):
            pass
    assert await shown(kv, process.incarnation) is None
    kv = IntendsMeanwhile(MemoryStore())
    async with joined(kv, able(process, 2)) as one:
        assert await shown(kv, process.incarnation) == one.membership.member


async def test_a_process_that_joins_again_after_a_level_was_raised_ends() -> None:
    kv = MemoryKeyValue(MemoryStore())
    async with joined(kv, able(BROKER, 1)) as one:
        await kv.commit([], [Delete(member_key("c", "b")), Put(features_key("c"), AT_2)])
        await until(lambda: bool(one.failures))
        assert one.failures[0].startswith(
            "cannot join the cluster again: f 2 is in force, this version supports 0 to 1"
        )
