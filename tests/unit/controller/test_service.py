"""The controller of one process: when it leads, resigns and is followed, and what a term leaves to the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bmq.controller.election import TTL_S
from bmq.controller.patience import LEAST_S, MOST_S
from bmq.controller.planning.partition_load import Measured
from bmq.controller.probing import LAST_RESORT_S
from bmq.controller.service import FOLLOWED_S
from bmq.controller.share_rounds import ROOMY_ROUND_S, SHARE_ROUND_S
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import LevelRange
from bmq.meta.cluster.keys import controller_key, features_key, member_key
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.cluster.member import CONTROLLER, Address, Member
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue
from bmq.meta.store_count import decode_store_count, store_count_key
from bmq.storage.memory import Faults, MemoryFileSystem
from bmq.storage.store_counts import newest_store_counts, put_store_count
from tests.unit.controller.world import MEMBER_TTL_S, World, file_report, world

pytestmark = pytest.mark.slow
OLDER = "the metadata store is older than storage"


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_after_a_leaders_crash_another_leads_within_the_lease_and_moves_nothing() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first, before = w.led_by(), len(w.writes)
        first.kv.crash()
        assert await w.until(lambda: w.leader not in (None, first)) <= TTL_S + 0.5
        await asyncio.sleep(10)
        assert len(w.writes) == before
        w.standbys.remove(first)


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_a_leader_whose_host_refuses_connections_is_followed_before_its_lease_ends() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await w.join(first.name, roles=(CONTROLLER,))
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        lost = w.members.broken[w.standbys.index(second)]
        first.kv.crash()
        w.standbys.remove(first)  # dead: what it believes does not count
        await w.kill(first.name)
        lost(first.name, "reset")
        assert await w.until(lambda: w.leader is second) < 0.5
        await w.until(lambda: not w.is_member(first.name))


async def test_a_leader_that_is_silent_leads_until_its_lease_ends() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await w.join(first.name, roles=(CONTROLLER,))
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        w.members.silent.add(first.name)
        for _ in range(5):
            w.members.broken[w.standbys.index(second)](first.name, "silent")
            await asyncio.sleep(1)
        assert w.led_by() is first


async def test_a_leader_to_which_connections_are_refused_and_that_lives_is_removed_once() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await w.join(first.name, roles=(CONTROLLER,))
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        w.members.cut_off[second.name] = {first.name}
        w.members.ended.add(first.name)
        w.members.broken[w.standbys.index(second)](first.name, "refused")
        await w.until(lambda: w.leader is second)
        await second.controller.close()
        await w.until(lambda: w.leader is first)
        await second.controller.start()
        for _ in range(5):
            w.members.broken[-1](first.name, "refused")
            await asyncio.sleep(1)
        assert w.led_by() is first


@pytest.mark.parametrize(
    ("level", "leader", "stays"),
    [
        pytest.param(1, None, False, id="a process that has lost its key, perhaps of a version before levels"),
        pytest.param(1, 0, False, id="a member of a version before levels"),
        pytest.param(1, 1, True, id="a member that supports the level"),
        pytest.param(0, None, True, id="no level is in force"),
    ],
)
async def test_an_elected_process_that_may_not_support_a_level_in_force_is_removed(
    level: int, leader: int | None, stays: bool
) -> None:
    """A version before levels checks no level when it is elected: it may stand for election until it joins again."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        second = next(each for each in w.standbys if each is not first)

        async def join(name: str, highest: int) -> None:
            await w.join(name, roles=(CONTROLLER,))
            features = (("f", LevelRange(0, highest)),) if highest else ()
            address = Address(host=name, port=1)
            await w.put(Member(incarnation=name, roles=frozenset({CONTROLLER}), internal=address, features=features))

        await join(second.name, 1)
        if leader is not None:
            await join(first.name, leader)
        if level:
            levels = FeatureLevels(epoch=1, levels={"f": level})
            w.store.commit([], [Put(features_key("c"), encode_record(levels))], asyncio.get_running_loop().time())
        if stays:
            await asyncio.sleep(10)
            assert w.led_by() is first
        else:
            assert await w.until(lambda: w.leader is second) < 1
            await asyncio.sleep(10)
            assert w.led_by() is second, "the former leader does not remove a member that supports the level"


