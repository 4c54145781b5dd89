"""Debts of produce quotas: new connections wait for them, and they end with their quota."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.logging.fields import fields_of
from bmq.core.net.request import CloseQuietly, Request, Response
from bmq.proxy.quotas.held_requests import HELD_MAX_S, REFUSED_S
from tests.harness.fakes import FakeClient
from tests.unit.proxy.quotas.quotas_world import QuotasWorld, muted
from tests.unit.proxy.quotas.test_request_quotas import ALICE, PRODUCE, PRODUCER, produced, throttle_ms

LIMIT = 1_000.0


class Loop(QuotasWorld):
    """Quotas whose clock is the loop's, which is virtual."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__()
        self.view.put(PRODUCER, ALICE, LIMIT)
        self.served: list[tuple[float, str]] = []

    @property
    def now(self) -> float:
        return self._loop.time()

    @now.setter
    def now(self, _: float) -> None:
        """Ignore the start that a world without a loop has."""

    def produce(self, size: int, name: str = "", request: Request | None = None) -> Any:
        def call() -> Response:
            self.served.append((self.now, name))
            return produced()

        return self.quotas.serve(request or self.request(PRODUCE), size, call)


async def test_a_new_connection_for_each_request_does_not_pass_the_limit() -> None:
    w = Loop()
    began, size, taken = w.now, 300, 0
    for _ in range(100):
        response = w.produce(size)
        await response if not isinstance(response, Response) else None
        taken += size
        assert taken <= LIMIT * (w.now - began + 0.5) + size
    assert taken >= 0.9 * LIMIT * (w.now - began)


async def test_many_new_connections_stand_in_one_line() -> None:
    w = Loop()
    began = w.now
    waiting = [w.produce(600, str(number)) for number in range(10)]
    assert isinstance(waiting[0], Response)
    assert throttle_ms(waiting[0]) == 100
    await asyncio.gather(*waiting[1:])
    assert [name for _, name in w.served] == [str(number) for number in range(10)]
    assert [at - began for at, _ in w.served] == pytest.approx([0.0, *(0.1 + 0.6 * number for number in range(9))])


async def test_a_connection_that_has_waited_is_served_at_once() -> None:
    w = Loop()
    request = w.request(PRODUCE)
    w.produce(1_500, request=request)
    await asyncio.sleep(1.0)
    w.produce(1_000)  # another connection's, after the debt is paid
    assert isinstance(w.produce(100, request=request), Response)


async def test_a_debt_that_is_too_large_closes_a_new_connection_and_is_no_larger_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = Loop()
    w.produce(int(LIMIT * (HELD_MAX_S + 5)))
    (holding,) = w.quotas.holdings
    debt = holding.wait_s(w.now)
    with pytest.raises(CloseQuietly):
        await w.produce(50_000)
    assert holding.wait_s(w.now) == pytest.approx(debt - REFUSED_S)
    assert (len(w.served), holding.throttles.times) == (1, 2)
    (line,) = caplog.records
    assert line.getMessage() == "closing a connection: its user owes more of its quota than a request waits for"
    given = fields_of(line)
    assert (given["connection"], given["client_id"]) == (FakeClient.peer, "app")
    await asyncio.sleep(5)
    await w.produce(100)
    assert len(w.served) == 2


async def test_a_request_whose_connection_closes_gives_back_what_it_counted() -> None:
    w = Loop()
    w.produce(1_500)
    (holding,) = w.quotas.holdings
    task = w.produce(3_000)
    assert holding.wait_s(w.now) == pytest.approx(4.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert holding.wait_s(w.now) == pytest.approx(1.0)
    assert holding.report(w.now + 1)[0] == pytest.approx(1_500)


async def test_a_request_that_is_cancelled_as_the_quotas_change_gives_back_once() -> None:
    w = Loop()
    w.produce(5_500)
    (holding,) = w.quotas.holdings
    task = w.produce(3_000)
    w.view.put(PRODUCER, ALICE, LIMIT / 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert holding.allowance.credit(w.now) == pytest.approx(-5_000)


async def test_requests_of_one_connection_keep_their_order() -> None:
    w = Loop()
    w.produce(1_500)
    request = w.request(PRODUCE)
    one = w.produce(100, "one", request)
    two = w.produce(100, "two", Request(PRODUCE, 9, 8, "app", memoryview(b""), request.client, w.now))
    await asyncio.gather(one, two)
    assert [name for _, name in w.served] == ["", "one", "two"]


async def test_a_request_behind_that_is_cancelled_alone_lets_no_later_request_overtake() -> None:
    w = Loop()
    w.produce(1_500)
    request = w.request(PRODUCE)
    one, two, three = (
        w.produce(100, name, Request(PRODUCE, 9, number, "app", memoryview(b""), request.client, w.now))
        for number, name in enumerate(("one", "two", "three"))
    )
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    four = w.produce(100, "four", Request(PRODUCE, 9, 8, "app", memoryview(b""), request.client, w.now))
    await asyncio.gather(one, three, four)
    assert [name for _, name in w.served] == ["", "one", "three", "four"]
    assert not w.quotas._held._last


async def test_the_last_request_that_is_cancelled_alone_lets_no_later_request_overtake() -> None:
    w = Loop()
    w.produce(1_500)
    request = w.request(PRODUCE)
    one, two = (
        w.produce(100, name, Request(PRODUCE, 9, number, "app", memoryview(b""), request.client, w.now))
        for number, name in enumerate(("one", "two"))
    )
    two.cancel()
    with pytest.raises(asyncio.CancelledError):
        await two
    three = w.produce(100, "three", Request(PRODUCE, 9, 8, "app", memoryview(b""), request.client, w.now))
    await asyncio.gather(one, *([] if isinstance(three, Response) else [three]))
    assert [name for _, name in w.served] == ["", "one", "three"]
    assert not w.quotas._held._last


@pytest.mark.parametrize("limit", [None, 50_000.0])
async def test_a_quota_that_is_deleted_or_raised_ends_the_debt_and_serves_what_waits(limit: float | None) -> None:
    w = Loop()
    first = w.request(PRODUCE)
    w.produce(5_500, request=first)
    assert muted(first) == [pytest.approx(5.0)]
    request = w.request(PRODUCE)
    task = w.produce(400_000, request=request)
    w.view.put(PRODUCER, ALICE, limit)
    began = w.now
    await task
    assert w.now == began
    assert muted(request) == ([] if limit is None else [pytest.approx(8.0 - 0.01, abs=0.01)])
    if limit is None:
        assert muted(first) == []
        w.view.put(PRODUCER, ALICE, LIMIT)
        assert isinstance(w.produce(100), Response)
        assert next(iter(w.quotas.holdings)).wait_s(w.now) == 0


async def test_a_closed_connection_is_forgotten() -> None:
    w = Loop()
    request = w.request(PRODUCE)
    w.produce(100, request=request)
    assert len(w.quotas._held._producers) == 1
    request.client.close()  # type: ignore[attr-defined]
    assert not w.quotas._held._producers
