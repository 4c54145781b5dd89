"""A leader's term over a store: who owns what when members come, go, drain, stall and die."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.controller.failures import ProbeFailed, Reported
from bmq.controller.heartbeats import BEAT_S, SUSPECT_S
from bmq.controller.patience import FACTOR, LEAST_S
from bmq.controller.planning.balancing import UNEVEN_S
from bmq.controller.planning.lasting_loads import WINDOW_S, WINDOWS
from bmq.controller.planning.partition_load import Measured
from bmq.controller.planning.planner_view import SETTLE_S
from bmq.controller.share_rounds import ROOMY_ROUND_S, SHARE_ROUND_S
from bmq.controller.stalled_brokers import REST_S
from bmq.controller.store_age import NOTE_S
from bmq.controller.term import LOAD_S
from bmq.core.features import LevelRange
from bmq.core.rpc.peers import Evidence
from bmq.meta.cluster.keys import assignment_prefix, features_key, member_key
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.unreachable import encode_unreachable, unreachable_key
from bmq.meta.kv import Commit, Compare, Delete, KvUnavailable, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.meta.ownership import PartitionRecord, encode, partition_key
from tests.unit.controller.world import file_report, world

pytestmark = pytest.mark.slow


async def test_a_new_cluster_is_assigned_evenly() -> None:
    async with world("a", "b", "c") as w:
        assert set(w.counts().values()) == {4}
        assert Counter(owner.incarnation for owner in w.shards().values()) == {"a": 2, "b": 2, "c": 2}
        assert {owner.number for owner in w.shards().values()} == {1}


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with world("a", "b", "c") as w:
        await asyncio.sleep(NOTE_S)  # the store was changed since its last count
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
        assert set(w.counts().values()) == {6}


async def test_a_reported_member_that_is_dead_is_removed_together_with_its_partitions() -> None:
    """Kill a member: its key and its partitions go in one transaction, no process sees one without the other."""
    async with world("a", "b", "c") as w:
        await w.kill("b")
        assert w.led_by().controller.report("proxy", "b")
        assert await w.until(lambda: w.is_assigned("a", "c")) < 0.5
        assert w.store.get(member_key("c", "b")) is None
        keys = next(keys for _, keys in w.writes if member_key("c", "b") in keys)
        assert any(key.startswith(assignment_prefix("c")) for key in keys)


async def test_a_reported_member_that_answers_keeps_its_partitions() -> None:
    async with world("a", "b", "c") as w:
        before, probes = w.store.revision, len(w.members.probes)
        w.led_by().controller.report("proxy", "b")
        w.members.broken[0]("b", "reset")
        await w.until(lambda: len(w.members.probes) > probes)
        await asyncio.sleep(5)
        assert w.store.revision == before


async def test_a_member_that_falls_silent_is_removed_although_no_connection_breaks() -> None:
    async with world("a", "b", "c") as w:
        await asyncio.sleep(5)
        await w.kill("b")
        assert await w.until(lambda: w.is_assigned("a", "c")) < BEAT_S + SUSPECT_S + 0.5


async def test_a_member_that_was_only_slow_is_waited_for_longer_the_next_time() -> None:
    """Declare a member dead that stands still for a second and a half: as slow as this it may be from then on."""
    async with world("a", "b", "c") as w:
        await asyncio.sleep(5)
        assert set(w.members.patience) == {LEAST_S}
        await w.kill("b")
        await w.until(lambda: w.is_assigned("a", "c"))
        await asyncio.sleep(1)
        await w.join("b")
        await w.until(lambda: w.is_assigned("a", "b", "c"))
        w.members.patience.clear()
        w.led_by().controller.report("proxy", "b")
        await w.until(lambda: bool(w.members.patience))
        assert w.members.patience[-1] >= FACTOR * 1.0


async def test_a_member_that_joins_again_and_is_still_silent_is_given_nothing_and_teaches_no_patience() -> None:
    """Cut the leader off from one member, which reaches the store and joins again each time it was declared dead."""
    async with world("a", "b", "c") as w:
        await asyncio.sleep(5)
        w.members.cut_off[w.led_by().name] = {"b"}
        await w.until(lambda: w.is_assigned("a", "c"))
        before = len(w.writes)
        for _ in range(3):
            await w.join("b")
            await w.until(lambda: w.is_member("b"))
            await w.until(lambda: not w.is_member("b"))
        await asyncio.sleep(5)
        assert w.is_assigned("a", "c")
        assert not [keys for _, keys in w.writes[before:] if any(key != member_key("c", "b") for key in keys)]
        assert set(w.members.patience) == {LEAST_S}
        w.members.cut_off.clear()
        await w.join("b")
        await w.until(lambda: w.is_assigned("a", "b", "c"))


async def test_a_member_declared_dead_joins_again_and_is_given_its_share() -> None:
    async with world("a", "b") as w:
        await w.kill("b")
        w.members.broken[0]("b", "reset")
        await w.until(lambda: w.is_assigned("a"))
        await w.join("b")
        await w.until(lambda: w.is_assigned("a", "b"))
        assert set(w.counts().values()) == {6}


async def test_a_drain_moves_the_next_partitions_when_the_last_ones_are_owned() -> None:
    """A step is not begun before the one before is done: the new owners' records say so."""
    async with world("a", "b", topic=300) as w:
        kv = MemoryKeyValue(w.store)
        for key in w.owners(w.standbys[0]):
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner="b")))])
        await w.drain("b")
        await w.until(lambda: w.counts()["b"] == 150 - 64)
        await asyncio.sleep(5)
        assert w.counts()["b"] == 150 - 64
        for key, owner in w.owners(w.standbys[0]).items():
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner=owner)))])
        await w.until(lambda: w.counts()["b"] == 150 - 128)


