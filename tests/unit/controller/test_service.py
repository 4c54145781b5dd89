"""The leader over a store: assignments when members come, go, drain and die, and when leaders do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.admin.messages import NOT_FINISHED, MoveStatus
from bmq.controller.election import TTL_S
from bmq.controller.file_shares import OpenFileReport
from bmq.controller.planning.partition_load import Measured
from bmq.controller.probing import LAST_RESORT_S
from bmq.controller.service import FOLLOWED_S
from bmq.controller.stalled_brokers import REST_S
from bmq.controller.term import LOAD_S, SHARE_ROUND_S
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.cluster.keys import assignment_prefix, controller_key, member_key
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.unreachable import encode_unreachable, unreachable_key
from bmq.meta.kv import Commit, Compare, Delete, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue
from bmq.meta.ownership import PartitionRecord, encode, partition_key, store
from tests.unit.controller.world import World, world

pytestmark = pytest.mark.slow


def counts(w: World) -> Counter[str]:
    return Counter(w.owners(w.standbys[0]).values())


def admin(w: World) -> LeaderAdmin:
    one = w.led_by()
    return LeaderAdmin(one.controller, one.catalog, w.members)


async def test_from_scratch_each_has_its_share() -> None:
    async with world("a", "b", "c") as w:
        assert set(counts(w).values()) == {4}
        assert Counter(owner.incarnation for owner in w.shards().values()) == {"a": 2, "b": 2, "c": 2}
        assert {owner.number for owner in w.shards().values()} == {1}


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with world("a", "b", "c") as w:
        before = w.store.revision
        await asyncio.sleep(600)
        assert w.store.revision == before


async def test_a_lease_that_ends_moves_only_what_was_there() -> None:
    async with world("a", "b", "c") as w:
        before = w.owners(w.standbys[0])
        await w.lose_lease("b")
        assert await w.until(lambda: w.is_assigned("a", "c")) < 0.5
        after = w.owners(w.standbys[0])
        assert {key for key in after if after[key] != before[key]} == {key for key in before if before[key] == "b"}
        assert set(counts(w).values()) == {6}


async def test_a_report_is_looked_into_and_the_dead_leave_with_what_they_had() -> None:
    """Kill a member: its key and its partitions go in one transaction, no process sees one without the other."""
    async with world("a", "b", "c") as w:
        await w.kill("b")
        assert w.led_by().controller.report("proxy", "b")
        assert await w.until(lambda: w.is_assigned("a", "c")) < 0.5
        assert w.store.get(member_key("c", "b")) is None
        keys = next(keys for _, keys in w.writes if member_key("c", "b") in keys)
        assert any(key.startswith(assignment_prefix("c")) for key in keys)


async def test_a_report_of_one_who_answers_changes_nothing() -> None:
    async with world("a", "b", "c") as w:
        before, probes = w.store.revision, len(w.members.probes)
        w.led_by().controller.report("proxy", "b")
        w.members.broken[0]("b", "reset")
        await w.until(lambda: len(w.members.probes) > probes)
        await asyncio.sleep(5)
        assert w.store.revision == before


async def test_a_dead_one_that_lives_joins_again_and_is_given_its_share() -> None:
    async with world("a", "b") as w:
        await w.kill("b")
        w.members.broken[0]("b", "reset")
        await w.until(lambda: w.is_assigned("a"))
        await w.join("b")
        await w.until(lambda: w.is_assigned("a", "b"))
        assert set(counts(w).values()) == {6}


async def test_a_drain_empties_in_steps_while_the_others_take_over() -> None:
    """A step is not begun before the one before is done: the new owners' records say so."""
    async with world("a", "b", topic=300) as w:
        kv = MemoryKeyValue(w.store)
        for key in w.owners(w.standbys[0]):
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner="b")))])
        await w.drain("b")
        await w.until(lambda: counts(w)["b"] == 150 - 64)
        await asyncio.sleep(5)
        assert counts(w)["b"] == 150 - 64
        for key, owner in w.owners(w.standbys[0]).items():
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner=owner)))])
        await w.until(lambda: counts(w)["b"] == 150 - 128)


