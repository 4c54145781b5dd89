"""A proxy's reports of brokers that it cannot reach."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.controller import ReportRequest, ReportResponse
from bmq.core.rpc.peers import ConnectionKind, Peers
from bmq.meta.cluster.member import Address, Member
from bmq.meta.cluster.unreachable import decode_unreachable, unreachable_key
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.proxy.reachability.failure_reports import REPORT_S, Reports
from bmq.proxy.reachability.unreachable_brokers import DOWN_S, UP_S, Reachability, UnreachableBrokers
from tests.harness.fakes import FakeView, member
from tests.unit.proxy.cluster import CLUSTER


class FakePeers:
    """Answers reports, or does not."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, str, str, str]] = []
        self.is_answering = True
        self.calls: list[Any] = []
        self.reached: set[str] = set()

    def get(self, member: Any, kind: ConnectionKind) -> object | None:
        assert kind is ConnectionKind.CONTROL
        return self if member.incarnation in self.reached else None

    async def ask(self, member: Any, message: Any, timeout_s: float) -> Any:
        assert isinstance(message, ReportRequest)
        now = asyncio.get_running_loop().time()
        self.reports.append((now, member.incarnation, message.incarnation, message.why))
        if not self.is_answering:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "not any more")
        return ReportResponse()

    def subscribe_broken(self, call: Any) -> Any:
        self.calls.append(call)
        return lambda: self.calls.remove(call)

    def broken(self, incarnation: str) -> None:
        for call in self.calls:
            call(incarnation, "cut")


def view_of(*incarnations: str, controller: str = "c1") -> FakeView:
    view = FakeView("proxy")
    view.members = {each: member(each) for each in (*incarnations, controller)}
    view.controller = view.members[controller]
    return view


async def test_a_broken_connection_is_reported_at_once_and_not_too_often() -> None:
    peers, view = FakePeers(), view_of("b1", "b2")
    reports = Reports(view, cast(Peers, peers))
    reports.start()
    for _ in range(5):
        peers.broken("b1")
        peers.broken("b2")
        peers.broken("stranger")
        await asyncio.sleep(REPORT_S / 5)
    assert [(when, to, whom) for when, to, whom, _ in peers.reports] == [(0.0, "c1", "b1"), (0.0, "c1", "b2")]
    await asyncio.sleep(REPORT_S)
    peers.broken("b1")
    await asyncio.sleep(0.01)
    assert len(peers.reports) == 3
    await reports.close()
    peers.broken("b1")
    assert len(peers.reports) == 3


async def test_a_report_that_nobody_took_is_made_at_the_next_occasion() -> None:
    peers, view = FakePeers(), view_of("b1")
    reports = Reports(view, cast(Peers, peers))
    reports.start()
    peers.is_answering = False
    peers.broken("b1")
    await asyncio.sleep(0.01)
    peers.is_answering = True
    peers.broken("b1")
    await asyncio.sleep(0.01)
    assert len(peers.reports) == 2
    await reports.close()


async def test_who_leads_hears_itself_and_is_not_reported_to_itself() -> None:
    peers, view = FakePeers(), view_of("b1", controller="proxy")
    heard: list[str] = []
    reports = Reports(view, cast(Peers, peers), lambda incarnation, why: heard.append(incarnation))
    reports.start()
    peers.broken("b1")
    assert heard == ["b1"]
    view.controller = member("b1")
    await asyncio.sleep(REPORT_S)
    peers.broken("b1")
    view.controller = None
    peers.broken("b1")
    await asyncio.sleep(0.01)
    assert (heard, peers.reports) == (["b1"], [])
    await reports.close()


def test_hysteresis() -> None:
    """A short break is not listed, and neither is a short recovery taken for one."""
    reach = Reachability()
    reach.broken("b", 0.0)
    reach.check("b", is_up=False, now=DOWN_S - 0.1)
    assert not reach.listed
    reach.check("b", is_up=True, now=DOWN_S)
    reach.check("b", is_up=False, now=DOWN_S + 0.1)
    reach.check("b", is_up=False, now=2 * DOWN_S)
    assert not reach.listed
    reach.check("b", is_up=False, now=2 * DOWN_S + 0.2)
    assert reach.listed == {"b"}
    reach.check("b", is_up=True, now=10)
    reach.check("b", is_up=True, now=10 + UP_S - 0.1)
    assert reach.listed == {"b"}
    reach.check("b", is_up=True, now=10 + UP_S)
    assert not reach.listed
    assert len(reach) == 0