async def test_a_leader_that_does_not_listen_yet_is_not_looked_at() -> None:
    """A controller stands for election before its internal port is open: until then connections to it are refused."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await w.join(first.name, roles=(CONTROLLER,), is_listening=False)
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        assert first.name not in w.members.kept
        w.members.cut_off[second.name] = {first.name}
        w.members.ended.add(first.name)
        w.members.broken[w.standbys.index(second)](first.name, "refused")
        await asyncio.sleep(5)
        assert w.led_by() is first
        await w.put(Member(incarnation=first.name, roles=frozenset(), internal=Address(host=first.name, port=1)))
        await second.view.wait_revision(w.store.revision)
        assert w.members.kept[-1] == first.name, "its address is known"


async def test_a_look_at_a_leader_that_is_followed_meanwhile_does_not_remove_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Have the watch show the next leader between the broken connection and the look: in the same turn of the loop."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first, key = w.led_by(), controller_key("c")
        await w.join(first.name, roles=(CONTROLLER,))
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        await w.kill(first.name)
        w.members.broken[w.standbys.index(second)](first.name, "reset")
        found = w.store.commit([], [Put(key, b"c3")], asyncio.get_running_loop().time())
        monkeypatch.setattr(second.view, "revision_of", lambda _: found.revision)
        await asyncio.sleep(1)
        entry = w.store.get(key)
        assert entry is not None
        assert entry.revision == found.revision


async def test_the_leader_is_connected_to_for_as_long_as_it_leads() -> None:
    """Connections that are refused or silent are not tried without end unless they are asked for again."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        await w.join(first.name, roles=(CONTROLLER,))
        second = next(each for each in w.standbys if each is not first)
        await second.view.wait_revision(w.store.revision)
        w.members.silent.add(first.name)
        before = len(w.members.kept)
        w.members.broken[w.standbys.index(second)](first.name, "silent")
        await w.until(lambda: first.name in w.members.kept[before:])


async def test_a_new_leader_that_knows_of_a_pause_of_the_store_does_not_believe_leases_that_ended() -> None:
    """End all leases, as a store does that was paused: the next leader has made no call that failed."""
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first, before = w.led_by(), w.counts()
        second = next(each for each in w.standbys if each is not first)
        second.since_outage_s = 0.5
        await first.controller.close()
        await w.until(lambda: w.leader is second)
        for name in "abc":
            await w.lose_lease(name)
        await w.join("a", "b")
        await asyncio.sleep(MEMBER_TTL_S - 2)
        assert w.counts() == before, "they may join again"
        await w.until(lambda: w.is_assigned("a", "b"), 5)


async def test_a_leader_that_closes_is_followed_at_once() -> None:
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


@pytest.mark.parametrize("probe_s", [0.05, LEAST_S, MOST_S])
async def test_two_isolated_leaders_do_not_resign_in_turn_for_ever(probe_s: float) -> None:
    """Isolate both controllers: the second becomes the last resort, and neither declares a member dead.

    Their patience is that of a leader that has seen no slow member, or the most.
    """
    async with world("a", "b", "c", "d", controllers=("c1", "c2")) as w:
        w.members.probe_s = probe_s
        w.members.isolated.update(("c1", "c2"))
        leaders: list[str] = []
        async with reporting(w):
            for _ in range(1_200):
                leading = w.leader.name if w.leader is not None else ""
                if leaders[-1:] != [leading]:
                    leaders.append(leading)
                await asyncio.sleep(0.1)
        assert len([name for name in leaders if name]) <= 2 + 2 * 120 / LAST_RESORT_S
        assert w.registered("abcd") == set("abcd")


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
        assert w.registered("abcd") == set("abcd")


async def test_with_nobody_else_to_lead_an_isolated_leader_goes_by_leases() -> None:
    async with world("a", "b", "c", "d") as w:
        w.members.isolated.add("c1")
        async with reporting(w):
            await asyncio.sleep(3 * LAST_RESORT_S)
            assert w.registered("abcd") == set("abcd")
            await w.until(lambda: w.leader is not None)
            await w.lose_lease("b")
            assert await w.until(lambda: w.is_assigned("a", "c", "d")) < FOLLOWED_S + 2.0


async def test_with_nobody_else_to_lead_members_whose_hosts_refuse_are_dead() -> None:
    """All others end at the same moment, and a firewall would refuse likewise: it takes 3 s more."""
    async with world("a", "b", "c") as w:
        for name in "abc":
            await w.kill(name)
        w.members.broken[0]("b", "reset")
        assert await w.until(lambda: not w.registered("abcd")) < FOLLOWED_S + 2.0


