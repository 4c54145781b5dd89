"""The requests of a connection: when they begin, when their responses are sent, and which outlive its end."""

from __future__ import annotations

from typing import cast

import pytest

from bmq.core.net.exchanges import UNANSWERED_MAX, Due, Exchange, Exchanges
from bmq.core.net.request import Response
from bmq.core.net.request_budget import CONNECTION_BYTES, FRAME_BYTES

ORDERED, PIPELINED = memoryview(b"ordered."), memoryview(b"pipelined")


class FakeWork:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class World:
    def __init__(self) -> None:
        self.requests = Exchanges(lambda frame: frame == PIPELINED)
        self.released: list[str] = []

    def running(self, *, expects_response: bool = True) -> Exchange:
        exchange = Exchange(100, None, expects_response=expects_response)
        exchange.work = FakeWork()
        self.requests.begun(exchange)
        return exchange

    def ready(self, name: str = "") -> Exchange:
        exchange = self.running()
        self.requests.responded(exchange, self.response(name))
        return exchange

    def response(self, name: str = "") -> Response:
        return Response((name.encode(),), lambda: self.released.append(name))

    def responses(self) -> list[bytes]:
        """Return the responses that are sent now."""
        sent = []
        while self.requests.started and (response := self.requests.next_response()) is not None:
            sent.append(bytes(response.buffers[0]))
        return sent


@pytest.mark.parametrize(
    ("started", "is_blocked", "is_muted", "has_left", "frame", "may_begin"),
    [
        (0, False, False, False, ORDERED, True),
        (0, False, False, False, PIPELINED, True),
        (1, False, False, False, ORDERED, False),
        (1, False, False, False, PIPELINED, True),
        (0, True, False, False, PIPELINED, False),
        (0, False, True, False, PIPELINED, False),
        (1, False, False, True, ORDERED, True),  # nothing is sent, so there is no order
        (0, True, False, True, ORDERED, True),
        (0, False, True, True, ORDERED, False),
    ],
)
def test_the_requests_that_may_begin(
    started: int, is_blocked: bool, is_muted: bool, has_left: bool, frame: memoryview, may_begin: bool
) -> None:
    world = World()
    requests = world.requests
    for _ in range(started):
        world.running(expects_response=False)
    if is_blocked:
        requests.blocked()
    if is_muted:
        requests.muted()
    if has_left:
        requests.leave()
    assert requests.may_begin(frame) is may_begin


@pytest.mark.parametrize(
    ("events", "may_read"),
    [
        ((), True),
        (("blocked",), False),
        (("blocked", "unblocked"), True),
        (("blocked", "leave"), True),
        (("muted",), False),
        (("muted", "unmuted"), True),
        (("muted", "leave"), False),
        (("drained",), False),
        (("drained", "leave"), False),
        (("leave",), True),
        (("leave", "ended"), False),
    ],
)
def test_the_states_in_which_the_connection_is_read(events: tuple[str, ...], may_read: bool) -> None:
    requests = World().requests
    for event in events:
        getattr(requests, event)()
    assert requests.may_read() is may_read


def test_reading_stops_at_the_bounds_of_requests_and_of_bytes() -> None:
    world = World()
    for _ in range(UNANSWERED_MAX - 1):
        world.requests.hold(ORDERED)
    assert world.requests.may_read()
    world.running()
    assert not world.requests.may_read()
    world = World()
    world.requests.limited(100)
    assert world.requests.may_read()
    exchange = world.running()
    assert not world.requests.may_read()
    world.requests.responded(exchange, world.response())
    assert world.requests.may_read()


def test_waiting_requests_begin_in_their_order_and_hold_their_bytes_until_then() -> None:
    requests = World().requests
    requests.hold(ORDERED)
    requests.hold(PIPELINED)
    assert requests.bytes_held == requests.bytes_waiting == len(ORDERED) + len(PIPELINED) + 2 * FRAME_BYTES
    assert [requests.next_waiting(), requests.next_waiting()] == [ORDERED, PIPELINED]
    assert requests.bytes_held == requests.bytes_waiting == 0
    assert requests.is_quiet