async def test_a_move_that_is_stuck_does_not_hold_up_the_drain_for_ever() -> None:
    async with world("a", "b", topic=300) as w:
        kv = MemoryKeyValue(w.store)
        for key in w.owners(w.standbys[0]):
            await kv.commit([], [Put(partition_key("c", key), encode(PartitionRecord(owner="b")))])
        await w.drain("b")
        await w.until(lambda: w.is_assigned("a"))


async def test_many_that_die_at_once_are_found_as_soon_as_one() -> None:
    async with world("a", "b", "c", "d", "e", "f") as w:
        for name in "bcdef":
            await w.kill(name)
        for name in "bcdef":
            w.members.broken[0](name, "reset")
        assert await w.until(lambda: w.is_assigned("a")) < 1.0


async def test_partitions_without_an_owner_are_counted_until_a_broker_joins() -> None:
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
        assert term.watch._members.keys() == {"a"}


async def test_a_new_member_is_given_its_share_once_it_has_settled() -> None:
    async with world("a", "b") as w:
        await w.join("c")
        assert SETTLE_S - 1 < await w.until(lambda: w.is_assigned("a", "b", "c")) < SETTLE_S + LOAD_S + 1
        await asyncio.sleep(1)
        assert set(w.counts().values()) == {4}


async def test_a_new_member_is_given_its_share_at_once_if_an_operator_asks() -> None:
    async with world("a", "b") as w:
        await w.join("c")
        await asyncio.sleep(1)
        assert "c" not in w.counts()
        assert await w.admin().balance() > 0
        assert await w.until(lambda: w.is_assigned("a", "b", "c")) < 1.0


async def test_a_new_topic_is_left_where_it_was_placed_for_a_minute() -> None:
    async with world("a", "b") as w:
        await w.join("c")
        await asyncio.sleep(SETTLE_S - 20)
        topics = w.led_by().topics
        topic_id = (await topics.create_topic("new", 6, 1, {})).topic_id
        await asyncio.sleep(1)
        placed = {key: owner for key, owner in w.owners(w.standbys[0]).items() if key.topic_id == topic_id}
        assert len(placed) == 6
        await asyncio.sleep(SETTLE_S - 10)
        assert w.counts()["c"] > sum(owner == "c" for owner in placed.values()), "the older topic was balanced"
        assert placed.items() <= w.owners(w.standbys[0]).items()


async def test_a_member_that_does_not_listen_yet_is_given_nothing_and_not_probed() -> None:
    async with world("a", "b") as w:
        await w.join("c", is_listening=False)
        await asyncio.sleep(5)
        assert "c" not in w.counts()
        assert "c" not in w.members.probes
        await w.join("c")
        await w.until(lambda: w.is_assigned("a", "b", "c"))


async def test_a_new_leader_does_not_take_loads_that_it_does_not_know_for_rest() -> None:
    async with world("a", "b", controllers=("c1", "c2")) as w:
        for name in ("a", "b"):
            mine = [key for key, owner in w.owners(w.standbys[0]).items() if owner == name]
            w.members.measured[name] = [Measured(key, 5_000_000, 0, 500) for key in mine]
        await asyncio.sleep(2 * LOAD_S)
        await w.join("c")
        await asyncio.sleep(2 * SETTLE_S)
        assert "c" not in w.counts(), "the load may be a burst"
        leader = w.led_by()
        await leader.close()
        w.standbys.remove(leader)
        await w.until(lambda: w.leader is not None)
        await asyncio.sleep(2 * SETTLE_S)
        assert "c" not in w.counts(), "the load may be a burst"


