"""The budget of requests' bytes: when its gates close and open, and in which order connections read on."""

from __future__ import annotations

from bmq.core.metrics.counters import PortCounters
from bmq.core.net.request_budget import FINISHERS_MAX, RequestBudget

LIMIT = 800


class FakeReader:
    """A connection that notes its calls in ``order``."""

    def __init__(self, name: str, order: list[str], *, has_begun: bool = False) -> None:
        self.has_begun = has_begun
        self._name = name
        self._order = order

    def read_on(self) -> None:
        self._order.append(self._name)


class World:
    def __init__(self) -> None:
        self.budget = RequestBudget(LIMIT, PortCounters())
        self.order: list[str] = []

    def reader(self, name: str, *, has_begun: bool = False) -> FakeReader:
        return FakeReader(name, self.order, has_begun=has_begun)

    def complete(self, reader: FakeReader, count: int) -> None:
        """Add bytes of complete requests, or subtract them."""
        self.budget.change(reader, count, count, has_completed=count > 0)

    def begun(self, reader: FakeReader, count: int) -> None:
        """Add bytes of a frame that has begun, or subtract them."""
        self.budget.change(reader, count, 0, has_completed=False)


def test_complete_requests_shut_the_gate_at_the_limit_and_open_it_at_seven_eighths() -> None:
    w = World()
    busy, idle = w.reader("busy"), w.reader("idle")
    w.complete(busy, LIMIT - 1)
    assert w.budget.may_read(idle)
    w.complete(busy, 1)
    assert (w.budget.is_shut, w.budget.is_crowded, w.budget.times_shut) == (True, False, 1)
    assert not w.budget.may_read(idle)
    w.complete(busy, -(LIMIT // 8) + 1)
    assert w.order == []
    w.complete(busy, -1)
    assert (w.budget.is_tight, w.order) == (False, ["idle"])


def test_frames_that_have_begun_crowd_at_three_quarters_and_shut_nobody_out() -> None:
    """However many their bytes are, a connection between two frames goes on reading."""
    w = World()
    large, between = w.reader("large", has_begun=True), w.reader("between")
    w.begun(large, LIMIT * 3 // 4 - 1)
    assert not w.budget.is_tight
    w.begun(large, 1)
    assert (w.budget.is_crowded, w.budget.is_shut) == (True, False)
    w.begun(large, LIMIT)
    assert not w.budget.is_shut
    assert w.budget.may_read(between)
    w.begun(large, -LIMIT)
    assert w.budget.excess_begun_bytes == LIMIT // 4
    w.begun(large, -LIMIT // 4)
    assert (w.budget.is_tight, w.budget.excess_begun_bytes) == (False, 0)


def test_waiting_connections_read_on_in_their_order_those_with_a_frame_begun_first() -> None:
    w = World()
    busy = w.reader("busy")
    w.complete(busy, LIMIT)
    waiting = [w.reader(name, has_begun=name.startswith("begun")) for name in ("one", "begun 1", "two", "begun 2")]
    assert [w.budget.may_read(each) for each in waiting] == [False] * 4, "complete requests are waited for first"
    w.complete(busy, -LIMIT)
    assert w.order == ["begun 1", "begun 2", "one", "two"]


def test_a_connection_that_is_forgotten_does_not_read_on() -> None:
    w = World()
    busy, gone, left = w.reader("busy"), w.reader("gone"), w.reader("left", has_begun=True)
    w.complete(busy, LIMIT)
    assert not w.budget.may_read(gone)
    assert not w.budget.may_read(left)
    w.budget.forget(gone)
    w.budget.forget(left)
    w.complete(busy, -LIMIT)
    assert w.order == []


def test_finishers_share_five_quarters_of_the_limit_and_the_first_has_no_bound() -> None:
    """The first reads its frame to the end whatever its size; then the next one is the first."""
    w = World()
    first, second = w.reader("first", has_begun=True), w.reader("second", has_begun=True)
    w.begun(first, LIMIT * 3 // 4)
    assert w.budget.may_read(first)
    assert w.budget.may_read(second)
    w.begun(second, LIMIT // 2)
    assert w.budget.may_read(first), "the oldest finisher goes on at five quarters"
    assert not w.budget.may_read(second)
    w.begun(first, LIMIT)
    assert w.budget.may_read(first)
    grown = LIMIT * 3 // 4 + LIMIT + 1
    w.budget.change(first, 1, grown, has_completed=True)
    assert w.budget.is_shut
    assert w.order == [], "the response of the complete request comes first"
    w.complete(first, -grown)
    assert w.order == ["second"]


def test_a_finisher_that_closes_lets_the_next_waiting_connection_finish() -> None:
    w = World()
    finishing = [w.reader(f"finisher {number}", has_begun=True) for number in range(FINISHERS_MAX)]
    late = w.reader("late", has_begun=True)
    w.begun(finishing[0], LIMIT * 3 // 4)
    assert all(w.budget.may_read(each) for each in finishing)
    assert not w.budget.may_read(late), "finishers are bounded"
    w.budget.forget(finishing[7])
    assert w.order == ["late"]


def test_a_reader_that_takes_the_bytes_again_at_once_is_not_overtaken() -> None:
    """The callback fills the budget: the gate shuts in the middle of the round, and the others keep their places."""
    w = World()
    busy = w.reader("busy")
    w.complete(busy, LIMIT)

    class Greedy(FakeReader):
        def read_on(self) -> None:
            super().read_on()
            w.complete(self, LIMIT)

    greedy, other = Greedy("greedy", w.order), w.reader("other")
    assert not w.budget.may_read(greedy)
    assert not w.budget.may_read(other)
    w.complete(busy, -LIMIT)
    assert (w.order, w.budget.is_shut, w.budget.times_shut) == (["greedy"], True, 2)
    w.complete(greedy, -LIMIT)
    assert w.order == ["greedy", "other"]
    assert repr(w.budget) == f"<RequestBudget 0/{LIMIT} complete=0 begun=0 between=0 finishers=0>"
