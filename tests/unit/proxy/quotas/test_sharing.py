"""Shares of one proxy: when it reports, what it does with the answer, and what without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.messages.controller import QuotaSharesRequest, QuotaSharesResponse
from bmq.core.rpc.peers import Peers
from bmq.meta.cluster.member import Member
from bmq.meta.security.client_quotas import Holder
from bmq.proxy.quotas.holdings import Holding, Holdings
from bmq.proxy.quotas.sharing import LEASE_S, REPORT_S, ROWS_MAX, USED_S, QuotaShares
from tests.harness.fakes import FakeView

KIND = "producer_byte_rate"


class World:
    """A proxy, ``p1``, and a leader that gives each holder the share that ``gives`` names."""

    def __init__(self, *proxies: str) -> None:
        self.view = FakeView("p1")
        for name in proxies:
            self.view.join(name, role="proxy")
        self.view.controller = cast(Member, object())
        self.clock = LoopClock()
        self.asked: list[tuple[float, QuotaSharesRequest]] = []
        self.gives = 70.0
        self.fails = False
        self.shares = QuotaShares(self.view, cast(Peers, self), self.clock)
        self.holdings = Holdings(self.shares.of)

    async def ask(self, member: Any, request: QuotaSharesRequest, timeout_s: float) -> QuotaSharesResponse:
        self.asked.append((self.now, request))
        if self.fails:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        return QuotaSharesResponse(shares=tuple((self.gives,) for _ in request.demands))

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def use(self, amount: float = 10.0, name: str = "alice") -> Holding:
        holding = self.holdings.get(KIND, Holder(name, ""), 100.0, self.now)
        holding.take(amount, self.now)
        return holding


@asynccontextmanager
async def sharing(*proxies: str) -> AsyncIterator[World]:
    world = World(*proxies)
    world.shares.start(world.holdings)
    try:
        yield world
    finally:
        await world.shares.close()


async def test_a_proxy_alone_has_the_limit_and_reports_nothing() -> None:
    async with sharing("p1") as w:
        holding = w.use()
        await asyncio.sleep(10)
        assert (holding.allowance.limit, w.asked) == (100.0, [])


async def test_a_new_holder_has_an_equal_share_until_the_leader_answers() -> None:
    async with sharing("p1", "p2", "p3", "p4") as w:
        await asyncio.sleep(10)
        began = w.now
        holding = w.use(5.0)
        assert holding.allowance.limit == 25.0
        await asyncio.sleep(0.01)
        ((at, request),) = w.asked
        assert at == began
        assert request.demands == (("producer_byte_rate/5/alice/", 100.0, 50.0, 25.0, False),)
        assert QuotaSharesRequest.decode(memoryview(b"".join(request.encode()))) == request
        assert holding.allowance.limit == 70.0


async def test_reports_go_on_while_a_holder_is_used_and_end_then() -> None:
    async with sharing("p1", "p2") as w:
        w.use()
        await asyncio.sleep(USED_S + 10 * REPORT_S)
        times = [at for at, _ in w.asked]
        assert 7 <= len(times) <= 1 + USED_S
        assert times[-1] - times[0] <= USED_S


async def test_a_holder_that_is_held_up_is_reported_soon() -> None:
    async with sharing("p1", "p2") as w:
        w.use()
        await asyncio.sleep(0.3)
        w.use(1_000.0)
        await asyncio.sleep(0.01)
        assert len(w.asked) == 2
        assert w.asked[1][1].demands[0].was_short
        w.use(1_000.0)
        await asyncio.sleep(0.2)
        assert len(w.asked) == 2
        await asyncio.sleep(0.1)
        assert len(w.asked) == 3


async def test_what_waits_is_reckoned_by_an_equal_share_at_least() -> None:
    async with sharing("p1", "p2") as w:
        w.gives = 0.5
        holding = w.use()
        await asyncio.sleep(0.5)
        assert holding.allowance.limit == 0.5
        credit = holding.allowance.credit(w.now)
        assert holding.take(100.0, w.now) == pytest.approx((100.0 - credit) / 50.0)


async def test_shares_are_kept_without_a_leader_for_a_lease_and_equal_then() -> None:
    async with sharing("p1", "p2") as w:
        holding = w.use()
        await asyncio.sleep(0.1)
        w.fails = True
        while w.now < LEASE_S:
            holding.take(1.0, w.now)
            await asyncio.sleep(0.5)
            assert holding.allowance.limit == (70.0 if w.now < LEASE_S - 1 else holding.allowance.limit)
        holding.take(1.0, w.now)
        await asyncio.sleep(2 * REPORT_S)
        assert holding.allowance.limit == 50.0
        w.fails = False
        holding.take(1.0, w.now)
        await asyncio.sleep(2 * REPORT_S)
        assert holding.allowance.limit == 70.0


async def test_the_second_proxy_halves_the_share_and_the_last_one_has_all() -> None:
    async with sharing("p1") as w:
        w.fails = True
        holding = w.use()
        w.view.join("p2", role="proxy")
        assert holding.allowance.limit == 50.0
        w.view.leave("p2")
        assert holding.allowance.limit == 100.0


async def test_a_report_is_bounded_to_the_holders_used_last() -> None:
    async with sharing("p1", "p2") as w:
        for number in range(ROWS_MAX):
            w.use(name=f"early{number}")
        await asyncio.sleep(2.0)
        w.use(name="late")
        await asyncio.sleep(0.5)
        rows = w.asked[-1][1].demands
        assert len(rows) == ROWS_MAX
        assert any("late" in row.quota for row in rows)


async def test_a_holder_in_debt_keeps_its_share_however_long_it_pays() -> None:
    async with sharing("p1", "p2") as w:
        debtor, idle = w.use(100_000.0), w.use(1.0, "bob")
        await asyncio.sleep(USED_S + 5)
        w.asked.clear()
        await asyncio.sleep(20 * REPORT_S)
        assert len(w.asked) >= 10
        assert {each.quota for _, request in w.asked for each in request.demands} == {f"{KIND}/5/alice/"}
        assert debtor.allowance.credit(w.now) < 0 < idle.allowance.credit(w.now)
