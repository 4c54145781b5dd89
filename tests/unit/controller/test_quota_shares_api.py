"""QuotaShares at the controller: only a leader allots, each term begins anew, and demands are checked."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.controller.quota_shares import CONFIRM_S
from bmq.controller.quota_shares_api import QuotaSharesApi
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.rpc.messages.controller import QuotaDemand, QuotaSharesRequest, QuotaSharesResponse
from bmq.core.rpc.server import InternalCall
from tests.harness.fakes import FakeClock, FakeView


class World:
    def __init__(self) -> None:
        self.now = 50.0
        self.controller = SimpleNamespace(leading=object())
        view = FakeView("p1")
        for name in ("p1", "p2"):
            view.join(name, role="proxy")
        self.api = QuotaSharesApi(cast(Any, self.controller), view, FakeClock(monotonic=lambda: self.now))

    def ask(
        self, caller: str, share: float, *, limit: float = 100.0, short: bool = True, credit: float | None = None
    ) -> QuotaSharesResponse:
        demands = (QuotaDemand("q", limit, 10.0, share, short),)
        return self.send(caller, QuotaSharesRequest(demands, () if credit is None else ((credit,),)))

    def send(self, caller: str, request: QuotaSharesRequest) -> QuotaSharesResponse:
        body = memoryview(b"".join(request.encode()))
        response = self.api.handle(body, InternalCall(0, cast(Any, None), None, 1, 0.0, caller))
        return QuotaSharesResponse.decode(memoryview(b"".join(response)))


def test_a_leader_allots_shares() -> None:
    w = World()
    assert w.ask("p2", 50.0).shares == ((50.0,),)  # confirmed
    w.now += CONFIRM_S
    assert w.ask("p2", 50.0).shares == ((100.0,),)
    assert w.ask("", 50.0).shares == ((0.5,),)  # this process itself
    assert w.ask("p2", 100.0).shares == ((50.0,),)


def test_credits_go_with_shares_and_an_earlier_version_has_none() -> None:
    w = World()
    w.ask("p2", 50.0)
    w.now += CONFIRM_S
    w.ask("p2", 50.0)
    assert w.ask("p1", 50.0, credit=25.0).credits == ((-24.75,),)
    with pytest.raises(FormatError):
        w.ask("p1", 50.0, credit=-math.inf)
    request = QuotaSharesRequest((QuotaDemand("q", 100.0, 10.0, 5.0, True),), ((1.0,), (2.0,)))
    with pytest.raises(FormatError):
        w.send("p1", request)


@pytest.mark.parametrize(("credit", "left"), [(0.0, 60.0), (-0.5, 55.0), (-6.0, 50.0), (None, 50.0)])
def test_a_debt_adds_to_the_need_and_an_earlier_version_may_need_all(credit: float | None, left: float) -> None:
    """A report by a process of an earlier version has no debts."""
    w = World()
    w.ask("p2", 0.0, credit=-100.0)
    w.now += CONFIRM_S
    w.ask("p1", 0.0, credit=credit)
    assert w.ask("p2", 0.0, credit=-100.0).shares == ((left,),)


def test_another_term_begins_anew() -> None:
    w = World()
    w.ask("p2", 50.0)
    w.now += CONFIRM_S
    w.controller.leading = object()
    assert w.ask("p2", 50.0).shares == ((50.0,),)


def test_a_process_that_does_not_lead_refuses() -> None:
    w = World()
    w.controller.leading = None
    assert w.ask("p2", 50.0).error is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_demand_is_refused(limit: float) -> None:
    with pytest.raises(FormatError):
        World().ask("p2", 50.0, limit=limit)
    with pytest.raises(FormatError):
        World().ask("p2", limit if limit else float("nan"))