async def test_measured_load_is_balanced() -> None:
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

        async def last(seconds: float) -> int:
            for _ in range(round(seconds / LOAD_S)):
                say()
                await asyncio.sleep(LOAD_S)
            carried = Counter[str]()
            for key, owner in w.owners(w.standbys[0]).items():
                carried[owner] += 10 if key == hot else 1
            return max(carried.values())

        assert await last(WINDOWS * WINDOW_S + UNEVEN_S - 10) == 29, "a load that may be a burst moves nothing"
        assert await last(60) <= 25


async def test_a_broker_that_most_proxies_cannot_reach_is_emptied() -> None:
    async with world("a", "b", "c") as w:
        await w.join("p1", "p2", "p3", roles=["proxy"])
        kv = MemoryKeyValue(w.store)
        for proxy in ("p1", "p2"):
            await kv.commit([], [Put(unreachable_key("c", proxy), encode_unreachable({"b"}))])
        await w.until(lambda: w.counts()["b"] == 0)
        await kv.commit([], [Put(unreachable_key("c", "p3"), encode_unreachable({"a", "b", "c"}))])
        await asyncio.sleep(1)
        assert w.counts()["a"] == w.counts()["c"] == 6, "who reaches nobody says nothing about them"


async def test_a_broker_that_lives_and_cannot_serve_is_emptied_and_given_its_share_when_it_has_rested() -> None:
    async with world("a", "b", "c") as w:
        w.members.stalled.add("b")
        assert await w.until(lambda: w.counts()["b"] == 0) < 2 * LOAD_S
        assert w.is_member("b")
        w.members.stalled.discard("b")
        await asyncio.sleep(REST_S - LOAD_S)
        assert w.counts()["b"] == 0
        await w.until(lambda: w.counts()["b"] == 4)


async def test_while_no_broker_serves_nothing_moves() -> None:
    """Stall all brokers, as when storage is away for everybody: the leader writes nothing."""
    async with world("a", "b", "c") as w:
        await asyncio.sleep(NOTE_S)  # the store was changed since its last count
        before = w.store.revision
        w.members.stalled |= {"a", "b", "c"}
        await asyncio.sleep(60)
        assert w.store.revision == before


async def test_a_member_that_registers_again_while_it_is_removed_stays() -> None:
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
        topics = w.led_by().topics
        topic = w.led_by().catalog.topics["t"]
        await topics.delete_topic("t")
        await w.until(lambda: not w.store.page(f"{assignment_prefix('c')}{topic.topic_id}", "", 10), 120)


async def test_partitions_added_to_a_topic_are_assigned() -> None:
    async with world("a", "b") as w:
        topics = w.led_by().topics
        await topics.add_partitions("t", 1_500)
        await w.until(lambda: w.counts()[""] == 0)
        assert w.counts() == {"a": 750, "b": 750}


async def test_without_a_broker_partitions_have_no_owner_until_one_joins() -> None:
    async with world(topic=5) as w:
        await asyncio.sleep(5)
        assert w.counts() == {"": 5}
        assert w.shards() == {}
        await w.join("a")
        await w.until(lambda: w.is_assigned("a"))


async def test_brokers_are_sent_their_shares_while_storage_lacks_room() -> None:
    """Include a broker of an earlier version: it reports no open files and is sent no share."""
    async with world("a", "b", "old") as w:
        reports = w.members.open_file_reports
        reports.update(a=file_report(60), b=file_report(0, 60))
        await asyncio.sleep(2 * ROOMY_ROUND_S)
        assert w.members.shares == {"a": None, "b": None, "old": None}
        reports["b"] = file_report(0, 60, refused=1)
        await w.until(lambda: w.members.shares["b"] is not None, ROOMY_ROUND_S + 2 * SHARE_ROUND_S)
        assert w.members.shares == {"a": 23, "b": 22, "old": None}
        await w.kill("b")
        await w.lose_lease("b")
        await w.until(lambda: w.members.shares["a"] is None)
        assert w.led_by().controller.leading is not None