async def test_a_move_that_is_stuck_does_not_hold_up_the_drain_for_ever() -> None:
    async with world("a", "b", topic=300) as w:
        kv = MemoryKeyValue(w.store)
        for key in w.owners(w.standbys[0]):
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner="b")))])
        await w.drain("b")
        await w.until(lambda: w.is_assigned("a"))


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_another_leads_within_the_lease_and_moves_nothing() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first, before = w.led_by(), len(w.writes)
        first.kv.crash()
        assert await w.until(lambda: w.leader not in (None, first)) <= TTL_S + 0.5
        await asyncio.sleep(10)
        assert len(w.writes) == before
        w.standbys.remove(first)


async def test_a_leader_that_ends_makes_room_at_once() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await first.controller.close()
        assert await w.until(lambda: w.leader not in (None, first)) < 0.5


async def test_a_leader_that_reaches_nobody_declares_nobody_dead_and_resigns() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first, before = w.led_by(), len(w.writes)
        w.members.isolated.add(first.name)
        for name in ("a", "b", "c"):
            w.members.broken[w.standbys.index(first)](name, "silent")
        assert await w.until(lambda: w.leader not in (None, first)) < 1.0
        await asyncio.sleep(15)
        assert w.led_by() is not first
        assert len(w.writes) == before, "nothing has moved"
        assert all(w.store.get(member_key("c", name)) is not None for name in ("a", "b", "c"))


def registered(w: World) -> set[str]:
    return {name for name in "abcd" if w.store.get(member_key("c", name)) is not None}


@asynccontextmanager
async def reporting(w: World) -> AsyncIterator[None]:
    """Report all members to the leader once a second, as a proxy that reaches none of them does."""

    async def report() -> None:
        while True:
            for name in "abcd":
                if w.leader is not None:
                    w.leader.controller.report("proxy", name)
            await asyncio.sleep(1)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_two_isolated_leaders_do_not_resign_in_turn_for_ever() -> None:
    """Isolate both controllers: the second becomes the last resort, and neither declares a member dead."""
    async with world("a", "b", "c", "d", controllers=("c1", "c2")) as w:
        w.members.isolated.update(("c1", "c2"))
        leaders: list[str] = []
        async with reporting(w):
            for _ in range(1_200):
                leading = w.leader.name if w.leader is not None else ""
                if leaders[-1:] != [leading]:
                    leaders.append(leading)
                await asyncio.sleep(0.1)
        assert len([name for name in leaders if name]) <= 2 + 2 * 120 / LAST_RESORT_S
        assert registered(w) == set("abcd")


async def test_the_last_resort_makes_room_for_another_after_a_while() -> None:
    async with world("a", "b", "c", "d", controllers=("c1", "c2")) as w:
        first = w.led_by()
        w.members.isolated.update(("c1", "c2"))
        async with reporting(w):
            await w.until(lambda: w.leader not in (None, first))
            second = w.led_by()
            await w.until(lambda: w.leader is None)
            await w.until(lambda: w.leader is second)
            w.members.isolated.discard(first.name)
            assert await w.until(lambda: w.leader is first) < LAST_RESORT_S + 2.0
            await asyncio.sleep(2 * LAST_RESORT_S)
            assert w.leader is first
        assert registered(w) == set("abcd")


async def test_with_nobody_else_to_lead_an_isolated_leader_goes_by_leases() -> None:
    async with world("a", "b", "c", "d") as w:
        w.members.isolated.add("c1")
        async with reporting(w):
            await asyncio.sleep(3 * LAST_RESORT_S)
            assert registered(w) == set("abcd")
            await w.until(lambda: w.leader is not None)
            await w.lose_lease("b")
            assert await w.until(lambda: w.is_assigned("a", "c", "d")) < FOLLOWED_S + 2.0


