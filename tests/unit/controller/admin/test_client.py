"""Admin acts asked of the leader from elsewhere: the same answers, and true ones when a leader is lost on the way."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bmq.controller.admin.api import Admin, ClusterAdmin
from bmq.controller.admin.client import RemoteAdmin
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.rpc.peers import Peers
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.config_changes import ConfigChange, Operation
from tests.harness.fakes import FakeCatalog, FakeView
from tests.harness.waiting import until
from tests.unit.controller.admin.remote import Fate, proxied, refused, remote
from tests.unit.controller.world import world


async def test_a_change_shows_in_the_proxys_catalog_when_it_is_answered() -> None:
    async with proxied("c1") as (_, one):
        admin: Admin = one.admin
        made = await admin.create_topic("u", 3, configs={"retention.ms": "5"})
        assert one.catalog.topics["u"] == made
        assert (made.partitions, made.configs) == (3, {"retention.ms": "5"})
        assert await admin.ensure_topic("u") == made
        assert (await admin.ensure_topic("v")).name == "v"
        assert (await admin.ensure_topic("y", "User:alice")).principal == "User:alice"
        owned = await admin.create_topic("z", 2, principal="User:alice")
        assert (owned.principal, one.catalog.topics["z"]) == ("User:alice", owned)
        assert one.catalog.owned_by("User:alice").topics == 2
        assert (await admin.create_topic("w", assignments={0: [0]}, configs={})).partitions == 1
        assert (await admin.create_topic("x", 2, validate_only=True)).partitions == 2
        assert "x" not in one.catalog.topics
        more = await admin.add_partitions("u", 5)
        assert one.catalog.topics["u"] == more
        changed = await admin.alter_topic_configs("u", [ConfigChange("retention.ms", Operation.SET, "7")])
        assert one.catalog.topics["u"] == changed
        assert (await admin.alter_topic_configs("u", {"retention.ms": "8"})).configs == {"retention.ms": "8"}
        await admin.alter_broker_configs(None, [ConfigChange("log.retention.ms", Operation.SET, "9")])
        assert one.catalog.broker_configs(None) == {"log.retention.ms": "9"}
        await admin.delete_topic("u", made.topic_id)
        assert "u" not in one.catalog.topics


async def test_an_error_of_the_leader_reaches_the_client() -> None:
    async with proxied("c1") as (_, one):
        await refused(one.admin.create_topic("t"), ErrorCode.TOPIC_ALREADY_EXISTS)
        await refused(one.admin.create_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION)
        await refused(one.admin.delete_topic("nothing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await refused(one.admin.add_partitions("t", 12), ErrorCode.INVALID_PARTITIONS)
        await refused(one.admin.alter_topic_configs("t", {"no.such": "1"}), ErrorCode.INVALID_CONFIG)


async def test_a_leader_that_does_not_serve_a_request_refuses_it_at_once() -> None:
    async with proxied("c1") as (_, one):
        one.peers.is_earlier = True
        assert "c1 does not serve" in await refused(one.admin.create_topic("u"), ErrorCode.UNSUPPORTED_VERSION)
        assert one.peers.calls == 1


@pytest.mark.slow
@pytest.mark.parametrize("fate", [fate for fate in Fate if fate is not Fate.ANSWERED])
async def test_a_request_repeated_after_a_lost_response_has_the_first_result(fate: Fate) -> None:
    """Lose responses to create, add partitions, alter and delete: the repeated request has the result of the first."""
    async with world("a", "b", controllers=["c1"]) as w, remote(w) as one:
        one.peers.fates = [fate, fate]
        made = await one.admin.create_topic("u", 3)
        assert one.catalog.topics["u"] == made
        one.peers.fates = [fate]
        assert (await one.admin.add_partitions("u", 5)).partitions == 5
        one.peers.fates = [fate]
        await one.admin.alter_topic_configs("u", {"retention.ms": "8"})
        one.peers.fates = [fate]
        await one.admin.delete_topic("u")
        assert "u" not in one.catalog.topics


@pytest.mark.slow
async def test_a_client_is_told_when_the_outcome_stays_unknown() -> None:
    async with proxied("c1") as (_, one):
        one.peers.fates = [Fate.REQUEST_LOST] * 1000
        assert "not known" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)
        one.peers.fates = [Fate.NOT_SENT] * 1000
        assert "nothing was done" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


async def test_a_topic_that_is_not_known_here_is_not_deleted_twice_by_its_name() -> None:
    async with proxied("c1") as (_, one):
        one.peers.fates = [Fate.REQUEST_LOST]
        assert "not known" in await refused(one.admin.delete_topic("unheard of"), ErrorCode.REQUEST_TIMED_OUT)


async def test_a_request_goes_to_the_next_leader() -> None:
    async with proxied("c1", "c2") as (w, one):
        first = w.led_by()
        act = asyncio.ensure_future(one.admin.create_topic("u"))
        await first.controller.close()
        assert (await act).name == "u"
        assert w.led_by() is not first


async def test_a_leader_that_never_answers_is_left_when_another_leads() -> None:
    async with proxied("c1", "c2") as (w, one):
        started = asyncio.get_running_loop().time()
        first = w.led_by()
        one.peers.fates = [Fate.SILENT]
        first.kv.pause()
        made = await one.admin.create_topic("u")
        assert asyncio.get_running_loop().time() - started < 5
        assert one.catalog.topics["u"] == made
        first.kv.resume()


async def test_a_cluster_without_a_leader_is_a_clear_error() -> None:
    async with proxied("c1") as (w, one):
        await w.led_by().controller.close()
        assert "no controller" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


async def test_an_etcd_that_is_away_is_a_clear_error() -> None:
    async with proxied("c1") as (w, one):
        w.store.stop()
        await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


async def test_operators_requests_reach_the_leader() -> None:
    async with proxied("c1") as (w, one):
        cluster: ClusterAdmin = one.admin
        status = await cluster.status()
        assert [decode_member(each.registration).incarnation for each in status.members] == ["a", "b", "c1"]
        assert status.leader == "c1"
        assert await cluster.balance() == 0
        await cluster.drain("a")
        assert w.members.left == ["a"]
        owned = next(key for key, owner in w.owners(w.standbys[0]).items() if owner == "a")
        await cluster.move("t", owned.partition, "b")
        assert w.owners(w.standbys[0])[owned] == "b"


async def test_a_leader_in_the_same_process_that_stands_still_is_not_waited_for_for_ever() -> None:
    async with world("a", controllers=["c1"]) as w, remote(w, local=w.standbys[0]) as one:
        w.standbys[0].kv.pause()
        async with asyncio.timeout(60):
            assert "not known" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)
        w.standbys[0].kv.resume()


async def test_the_leader_itself_sends_no_request() -> None:
    async with world("a", controllers=["c1"]) as w, remote(w, local=w.standbys[0]) as one:
        await one.admin.create_topic("u")
        assert one.peers.calls == 0


class SilentPeers:
    """Members that never respond; ``asked`` has their names."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        self.asked.append(member.incarnation)
        await asyncio.sleep(timeout_s)
        raise TimeoutError


async def test_a_leader_that_changes_twice_is_left_once() -> None:
    """Elect two others, in two turns of the loop: the second finds a request that is being given up already."""
    view = FakeView("proxy")
    view.join("c1", "c2", "c3", role="controller")
    view.controller = view.members["c1"]
    peers = SilentPeers()
    admin = RemoteAdmin(cast(ClusterView, view), FakeCatalog(), cast(Peers, peers), LoopClock())
    act = asyncio.ensure_future(admin.balance())
    await until(lambda: bool(peers.asked))
    for name in ("c2", "c3"):
        view.controller = view.members[name]
        view.notify(ViewChange(is_controller=True))
        await asyncio.sleep(0)
    await until(lambda: peers.asked == ["c1", "c3"])
    await cancel_and_wait(act)
