"""Admin acts asked of the leader from elsewhere: the same answers, and true ones when a leader is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum
from random import Random
from typing import Any, cast

import pytest

from bmq.controller.admin.api import Admin, ClusterAdmin
from bmq.controller.admin.client import RemoteAdmin
from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.admin.messages import AlterBrokerConfigsRequest, AlterTopicConfigsRequest, ClusterStatusRequest
from bmq.controller.admin.server import AdminService
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Client
from bmq.core.rpc.messages.controller import ReportRequest, ReportResponse
from bmq.core.rpc.peers import PeerLost, Peers
from bmq.core.rpc.server import InternalCall
from bmq.meta.catalog import KvCatalog
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import Member, decode_member
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.config_changes import ConfigChange, Operation
from bmq.meta.kv_memory import MemoryKeyValue
from tests.harness.fakes import FakeCatalog, FakeView
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.unit.controller.world import Standby, World, world


class Fate(Enum):
    ANSWERED = "answered"
    NOT_SENT = "certainly not sent"
    ANSWER_LOST = "done, and the connection broke before the answer"
    REQUEST_LOST = "sent, not done, and the connection broke"
    SILENT = "sent, and never answered"


class FakePeers:
    """Calls the services of the world's controllers; ``fates`` are used up one a call, then all is well."""

    def __init__(self, w: World) -> None:
        self.services: dict[str, AdminService] = {}
        self.fates: list[Fate] = []
        self.calls = 0
        self.is_earlier = False
        for one in w.standbys:
            cluster = LeaderAdmin(one.controller, one.catalog, w.members)
            self.services[one.name] = AdminService(one.controller, one.view, cluster)

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        self.calls += 1
        fate = self.fates.pop(0) if self.fates else Fate.ANSWERED
        await asyncio.sleep(0.01)
        if fate is Fate.NOT_SENT:
            raise PeerLost("refused", was_sent=False)
        if fate is Fate.SILENT:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        if fate is Fate.REQUEST_LOST:
            raise PeerLost("reset", was_sent=True)
        if self.is_earlier:
            text = f"{member.incarnation} does not serve API {message.KEY}"
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, text)
        request = type(message).decode(memoryview(b"".join(message.encode())))
        try:
            response = await self.services[member.incarnation].serve(request)
        finally:
            if fate is Fate.ANSWER_LOST:
                raise PeerLost("reset", was_sent=True)
        return message.RESPONSE.decode(memoryview(b"".join(response.encode())))


CALL = InternalCall(0, cast(Client, None), "proxy", 1, 0.0, "proxy")


class Remote:
    """A proxy."""

    def __init__(self, w: World, kv: MemoryKeyValue, *, local: Standby | None = None) -> None:
        self.view = KvClusterView(kv, "c", "proxy" if local is None else local.name)
        self.catalog = KvCatalog(kv, "c")
        self.peers = FakePeers(w)
        service = None if local is None else self.peers.services[local.name]
        self.admin = RemoteAdmin(self.view, self.catalog, cast(Peers, self.peers), LoopClock(), local=service)


@asynccontextmanager
async def remote(w: World, local: Standby | None = None) -> AsyncIterator[Remote]:
    await w.join(*(one.name for one in w.standbys), roles=["controller"])
    kv = MemoryKeyValue(w.store, random=Random(1))
    one = Remote(w, kv, local=local)
    await one.view.start()
    await one.catalog.start()
    try:
        yield one
    finally:
        await one.view.close()
        await one.catalog.close()


Tell = Callable[[World, Remote], Awaitable[None]]


def story(*controllers: str) -> Callable[[Tell], Callable[[], None]]:
    def decorate(tell: Tell) -> Callable[[], None]:
        async def main() -> None:
            async with world("a", "b", controllers=controllers) as w:
                async with remote(w) as one:
                    await tell(w, one)

        def test() -> None:
            run(main())

        test.__name__, test.__doc__ = tell.__name__, tell.__doc__
        return test

    return decorate


async def refused(act: Awaitable[Any], code: ErrorCode) -> str:
    with pytest.raises(RequestError) as caught:
        await act
    assert caught.value.code is code
    return caught.value.message


@story("c1")
async def test_every_act_is_done_and_seen_here_when_it_is_answered(w: World, one: Remote) -> None:
    admin: Admin = one.admin
    made = await admin.create_topic("u", 3, configs={"retention.ms": "5"})
    assert one.catalog.topics["u"] == made
    assert (made.partitions, made.configs) == (3, {"retention.ms": "5"})
    assert await admin.ensure_topic("u") == made
    assert (await admin.ensure_topic("v")).name == "v"
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