async def test_with_nobody_else_to_lead_members_whose_hosts_refuse_are_dead() -> None:
    """All others end at the same moment, and a firewall would refuse likewise: it takes 3 s more."""
    async with world("a", "b", "c") as w:
        for name in "abc":
            await w.kill(name)
        w.members.broken[0]("b", "reset")
        assert await w.until(lambda: not registered(w)) < FOLLOWED_S + 2.0


async def test_a_leader_that_is_cut_off_together_with_some_members_declares_nobody_dead() -> None:
    """Cut the leader off from three of four members: another controller, which reaches most of them, takes over."""
    async with world("a", "b", "c", "d", controllers=("c1", "c2")) as w:
        first = w.led_by()
        w.members.cut_off[first.name] = {"b", "c", "d"}
        async with reporting(w):
            await w.until(lambda: w.leader not in (None, first))
            await asyncio.sleep(15)
        assert w.led_by() is not first
        assert registered(w) == set("abcd")


async def test_many_that_die_at_once_are_found_as_soon_as_one() -> None:
    async with world("a", "b", "c", "d", "e", "f") as w:
        for name in "bcdef":
            await w.kill(name)
        for name in "bcdef":
            w.members.broken[0](name, "reset")
        assert await w.until(lambda: w.is_assigned("a")) < 1.0


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_a_member_that_dies_with_the_leader_is_found_by_the_next() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        first.kv.crash()
        await w.kill("b")
        assert await w.until(lambda: w.is_assigned("a", "c")) <= TTL_S + 1.0
        w.standbys.remove(first)


async def test_a_bug_makes_room_for_another_and_is_told() -> None:
    """Raise an error in the leader: another one leads, and the failure is reported.

    A process that silently stands for election no more would be missed when the next leader dies.
    """
    async with world("a", controllers=("c1", "c2")) as w:
        first = w.led_by()
        load = w.members.load

        async def broken(member: Member) -> list[Measured] | None:
            if w.leader is first:
                raise ZeroDivisionError("a bug")
            return await load(member)

        w.members.load = broken  # type: ignore[method-assign]
        await w.until(lambda: w.leader not in (None, first))
        assert len(first.failures) == 1
        assert "a bug" in first.failures[0]
        first.failures.clear()


async def test_a_leader_that_stood_still_does_nothing_when_it_goes_on() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        first.kv.pause()
        await w.until(lambda: w.leader not in (None, first))
        second = w.led_by()
        await w.lose_lease("b")
        await w.until(lambda: w.is_assigned("a", "c"))
        first.kv.resume()
        await asyncio.sleep(5)
        assert w.leader is second
        assert [name for name, _ in w.writes][-1] == second.name


async def test_a_write_that_arrives_after_its_leader_is_refused() -> None:
    """Delay a write past its leader's end: the chunk is as it was, so only the leader's key refuses it."""
    async with world("a", "b", controllers=("c1", "c2")) as w:
        first = w.led_by()
        before = w.owners(first)
        key = next(key for key, owner in before.items() if owner == "a")
        first.kv.faults = KvFaults(unknown_late=1.0, late_s=30.0)
        wish = asyncio.ensure_future(admin(w).move("t", key.partition, "b"))
        await asyncio.sleep(0.1)
        first.kv.pause()
        await w.until(lambda: w.leader not in (None, first))
        await asyncio.sleep(30)
        assert w.owners(w.led_by()) == before
        first.kv.resume()
        with pytest.raises(RequestError) as caught:
            await wish
        assert caught.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_write_whose_answer_is_lost_is_known_for_done() -> None:
    """Lose the response to a move's write: unless recognised as done, balancing would move the partition again."""
    async with world("a", "b") as w:
        one = w.led_by()
        key = next(key for key, owner in w.owners(one).items() if owner == "a")
        one.kv.answers_to_lose = 1
        await admin(w).move("t", key.partition, "b")
        assert one.controller.leading is not None
        assert key in one.controller.leading.planner_view().moved_at
        assert w.owners(one)[key] == "b"