class Told:
    """A process that publishes what it cannot reach."""

    def __init__(self) -> None:
        self.peers, self.view = FakePeers(), view_of("b1", "b2")
        self.kv = MemoryKeyValue(MemoryStore(), random=Random(0), faults=KvFaults())
        self.up: set[str] = set()
        self.lease = 0
        self.unreachable = UnreachableBrokers(
            self.kv,
            CLUSTER,
            self.view,
            cast(Peers, self.peers),
            is_up=lambda incarnation: incarnation in self.up,
            lease=lambda: self.lease,
        )

    async def published(self) -> set[str] | None:
        entry = await self.kv.get(unreachable_key(CLUSTER, "proxy"))
        assert entry is None or entry.lease == self.lease
        return set(decode_unreachable(entry.value)) if entry is not None else None


async def test_what_lasts_is_published_and_taken_back() -> None:
    notified = Told()
    notified.lease = await notified.kv.grant(1000)
    notified.unreachable.start()
    notified.peers.broken("b1")
    notified.peers.broken("stranger")
    await asyncio.sleep(DOWN_S / 2)
    assert await notified.published() is None
    await asyncio.sleep(DOWN_S)
    assert await notified.published() == {"b1"}
    notified.peers.broken("b2")
    await asyncio.sleep(DOWN_S + 1)
    assert await notified.published() == {"b1", "b2"}
    notified.up |= {"b1"}
    await asyncio.sleep(UP_S + 2)
    assert await notified.published() == {"b2"}
    notified.view.leave("b2")
    await asyncio.sleep(2)
    assert await notified.published() is None
    revision = await notified.kv.revision()
    await asyncio.sleep(100)
    assert await notified.kv.revision() == revision
    assert notified.unreachable._task is None
    await notified.unreachable.close()


async def test_it_is_published_again_under_a_new_lease_and_while_the_store_is_away() -> None:
    notified = Told()
    notified.unreachable.start()
    notified.peers.broken("b1")
    await asyncio.sleep(DOWN_S + 1)
    assert await notified.published() is None, "there is no lease yet"
    notified.lease = await notified.kv.grant(1000)
    await asyncio.sleep(1)
    assert await notified.published() == {"b1"}
    await notified.kv.revoke(notified.lease)
    notified.lease = await notified.kv.grant(1000)
    await asyncio.sleep(2)
    assert await notified.published() == {"b1"}
    notified.kv.faults = KvFaults(unavailable=1.0)
    notified.up |= {"b1"}
    await asyncio.sleep(UP_S + 2)
    notified.kv.faults = KvFaults()
    await asyncio.sleep(2)
    assert await notified.published() is None
    await notified.unreachable.close()


async def test_what_nobody_needs_any_more_is_taken_back_when_it_can_be_reached() -> None:
    """Move all of a broker's partitions away: only the control connection shows that it can be reached again."""

    notified = Told()
    notified.lease = await notified.kv.grant(1000)
    notified.unreachable.start()
    notified.peers.broken("b1")
    await asyncio.sleep(DOWN_S + 1)
    assert await notified.published() == {"b1"}
    notified.peers.reached.add("b1")
    await asyncio.sleep(UP_S + 2)
    assert await notified.published() is None
    assert notified.unreachable._task is None
    await notified.unreachable.close()


async def test_only_brokers_are_listed() -> None:
    notified = Told()
    notified.lease = await notified.kv.grant(1000)
    notified.view.members["k1"] = Member(
        incarnation="k1", roles=frozenset({"coordinator"}), internal=Address(host="k1", port=1)
    )
    notified.unreachable.start()
    notified.peers.broken("k1")
    assert notified.unreachable._task is None
    notified.peers.broken("b1")
    await asyncio.sleep(DOWN_S + 1)
    assert await notified.published() == {"b1"}
    await notified.unreachable.close()