async def test_a_leader_that_is_cut_off_together_with_some_members_declares_nobody_dead() -> None:
    """Cut the leader off from three of four members: another controller, which reaches most of them, takes over."""
    async with world("a", "b", "c", "d", controllers=("c1", "c2")) as w:
        first = w.led_by()
        w.members.cut_off[first.name] = {"b", "c", "d"}
        async with reporting(w):
            await w.until(lambda: w.leader not in (None, first))
            await asyncio.sleep(15)
        assert w.led_by() is not first
        assert w.registered("abcd") == set("abcd")


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_a_member_that_dies_with_the_leader_is_found_by_the_next() -> None:
    async with world("a", "b", "c", controllers=("c1", "c2")) as w:
        first = w.led_by()
        first.kv.crash()
        await w.kill("b")
        assert await w.until(lambda: w.is_assigned("a", "c")) <= TTL_S + 1.0
        w.standbys.remove(first)


async def test_a_leader_that_fails_by_a_bug_is_followed_and_reports_it() -> None:
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
        wish = asyncio.ensure_future(w.admin().move("t", key.partition, "b"))
        await asyncio.sleep(0.1)
        first.kv.pause()
        await w.until(lambda: w.leader not in (None, first))
        await asyncio.sleep(30)
        assert w.owners(w.led_by()) == before
        first.kv.resume()
        with pytest.raises(RequestError) as caught:
            await wish
        assert caught.value.code is ErrorCode.NOT_CONTROLLER


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


async def test_a_deposed_leader_does_not_create_a_topic() -> None:
    """The store refuses what a leader sends that does not know yet."""
    async with world("a", "b", "c") as w:
        one = w.led_by()
        topics = one.topics
        kv = MemoryKeyValue(w.store)
        act = asyncio.ensure_future(topics.create_topic("late"))
        await kv.commit([], [Put(controller_key("c"), b"another")])
        with pytest.raises(RequestError) as caught:
            await act
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(0.1)
        assert "late" not in one.catalog.topics
        assert one.controller.leading is None


async def test_a_new_leader_divides_the_open_files_by_its_own_reports() -> None:
    async with world("a", "b", controllers=("c1", "c2")) as w:
        reports = w.members.open_file_reports
        reports.update(a=file_report(60), b=file_report(0, 60))
        await asyncio.sleep(ROOMY_ROUND_S + 1)
        reports["b"] = file_report(0, 60, refused=1)
        await w.until(lambda: w.members.shares["b"] is not None)
        leader = w.led_by()
        await leader.close()
        w.standbys.remove(leader)
        await w.until(lambda: w.leader is not None)
        await w.until(lambda: w.members.shares["b"] is None)
        reports["b"] = file_report(22, 60, refused=2)
        await w.until(lambda: w.members.shares["b"] is not None, ROOMY_ROUND_S + 2 * SHARE_ROUND_S)


@pytest.mark.leaves_tasks  # the leader that crashes
async def test_rule_3_a_leader_that_finds_the_store_older_than_storage_writes_nothing_and_ends() -> None:
    """An old state of etcd was brought back under running processes: no partition is given, whoever is elected."""
    async with world("a", "b", controllers=("c1", "c2")) as w:
        first, second = w.standbys
        leader = w.led_by()
        await w.until(lambda: w.store.get(store_count_key("c")) is not None)
        old = w.store.get(store_count_key("c"))
        assert old is not None
        fs = MemoryFileSystem(w.storage, "test")
        await put_store_count(fs, replace(decode_store_count(old), number=1_000))
        leader.kv.crash()
        w.standbys.remove(leader)
        other = second if leader is first else first
        before = len(w.writes)
        await w.join("d")
        w.storage.faults = Faults(call_s=(0.1, 0.1))
        terms = []
        while not other.failures:
            terms.append(other.controller.term)
            await asyncio.sleep(0.01)
        assert set(terms) == {None}, "nothing of a leader's work begins before the check"
        assert [OLDER in why for why in other.failures] == [True]
        await asyncio.sleep(30)
        assert (len(w.writes), other.controller.leading, len(other.failures)) == (before, None, 1)
        assert w.store.get(store_count_key("c")) == old
        assert w.store.get(controller_key("c")) is None, "another process may find the same"
        other.failures.clear()


async def test_a_leader_that_ends_counts_the_store_for_the_last_time() -> None:
    async with world("a", controllers=("c1", "c2")) as w:
        await w.until(lambda: w.store.get(store_count_key("c")) is not None)
        topics = w.led_by().topics
        await topics.create_topic("late", 1)
        await w.led_by().controller.close()
        first = w.store.get(store_count_key("c"))
        assert first is not None
        assert decode_store_count(first).number == 2
        newest = await newest_store_counts(MemoryFileSystem(w.storage, "test"))
        assert newest == [decode_store_count(first)]