async def test_what_has_no_owner_is_counted_until_somebody_can_own_it() -> None:
    async with world("a", "b") as w:
        one = w.led_by()
        assert one.controller.leading is not None
        assert one.controller.leading.without_owner()[0] == 0
        for name in ("a", "b"):
            await w.kill(name)
            one.controller.report("proxy", name)
        await w.until(lambda: not w.is_member("a") and not w.is_member("b"))
        await w.until(lambda: one.controller.leading is not None and one.controller.leading.without_owner()[0] == 12)
        await w.join("c")
        await w.until(lambda: w.is_assigned("c"))
        await w.until(lambda: one.controller.leading is not None and one.controller.leading.without_owner()[0] == 0)


async def test_a_death_whose_answer_is_lost_is_known_for_done() -> None:
    async with world("a", "b") as w:
        one = w.led_by()
        await w.kill("b")
        one.kv.answers_to_lose = 1
        one.controller.report("proxy", "b")
        writes = len(w.writes)
        await w.until(lambda: w.is_assigned("a"))
        await asyncio.sleep(5)
        assert len(w.writes) == writes + 1


async def test_rule_7_an_outage_of_the_store_moves_nothing() -> None:
    """Stop the store, so that no process can lead: a probe that fails then kills no member until it fails again."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        before = w.owners(w.standbys[0])
        w.store.stop()
        await w.until(lambda: w.leader is None)
        await w.kill("b")
        for call in w.members.broken:
            call("b", "reset")
        await asyncio.sleep(30)
        w.members.silent.discard("b")
        w.store.start(asyncio.get_running_loop().time())
        await w.until(lambda: w.leader is not None)
        await asyncio.sleep(30)
        assert w.owners(w.standbys[0]) == before


async def test_rule_7_after_an_outage_a_lease_alone_is_not_believed_for_its_time() -> None:
    async with world("a", "b", "c") as w:
        before = w.owners(w.standbys[0])
        w.store.stop()
        await w.until(lambda: w.leader is None)
        await asyncio.sleep(3)
        w.store.start(asyncio.get_running_loop().time())
        await w.until(lambda: w.leader is not None)
        await w.lose_lease("b")
        await asyncio.sleep(5)
        assert w.owners(w.standbys[0]) == before, "it answers, and may join again"
        await w.join("b")
        await asyncio.sleep(20)
        assert w.owners(w.standbys[0]) == before
        await w.lose_lease("b")
        assert await w.until(lambda: w.is_assigned("a", "c")) < 0.5


async def test_nothing_is_kept_of_a_member_that_is_gone_for_good() -> None:
    async with world("a", "b") as w:
        w.store.stop()
        await w.until(lambda: w.leader is None)
        w.store.start(asyncio.get_running_loop().time())
        await w.until(lambda: w.leader is not None)
        await w.lose_lease("b")
        await w.until(lambda: w.is_assigned("a"))
        term = w.led_by().controller.term
        assert term is not None
        assert term._members.keys() == {"a"}


async def test_a_new_member_is_given_its_share_soon() -> None:
    async with world("a", "b") as w:
        await w.join("c")
        assert await w.until(lambda: w.is_assigned("a", "b", "c")) < 1.0
        await asyncio.sleep(1)
        assert set(counts(w).values()) == {4}


async def test_who_does_not_listen_yet_is_given_nothing_and_not_probed() -> None:
    async with world("a", "b") as w:
        await w.join("c", is_listening=False)
        await asyncio.sleep(5)
        assert "c" not in counts(w)
        assert "c" not in w.members.probes
        await w.join("c")
        await w.until(lambda: w.is_assigned("a", "b", "c"))


async def test_measured_load_is_evened_out() -> None:
    async with world("a", "b", topic=40) as w:
        owners = w.owners(w.standbys[0])
        hot = next(key for key, owner in owners.items() if owner == "a")

        def say() -> None:
            for name in ("a", "b"):
                mine = [key for key, owner in w.owners(w.standbys[0]).items() if owner == name]
                w.members.measured[name] = [
                    Measured(key, 50_000_000 if key == hot else 5_000_000, 0, 5_000 if key == hot else 500)
                    for key in mine
                ]

        for _ in range(40):
            say()
            await asyncio.sleep(5)
        carried = Counter[str]()
        for key, owner in w.owners(w.standbys[0]).items():
            carried[owner] += 10 if key == hot else 1
        assert max(carried.values()) <= 1.2 * sum(carried.values()) / 2


async def test_a_broker_that_most_proxies_cannot_reach_is_emptied() -> None:
    async with world("a", "b", "c") as w:
        await w.join("p1", "p2", "p3", roles=["proxy"])
        kv = MemoryKeyValue(w.store)
        for proxy in ("p1", "p2"):
            await kv.commit([], [Put(unreachable_key("c", proxy), encode_unreachable({"b"}))])
        await w.until(lambda: counts(w)["b"] == 0)
        await kv.commit([], [Put(unreachable_key("c", "p3"), encode_unreachable({"a", "b", "c"}))])
        await asyncio.sleep(1)
        assert counts(w)["a"] == counts(w)["c"] == 6, "who reaches nobody says nothing about them"


async def test_a_broker_that_lives_and_cannot_serve_is_emptied_and_given_its_share_when_it_has_rested() -> None:
    async with world("a", "b", "c") as w:
        w.members.stalled.add("b")
        assert await w.until(lambda: counts(w)["b"] == 0) < 2 * LOAD_S
        assert w.is_member("b")
        w.members.stalled.discard("b")
        await asyncio.sleep(REST_S - LOAD_S)
        assert counts(w)["b"] == 0
        await w.until(lambda: counts(w)["b"] == 4)


async def test_with_none_that_serves_nothing_moves() -> None:
    """Stall all brokers, as when storage is away for everybody: the leader writes nothing."""
    async with world("a", "b", "c") as w:
        before = w.store.revision
        w.members.stalled |= {"a", "b", "c"}
        await asyncio.sleep(60)
        assert w.store.revision == before


async def test_one_that_was_declared_dead_and_is_back_at_once_stays() -> None:
    """Register the member again before the leader sees the end of its key: it sees one change, and a member."""
    async with world("a", "b") as w:
        kv, deleted = w.led_by().kv, asyncio.Event()
        commit = kv.commit

        async def slow(compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
            done = await commit(compares, writes)
            if Delete(member_key("c", "b")) in writes and not deleted.is_set():
                await w.join("b")
                await w.until(lambda: w.led_by().view.revision_of(member_key("c", "b")) > done.revision)
                deleted.set()
            return done

        kv.commit = slow  # type: ignore[method-assign]
        await w.kill("b")
        w.members.broken[0]("b", "reset")
        await deleted.wait()
        await w.until(lambda: w.is_assigned("a", "b"))
        await asyncio.sleep(60)
        assert w.is_member("b")
        assert w.is_assigned("a", "b")


async def test_a_deleted_topic_leaves_no_assignment_behind() -> None:
    async with world("a", "b", "c") as w:
        topics = w.led_by().controller.topics
        assert topics is not None
        topic = w.led_by().catalog.topics["t"]
        await topics.delete_topic("t")
        await w.until(lambda: not w.store.page(f"{assignment_prefix('c')}{topic.topic_id}", "", 10), 120)


async def test_more_partitions_are_assigned() -> None:
    async with world("a", "b") as w:
        topics = w.led_by().controller.topics
        assert topics is not None
        await topics.add_partitions("t", 1_500)
        await w.until(lambda: counts(w)[""] == 0)
        assert counts(w) == {"a": 750, "b": 750}


async def test_an_operator_moves_drains_and_looks() -> None:
    async with world("a", "b") as w:
        key, owner = next(iter(w.owners(w.standbys[0]).items()))
        other = "b" if owner == "a" else "a"
        await admin(w).move("t", key.partition, other)
        assert w.owners(w.standbys[0])[key] == other
        await store(MemoryKeyValue(w.store), partition_key("c", key), PartitionRecord(owner=other), 0)
        await admin(w).drain(other)
        assert w.members.left == [other]
        status = await admin(w).status()
        assert (status.partitions, status.unassigned, len(status.shards)) == (12, 0, 6)
        members = {decode_member(each.registration).incarnation: each for each in status.members}
        assert {name: each.partitions for name, each in members.items()} == dict(counts(w))
        (pending,) = status.pending_moves
        assert pending == MoveStatus(topic="t", partition=key.partition, source=owner, target=other, why="asked")
        await asyncio.sleep(1)
        status = await admin(w).status()
        (past,) = status.past_moves
        assert replace(past, ended_ms=0, took_ms=NOT_FINISHED) == pending
        assert 0 <= past.took_ms < 1_000
        with pytest.raises(RequestError) as caught:
            await admin(w).move("t", 99, other)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(RequestError) as caught:
            await admin(w).move("t", 0, "nobody")
        assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


async def test_an_operator_balances_what_would_be_left() -> None:
    async with world("a", "b", topic=23) as w:
        owned = [key for key, owner in w.owners(w.standbys[0]).items() if owner == "b"]
        await admin(w).move("t", owned[0].partition, "a")
        await asyncio.sleep(10)
        assert abs(counts(w)["a"] - counts(w)["b"]) in (1, 3)
        assert await admin(w).balance() == (1 if abs(counts(w)["a"] - counts(w)["b"]) == 3 else 0)
        await w.until(lambda: abs(counts(w)["a"] - counts(w)["b"]) == 1)


async def test_with_no_broker_nobody_owns_anything_until_one_comes() -> None:
    async with world(topic=5) as w:
        await asyncio.sleep(5)
        assert counts(w) == {"": 5}
        assert w.shards() == {}
        await w.join("a")
        await w.until(lambda: w.is_assigned("a"))


async def test_a_topic_is_not_changed_by_who_was_deposed() -> None:
    """The store refuses what a leader sends that does not know yet."""
    async with world("a", "b", "c") as w:
        one = w.led_by()
        topics = one.controller.topics
        assert topics is not None
        kv = MemoryKeyValue(w.store)
        act = asyncio.ensure_future(topics.create_topic("late"))
        await kv.commit([], [Put(controller_key("c"), b"another")])
        with pytest.raises(RequestError) as caught:
            await act
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(0.1)
        assert "late" not in one.catalog.topics
        assert one.controller.leading is None


# ---------------------------------------------------------------------------------------------------------- open files


def files(held: int, waiting: int = 0, refused: int = 0) -> OpenFileReport:
    return OpenFileReport(held=held, closing=0, waiting=waiting, refused=refused, limit_max=100)


async def test_brokers_are_told_their_shares_while_storage_lacks_room() -> None:
    """Include a broker of an earlier version: it reports no open files and is sent no share."""
    async with world("a", "b", "old") as w:
        reports = w.members.open_file_reports
        reports.update(a=files(60), b=files(0, 60))
        await asyncio.sleep(2 * LOAD_S)
        assert w.members.shares == {"a": None, "b": None, "old": None}
        reports["b"] = files(0, 60, refused=1)
        await w.until(lambda: w.members.shares["b"] is not None, LOAD_S + 2 * SHARE_ROUND_S)
        assert w.members.shares == {"a": 23, "b": 22, "old": None}
        await w.kill("b")
        await w.lose_lease("b")
        await w.until(lambda: w.members.shares["a"] is None)
        assert w.led_by().controller.leading is not None


async def test_a_new_leader_divides_anew_by_what_it_hears_itself() -> None:
    async with world("a", "b", controllers=("c1", "c2")) as w:
        reports = w.members.open_file_reports
        reports.update(a=files(60), b=files(0, 60))
        await asyncio.sleep(LOAD_S + 1)
        reports["b"] = files(0, 60, refused=1)
        await w.until(lambda: w.members.shares["b"] is not None)
        leader = w.led_by()
        await leader.close()
        w.standbys.remove(leader)
        await w.until(lambda: w.leader is not None)
        await w.until(lambda: w.members.shares["b"] is None)
        reports["b"] = files(22, 60, refused=2)
        await w.until(lambda: w.members.shares["b"] is not None, LOAD_S + 2 * SHARE_ROUND_S)