def test_a_response_is_sent_after_the_response_before_it() -> None:
    world = World()
    first, second, third = world.running(), world.running(), world.running()
    assert world.requests.responded(second, world.response("second")) is Due.LATER
    assert world.responses() == []
    assert world.requests.responded(first, world.response("first")) is Due.NEXT_TURN
    assert world.responses() == [b"first", b"second"]
    assert world.requests.is_running
    assert world.requests.responded(third, world.response("third")) is Due.AT_ONCE
    assert world.responses() == [b"third"]
    assert world.requests.bytes_held == 0
    assert world.requests.is_quiet


def test_nothing_is_sent_while_the_client_does_not_read() -> None:
    world = World()
    world.ready("a")
    world.requests.blocked()
    assert world.responses() == []
    assert not world.requests.is_quiet
    world.requests.unblocked()
    assert world.responses() == [b"a"]


def test_the_end_of_the_client_drops_the_requests_with_a_response() -> None:
    world = World()
    running, ready, silent = world.running(), world.ready("ready"), world.running(expects_response=False)
    world.requests.hold(ORDERED)
    dropped = world.requests.leave()
    assert dropped == [running, ready]
    assert all(exchange.is_dropped for exchange in dropped)
    assert list(world.requests.started) == [silent]
    assert world.requests.bytes_held == silent.bytes_held + len(ORDERED) + FRAME_BYTES
    for exchange in dropped:
        exchange.give_up()
    assert cast(FakeWork, running.work).is_cancelled
    assert world.released == ["ready"]


def test_the_close_drops_all_but_running_requests_without_a_response() -> None:
    world = World()
    running, ready, silent = world.running(), world.ready(), world.running(expects_response=False)
    failed = world.running(expects_response=False)
    world.requests.failed(failed)
    world.requests.hold(ORDERED)
    assert world.requests.close() == [running, ready, failed]
    assert not world.requests.waiting
    assert world.requests.bytes_waiting == 0
    assert world.requests.bytes_held == silent.bytes_held + CONNECTION_BYTES
    world.requests.finished(silent)
    assert not silent.is_dropped
    assert not world.requests.started
    assert world.requests.bytes_held == 0


def test_requests_that_outlive_the_connection_can_be_given_up() -> None:
    world = World()
    silent = world.running(expects_response=False)
    assert world.requests.close() == []
    assert world.requests.abandon() == [silent]
    assert silent.is_dropped
    assert world.requests.bytes_held == 0
    assert world.requests.abandon() == []


@pytest.mark.parametrize(
    ("event", "requests", "is_over"),
    [
        ("drained", "", True),
        ("drained", "running", False),
        ("drained", "waiting", False),
        ("drained", "blocked", False),
        ("ended", "", True),
        ("ended", "running", True),  # it has no response, and outlives the connection
        ("ended", "waiting", False),
        ("ended", "blocked", True),
        ("unblocked", "", False),
    ],
)
def test_the_requests_that_keep_a_connection(event: str, requests: str, is_over: bool) -> None:
    world = World()
    if requests == "running":
        world.running(expects_response=False)
    elif requests == "waiting":
        world.requests.hold(ORDERED)
    elif requests == "blocked":
        world.requests.blocked()
    getattr(world.requests, event)()
    assert world.requests.is_over is is_over


def test_the_bytes_of_a_parked_request_are_of_the_one_that_runs() -> None:
    world = World()
    assert world.requests.bytes_parked == 0
    fetch = Exchange(1_000, None, may_park=True)
    fetch.work = FakeWork()
    world.requests.begun(fetch)
    produce = world.running()
    assert (world.requests.bytes_parked, world.requests.may_have_parked) == (1_000, 1)
    assert world.requests.is_parked
    world.requests.responded(fetch, world.response())
    assert (world.requests.bytes_parked, world.requests.may_have_parked) == (0, 1)
    assert not world.requests.is_parked
    world.responses()
    assert list(world.requests.started) == [produce]
    assert world.requests.bytes_parked == 0
