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
from bmq.proxy.quotas.holdings import SLOW_PART, USED_S, WATCHED_S, Holding, Holdings
from bmq.proxy.quotas.sharing import LEASE_S, LOOK_S, REPORT_S, ROWS_MAX, SOON_S, QuotaShares
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
        self.credit: float | None = None
        """What each credit changes by; None as by a leader of an earlier version."""
        self.fails = False
        self.shares = QuotaShares(self.view, cast(Peers, self), self.clock)
        self.holdings = Holdings(self.shares.of)

    async def ask(self, member: Any, request: QuotaSharesRequest, timeout_s: float) -> QuotaSharesResponse:
        self.asked.append((self.now, request))
        if self.fails:
            raise RequestError(ErrorCode.NOT_CONTROLLER, "")
        shares = tuple((self.gives,) for _ in request.demands)
        credits_ = () if self.credit is None else tuple((self.credit,) for _ in request.demands)
        return QuotaSharesResponse(shares=shares, credits=credits_)

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


async def test_a_holder_that_was_held_up_and_needs_less_is_reported_at_once() -> None:
    async with sharing("p1", "p2") as w:
        holding = w.use(40.0)
        await asyncio.sleep(0.01)
        assert w.asked[-1][1].demands[0].was_short
        w.asked.clear()
        await asyncio.sleep(5.0)
        reports = [(at, *request.demands[0][2:]) for at, request in w.asked]
        ended = next(at for at, _, _, was_short in reports if not was_short)
        recovered = (40.0 - 0.25 * 50.0) / 70.0 + 0.25  # by a share of 70, after a first credit of a quarter second
        assert ended == pytest.approx(recovered, abs=LOOK_S + SOON_S + 0.01)
        rates = [rate for at, rate, _, _ in reports if at >= ended]
        assert max(rates) <= SLOW_PART * holding.limit
        assert rates[-1] == 0.0
        assert len(reports) <= 6


async def test_a_holder_that_waits_for_the_share_of_others_asks_again_soon() -> None:
    async with sharing("p1", "p2") as w:
        w.gives = 1.0
        w.use(1_000.0)
        await asyncio.sleep(2.0)
        assert len(w.asked) >= 6
        w.gives = 50.0
        await asyncio.sleep(1.0)
        w.asked.clear()
        await asyncio.sleep(4.0)
        assert 3 <= len(w.asked) <= 5


async def test_a_holder_that_uses_less_than_it_reported_is_reported_at_once_if_others_may_lack_it() -> None:
    async with sharing("p1", "p2") as w:
        w.use(40.0)
        while w.now < 1.5:
            await asyncio.sleep(0.1)
            w.use(4.0)
        w.asked.clear()
        began = w.now
        await asyncio.sleep(WATCHED_S)
        assert any(at - began <= 2 * SOON_S + LOOK_S and not request.demands[0].was_short for at, request in w.asked)


async def test_a_holder_that_is_used_again_is_reported_at_once() -> None:
    async with sharing("p1", "p2") as w:
        w.use()
        await asyncio.sleep(USED_S + 10.3)
        w.asked.clear()
        began = w.now
        w.use(1.0)
        await asyncio.sleep(SOON_S + 0.01)
        assert [at for at, _ in w.asked] == [pytest.approx(began, abs=SOON_S)]


@pytest.mark.parametrize("change", [None, 5.0, -20.0])
async def test_a_credit_changes_with_the_share(change: float | None) -> None:
    async with sharing("p1", "p2") as w:
        await asyncio.sleep(1.0)
        w.credit = change
        holding = w.use(2.5)
        await asyncio.sleep(0.01)
        assert w.asked[-1][1].credits == ((10.0,),)
        assert holding.allowance.credit(w.now) == pytest.approx(10.0 + (change or 0.0) + 0.7, abs=0.05)


async def test_a_debt_is_reported_as_a_credit_below_none() -> None:
    async with sharing("p1", "p2") as w:
        await asyncio.sleep(1.0)
        w.use(100.0)
        await asyncio.sleep(0.01)
        assert w.asked[-1][1].credits == ((12.5 - 100.0,),)


async def test_no_leader_is_asked_soon_again_because_a_holder_is_short() -> None:
    async with sharing("p1", "p2") as w:
        w.fails = True
        w.use(1_000.0)
        await asyncio.sleep(4.0)
        assert len(w.asked) <= 6


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


@pytest.mark.slow
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