async def test_a_member_that_does_not_support_a_level_is_given_nothing() -> None:
    async with world("a", "b") as w:
        record = encode_record(FeatureLevels(epoch=1, levels={"f": 1}))
        kv = MemoryKeyValue(w.store)
        for name in ("a", "b"):
            entry = w.store.get(member_key("c", name))
            assert entry is not None
            await w.put(replace(decode_member(entry.value), features=(("f", LevelRange(0, 1)),)))
        await kv.commit([], [Put(features_key("c"), record)])
        await w.join("old")
        await asyncio.sleep(SETTLE_S)
        assert w.is_assigned("a", "b")
        await kv.commit([], [Put(features_key("c"), encode_record(FeatureLevels(epoch=2)))])
        await w.until(lambda: w.is_assigned("a", "b", "old"), 1_000)


async def test_rule_7_a_store_that_flaps_while_the_leader_waits_for_it_does_not_count_as_away_for_good() -> None:
    """A leader that believes so declares nobody dead whose lease ends."""
    async with world("a", "b", "c") as w:
        leader = w.led_by()
        controller, term, kv = leader.controller, leader.controller.term, leader.kv
        assert term is not None
        keep_alive, commit, is_away, may_commit = kv.keep_alive, kv.commit, False, asyncio.Event()

        async def keep(lease: int) -> float:
            if is_away:
                raise KvUnavailable("flapping")
            return await keep_alive(lease)

        async def wait_and_commit(compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
            await may_commit.wait()
            return await commit(compares, writes)

        async def flap(to_away: bool) -> None:
            nonlocal is_away
            is_away = to_away
            await w.until(lambda: controller._is_store_there is not to_away)

        kv.keep_alive, kv.commit = keep, wait_and_commit  # type: ignore[method-assign]
        await flap(True)
        await w.until(lambda: not term.queue.has_urgent)
        await w.drain("c")  # a reason for a plan, whose commit waits through all that follows
        await asyncio.sleep(0.1)
        for to_away in (False, True, False):
            await flap(to_away)
        may_commit.set()
        await w.until(lambda: not term.queue.has_urgent)
        await w.lose_lease("b")
        await w.until(lambda: set(w.counts()) == {"a"})
        assert controller.term is term


async def test_an_unproven_member_that_no_probe_reaches_is_probed_once_a_second() -> None:
    async with world("a", "b", "c") as w:
        probes, probe_by = 0, w.members.probe_by

        async def probe(controller: str, member: Member, patience_s: float) -> Evidence:
            nonlocal probes
            if member.incarnation != "b":
                return await probe_by(controller, member, patience_s)
            probes += 1
            return Evidence.NONE  # at once, as while its name is not looked up

        w.members.probe_by = probe  # type: ignore[method-assign]
        leader = w.led_by()
        term = leader.controller.term
        assert term is not None
        term.watch.stayed_silent("b", asyncio.get_running_loop().time())
        await w.lose_lease("b")
        await w.until(lambda: not term.watch.is_living("b"))
        await w.join("b")
        await w.until(lambda: probes > 0)
        before = probes
        await asyncio.sleep(20)
        assert 10 <= probes - before <= 25


async def test_a_probe_from_before_a_member_was_gone_does_not_count_when_it_is_back() -> None:
    async with world("a", "b", "c") as w:
        await asyncio.sleep(60)
        probes: list[asyncio.Future[Evidence]] = []
        probe_by = w.members.probe_by

        async def probe(controller: str, member: Member, patience_s: float) -> Evidence:
            if member.incarnation != "b":
                return await probe_by(controller, member, patience_s)
            probes.append(asyncio.get_running_loop().create_future())
            return await probes[-1]

        w.members.probe_by = probe  # type: ignore[method-assign]
        leader = w.led_by()
        term = leader.controller.term
        assert term is not None
        leader.controller.report("proxy", "b")
        await w.until(lambda: len(probes) == 1)
        await w.lose_lease("b")
        await w.until(lambda: not term.watch.is_living("b"))
        await w.join("b")
        await w.until(lambda: term.watch.is_living("b"))
        leader.controller.report("proxy", "b")
        await w.until(lambda: len(probes) == 2)
        if not probes[0].done():
            probes[0].set_result(Evidence.REFUSED)
        await asyncio.sleep(1.0)
        assert term.watch.is_living("b")
        probes[1].set_result(Evidence.REFUSED)
        await w.until(lambda: not term.watch.is_living("b"))


async def test_a_result_that_is_queued_when_a_probe_begins_is_of_an_earlier_probe() -> None:
    async with world("a", "b", "c") as w:
        await asyncio.sleep(60)
        term = w.led_by().controller.term
        assert term is not None
        term.queue.put(Reported("proxy", "b"))
        term.queue.put(ProbeFailed("b"))
        await asyncio.sleep(1.0)
        assert term.watch.is_living("b")
