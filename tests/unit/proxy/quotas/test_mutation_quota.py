"""``controller_mutation_rate`` (KIP-599): who is refused, who is served and throttled, and the bound of a window."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request, Response
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import CreateTopicsResponse, DeleteTopicsResponse
from bmq.meta.security.client_quotas import USER
from bmq.proxy.quotas.rates import WAIT_MAX_S
from tests.unit.proxy.quotas.quotas_world import QuotasWorld, muted

CREATE_TOPICS = 19
ALICE = ((USER, "alice"),)
RATE = "controller_mutation_rate"


class World(QuotasWorld):
    """Alice may create two partitions a second."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__(share)
        self.view.put(RATE, ALICE, 2.0)

    def create(self, *partitions: int, is_strict: bool = True) -> tuple[list[ErrorCode], int, Request]:
        """Return the outcome of each topic, the throttle time, and the request."""
        request = self.request(CREATE_TOPICS, 7 if is_strict else 5)
        codes: list[ErrorCode] = []

        def call() -> Response:
            assert request.quota is not None
            for count in partitions:
                try:
                    request.quota.mutate(count, is_strict=is_strict)
                except RequestError as error:
                    codes.append(error.code)
                else:
                    codes.append(ErrorCode.NONE)
            reply = CreateTopicsResponse(throttle_time_ms=0, topics=[])
            return Response(encode_response(CREATE_TOPICS, request.api_version, 7, reply))

        response = self.quotas.serve(request, 100, call)
        assert isinstance(response, Response)
        data = b"".join(response.buffers)[5:]
        found: Any = CreateTopicsResponse.decode(data, version=request.api_version)
        return codes, found.throttle_time_ms, request


OK, REFUSED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_burst_of_eleven_seconds_and_one_topic_more_are_served() -> None:
    w = World()
    codes, throttle_ms, request = w.create(20, 2, 7, 1, 1)
    assert codes == [OK, OK, OK, REFUSED, REFUSED]
    assert throttle_ms == 3_500  # a debt of 7 at 2 a second
    assert muted(request) == [pytest.approx(3.5)]
    w.now += 3.4
    assert w.create(1)[:2] == ([REFUSED], 100)
    w.now += 0.1
    assert w.create(1)[:2] == ([OK], 0)


def test_a_strict_client_is_not_throttled_for_what_it_was_allowed() -> None:
    w = World()
    codes, throttle_ms, request = w.create(1_000)
    assert (codes, throttle_ms, muted(request)) == ([OK], 0, [])


def test_a_client_that_does_not_know_the_error_is_served_and_waits() -> None:
    w = World()
    assert w.create(22, is_strict=False)[:2] == ([OK], 0)
    codes, throttle_ms, request = w.create(2, 4, is_strict=False)
    assert (codes, throttle_ms) == ([OK, OK], 3_000)
    assert max(muted(request)) == pytest.approx(3.0)


@pytest.mark.slow
def test_no_window_of_a_client_that_insists_has_more_than_burst_and_rate() -> None:
    w = World()
    made = 0
    for _ in range(6_000):
        w.now += 0.01
        made += w.create(1)[0].count(OK)
    assert 60 * 2 <= made <= (60 + 11) * 2 + 1


def test_at_one_of_several_proxies_the_burst_begins_with_a_quarter_of_a_second() -> None:
    w = World(0.25)
    assert w.create(1, 1)[0] == [OK, REFUSED]
    w.now += 100
    assert w.create(5, 1, 1)[0] == [OK, OK, REFUSED]  # 0.5 a second for eleven seconds: 5.5


def test_others_are_not_counted() -> None:
    w = World()
    request = w.request(CREATE_TOPICS, name="bob")
    w.quotas.serve(request, 100, lambda: Response(()))
    assert request.quota is None
    w.view.put("producer_byte_rate", ((USER, "bob"),), 1.0)
    request = w.request(CREATE_TOPICS, name="bob")
    w.quotas.serve(request, 100, lambda: Response(()))
    assert request.quota is not None
    request.quota.mutate(1 << 20, is_strict=True)


@pytest.mark.parametrize("kind", [CreateTopicsResponse, DeleteTopicsResponse])
def test_the_throttle_time_is_the_first_field(kind: Any) -> None:
    assert next(iter(kind.fields.values())).name == "throttle_time_ms"


@pytest.mark.parametrize("rate", [1e-3, 1e-9, 5e-324])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_rate_of_next_to_nothing_is_answered_with_the_longest_wait_that_a_response_can_name(
    rate: float, share: float
) -> None:
    w = World(share)
    w.view.put(RATE, ALICE, rate)
    assert w.create(1, is_strict=False)[0] == [OK]
    codes, throttle_ms, request = w.create(100_000)
    assert codes == [REFUSED]
    assert throttle_ms == pytest.approx(min(1_000 / rate / share, WAIT_MAX_S * 1_000), rel=0.02)
    assert muted(request) == [pytest.approx(throttle_ms / 1_000, rel=1e-3)]


def test_the_largest_rate_throttles_nobody_and_can_be_changed() -> None:
    w = World()
    w.view.put(RATE, ALICE, sys.float_info.max)
    assert w.create(9_999, is_strict=False)[:2] == ([OK], 0)
    w.view.put(RATE, ALICE, sys.float_info.max / 2)
    w.now += 1
    assert w.create(9_999, is_strict=False)[:2] == ([OK], 0)
    w.view.put(RATE, ALICE, 2.0)
    assert w.create(22, 2, is_strict=False)[:2] == ([OK, OK], 1_000)


def test_a_quota_that_is_deleted_unmutes_its_connections() -> None:
    w = World()
    w.view.put(RATE, ALICE, 0.001)
    _, _, request = w.create(50, is_strict=False)
    assert muted(request) != []
    w.view.put("producer_byte_rate", ALICE, 1.0)
    assert muted(request) != [], "another quota has changed"
    w.view.put(RATE, ALICE, None)
    assert muted(request) == []