@story("c1")
async def test_errors_are_the_leaders(w: World, one: Remote) -> None:
    await refused(one.admin.create_topic("t"), ErrorCode.TOPIC_ALREADY_EXISTS)
    await refused(one.admin.create_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION)
    await refused(one.admin.delete_topic("nothing"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await refused(one.admin.add_partitions("t", 12), ErrorCode.INVALID_PARTITIONS)
    await refused(one.admin.alter_topic_configs("t", {"no.such": "1"}), ErrorCode.INVALID_CONFIG)


@story("c1")
async def test_a_leader_that_does_not_serve_a_request_refuses_it_at_once(w: World, one: Remote) -> None:
    one.peers.is_earlier = True
    assert "c1 does not serve" in await refused(one.admin.create_topic("u"), ErrorCode.UNSUPPORTED_VERSION)
    assert one.peers.calls == 1


@pytest.mark.parametrize("fate", [fate for fate in Fate if fate is not Fate.ANSWERED])
async def test_an_answer_that_is_lost_is_no_wrong_answer(fate: Fate) -> None:
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


@story("c1")
async def test_when_it_stays_unknown_the_client_is_told_so(w: World, one: Remote) -> None:
    one.peers.fates = [Fate.REQUEST_LOST] * 1000
    assert "not known" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)
    one.peers.fates = [Fate.NOT_SENT] * 1000
    assert "nothing was done" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


@story("c1")
async def test_a_topic_that_is_not_known_here_is_not_deleted_twice_by_its_name(w: World, one: Remote) -> None:
    one.peers.fates = [Fate.REQUEST_LOST]
    assert "not known" in await refused(one.admin.delete_topic("unheard of"), ErrorCode.REQUEST_TIMED_OUT)


@story("c1", "c2")
async def test_the_act_follows_the_leader(w: World, one: Remote) -> None:
    first = w.led_by()
    act = asyncio.ensure_future(one.admin.create_topic("u"))
    await first.controller.close()
    assert (await act).name == "u"
    assert w.led_by() is not first


@story("c1", "c2")
async def test_a_leader_that_never_answers_is_left_when_another_leads(w: World, one: Remote) -> None:
    started = asyncio.get_running_loop().time()
    first = w.led_by()
    one.peers.fates = [Fate.SILENT]
    first.kv.pause()
    made = await one.admin.create_topic("u")
    assert asyncio.get_running_loop().time() - started < 5
    assert one.catalog.topics["u"] == made
    first.kv.resume()


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


class SilentPeers:
    """Members that never respond; ``asked`` has their names."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        self.asked.append(member.incarnation)
        await asyncio.sleep(timeout_s)
        raise TimeoutError


@story("c1", "c2")
async def test_who_does_not_lead_says_who_does(w: World, one: Remote) -> None:
    leader = w.led_by()
    other = next(each for each in w.standbys if each is not leader)
    hint = await refused(
        one.peers.ask(one.view.members[other.name], ClusterStatusRequest(), 1.0),
        ErrorCode.NOT_CONTROLLER,
    )
    assert hint == leader.name


@story("c1")
async def test_a_cluster_without_a_leader_is_a_clear_error(w: World, one: Remote) -> None:
    await w.led_by().controller.close()
    assert "no controller" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


@story("c1")
async def test_an_etcd_that_is_away_is_a_clear_error(w: World, one: Remote) -> None:
    w.store.stop()
    await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)


@story("c1")
async def test_operators_acts_come_through(w: World, one: Remote) -> None:
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


@story("c1")
async def test_a_report_reaches_the_leader(w: World, one: Remote) -> None:
    service = one.peers.services["c1"]
    await w.kill("b")
    body = memoryview(b"".join(ReportRequest("b", "reset").encode()))
    answer = ReportResponse.decode(memoryview(b"".join(service.report(body, CALL))))
    assert answer.error is ErrorCode.NONE
    await w.until(lambda: "b" not in set(w.owners(w.standbys[0]).values()))
    await w.led_by().controller.close()
    answer = ReportResponse.decode(memoryview(b"".join(service.report(body, CALL))))
    assert answer.error is ErrorCode.NOT_CONTROLLER


async def test_a_leader_in_the_same_process_that_stands_still_is_not_waited_for_for_ever() -> None:
    async with world("a", controllers=["c1"]) as w, remote(w, local=w.standbys[0]) as one:
        w.standbys[0].kv.pause()
        async with asyncio.timeout(60):
            assert "not known" in await refused(one.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT)
        w.standbys[0].kv.resume()


SET = ConfigChange("log.retention.ms", Operation.SET, "5")
DELETE = ConfigChange("log.retention.ms", Operation.DELETE, None)


@pytest.mark.parametrize(
    "asked",
    [
        AlterBrokerConfigsRequest(-2, False, (SET,), False),
        AlterBrokerConfigsRequest(-1, True, (SET, DELETE), False),
        AlterBrokerConfigsRequest(-1, True, (SET._replace(value=None),), False),
        AlterTopicConfigsRequest("t", True, (DELETE,), False),
    ],
)
async def test_a_request_that_no_client_sends_is_refused_before_anything_is_done(asked: Any) -> None:
    """Such a value in the store would stop every process that reads it."""

    async def main() -> None:
        async with world("a", controllers=["c1"]) as w, remote(w) as one:
            before = await w.standbys[0].kv.revision()
            await refused(one.peers.services["c1"].act(asked), ErrorCode.INVALID_REQUEST)
            async for entry in w.standbys[0].kv.list("/c/catalog/"):
                assert entry.revision <= before

    await main()


async def test_the_leader_asks_nobody() -> None:
    async with world("a", controllers=["c1"]) as w, remote(w, local=w.standbys[0]) as one:
        await one.admin.create_topic("u")
        assert one.peers.calls == 0
