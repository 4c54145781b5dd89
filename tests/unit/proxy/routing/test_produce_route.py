"""One partition's route: every (state, event), and what must hold of random histories."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Appended
from bmq.core.transitions import Cell
from bmq.proxy.routing.produce_route import RETRY_S, TABLE, ProduceRoute, RouteState
from bmq.proxy.routing.produce_route_events import (
    Answered,
    Assigned,
    ConnectionLost,
    ConnectionUp,
    Done,
    Effect,
    Event,
    Expired,
    Fail,
    GiveBack,
    Lost,
    RoutedBatch,
    Send,
    Submitted,
    Tick,
)
from tests.harness.seeds import example_count

HELD_S = 5.0
NO_PRODUCER = -1


def part(producer_id: int = 7, size: int = 10, held_until: float = HELD_S) -> RoutedBatch:
    return RoutedBatch(memoryview(bytes(size)), producer_id, acks_all=True, held_until=held_until)


def appended(offset: int = 0) -> Appended:
    return Appended(offset, -1, 0)


def texts(effects: Sequence[Effect]) -> list[str]:
    """Effects as words: parts by their numbers."""
    out = []
    for effect in effects:
        if isinstance(effect, Send):
            out.append(f"send {effect.incarnation} {' '.join(str(each.number) for each in effect.parts)}")
        elif isinstance(effect, GiveBack):
            out.append(f"back {' '.join(str(each.number) for each in effect.parts)}")
        elif isinstance(effect, Fail):
            out.append(f"fail {effect.part.number} {effect.code.name}")
        else:
            out.append(f"done {effect.part.number}")
    return out


class Story:
    """A route, and its parts by number."""

    def __init__(self, credit_bytes: int = 1000) -> None:
        self.route = ProduceRoute(credit_bytes)
        self.parts: list[RoutedBatch] = []
        self.now = 0.0

    def tell(self, event: Event, now: float | None = None) -> list[str]:
        self.now = self.now if now is None else now
        return texts(self.route.handle(event, self.now))

    def hand(self, *producers: int, size: int = 10) -> list[str]:
        out = []
        for producer in producers:
            self.parts.append(part(producer, size))
            out += self.tell(Submitted(self.parts[-1]))
        return out

    def refuse(self, number: int, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> list[str]:
        return self.tell(Answered(self.parts[number], code, "no"))

    def accept(self, number: int) -> list[str]:
        return self.tell(Answered(self.parts[number], appended=appended(number)))

    def lose(self, number: int, *, was_sent: bool = True) -> list[str]:
        return self.tell(Lost(self.parts[number], was_sent=was_sent))


def unassigned() -> Story:
    """Return a story in which a batch came before the first assignment and was given back."""
    story = Story()
    story.hand(7)
    return story


def unreached() -> Story:
    story = unassigned()
    story.tell(Assigned("a", is_up=False))
    return story


def opened() -> Story:
    """Two parts are under way."""
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(7, 7)
    return story


def refused() -> Story:
    story = opened()
    story.refuse(0)
    story.refuse(1)
    return story


def settling() -> Story:
    """Part 0 was refused, part 1 is under way."""
    story = opened()
    story.refuse(0)
    return story


BEGINNINGS: dict[RouteState, Callable[[], Story]] = {
    RouteState.UNASSIGNED: unassigned,
    RouteState.UNREACHED: unreached,
    RouteState.OPEN: opened,
    RouteState.REFUSED: refused,
    RouteState.SETTLING: settling,
}

EVENTS: dict[str, Callable[[Story], Event]] = {
    "assigned to b, which is up": lambda story: Assigned("b", is_up=True),
    "assigned to b": lambda story: Assigned("b", is_up=False),
    "assigned to nobody": lambda story: Assigned("", is_up=False),
    "a is up": lambda story: ConnectionUp("a"),
    "b is up": lambda story: ConnectionUp("b"),
    "a is down": lambda story: ConnectionLost("a"),
    "b is down": lambda story: ConnectionLost("b"),
    "a new part": lambda story: Submitted(part()),
    "the first expires": lambda story: Expired(story.parts[0]),
    "tick": lambda story: Tick(),
    "the last is accepted": lambda story: Answered(story.parts[-1], appended=appended()),
    "the last is refused": lambda story: Answered(story.parts[-1], ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "the last may be in the file": lambda story: Answered(story.parts[-1], ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    "the last is too large": lambda story: Answered(story.parts[-1], ErrorCode.MESSAGE_TOO_LARGE),
    "the last is lost": lambda story: Lost(story.parts[-1], was_sent=True),
    "the last is lost unsent": lambda story: Lost(story.parts[-1], was_sent=False),
}
NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
UNASSIGNED, UNREACHED, OPEN, REFUSED, SETTLING = (
    RouteState.UNASSIGNED,
    RouteState.UNREACHED,
    RouteState.OPEN,
    RouteState.REFUSED,
    RouteState.SETTLING,
)
ROWS: list[tuple[RouteState, str, RouteState, list[str]]] = [
    # No broker is assigned.
    (UNASSIGNED, "assigned to b, which is up", OPEN, []),
    (UNASSIGNED, "assigned to b", UNREACHED, []),
    (UNASSIGNED, "assigned to nobody", UNASSIGNED, []),
    (UNASSIGNED, "a is up", UNASSIGNED, []),
    (UNASSIGNED, "b is up", UNASSIGNED, []),
    (UNASSIGNED, "a is down", UNASSIGNED, []),
    (UNASSIGNED, "b is down", UNASSIGNED, []),
    (UNASSIGNED, "a new part", UNASSIGNED, ["back -1"]),
    (UNASSIGNED, "the first expires", UNASSIGNED, []),
    (UNASSIGNED, "tick", UNASSIGNED, []),
    # The same, assigned to a.
    (UNREACHED, "assigned to b, which is up", OPEN, []),
    (UNREACHED, "assigned to b", UNREACHED, []),
    (UNREACHED, "assigned to nobody", UNASSIGNED, []),
    (UNREACHED, "a is up", OPEN, []),
    (UNREACHED, "b is up", UNREACHED, []),
    (UNREACHED, "a is down", UNREACHED, []),
    (UNREACHED, "b is down", UNREACHED, []),
    (UNREACHED, "a new part", UNREACHED, ["back -1"]),
    (UNREACHED, "the first expires", UNREACHED, []),
    (UNREACHED, "tick", UNREACHED, []),
    # Two parts are under way to a.
    (OPEN, "assigned to b, which is up", SETTLING, []),
    (OPEN, "assigned to b", SETTLING, []),
    (OPEN, "assigned to nobody", SETTLING, []),
    (OPEN, "a is up", OPEN, []),
    (OPEN, "b is up", OPEN, []),
    (OPEN, "a is down", SETTLING, []),
    (OPEN, "b is down", OPEN, []),
    (OPEN, "a new part", OPEN, ["send a 2"]),
    (OPEN, "the first expires", OPEN, []),
    (OPEN, "tick", OPEN, []),
    (OPEN, "the last is accepted", OPEN, ["done 1"]),
    (OPEN, "the last is refused", SETTLING, []),
    (OPEN, "the last may be in the file", SETTLING, []),
    (OPEN, "the last is too large", OPEN, ["fail 1 MESSAGE_TOO_LARGE"]),
    (OPEN, "the last is lost", SETTLING, []),
    (OPEN, "the last is lost unsent", SETTLING, []),
    # Both were refused by a, and given back.
    (REFUSED, "assigned to b, which is up", OPEN, []),
    (REFUSED, "assigned to b", UNREACHED, []),
    (REFUSED, "assigned to nobody", UNASSIGNED, []),
    (REFUSED, "a is up", REFUSED, []),
    (REFUSED, "b is up", REFUSED, []),
    (REFUSED, "a is down", UNREACHED, []),
    (REFUSED, "b is down", REFUSED, []),
    (REFUSED, "a new part", REFUSED, ["back -1"]),
    (REFUSED, "the first expires", REFUSED, []),
    (REFUSED, "tick", REFUSED, []),
    # The first was refused, the second is under way.
    (SETTLING, "assigned to b, which is up", SETTLING, []),
    (SETTLING, "assigned to b", SETTLING, []),
    (SETTLING, "assigned to nobody", SETTLING, []),
    (SETTLING, "a is up", SETTLING, []),
    (SETTLING, "b is up", SETTLING, []),
    (SETTLING, "a is down", SETTLING, []),
    (SETTLING, "b is down", SETTLING, []),
    (SETTLING, "a new part", SETTLING, []),
    (SETTLING, "the first expires", SETTLING, []),
    (SETTLING, "tick", SETTLING, []),
    (SETTLING, "the last is accepted", REFUSED, ["done 1", f"fail 0 {NOT_LEADER}"]),
    (SETTLING, "the last is refused", REFUSED, ["back 0 1"]),
    (SETTLING, "the last may be in the file", REFUSED, ["back 0 1"]),
    (SETTLING, "the last is too large", REFUSED, ["fail 1 MESSAGE_TOO_LARGE", "back 0"]),
    (SETTLING, "the last is lost", UNREACHED, ["back 0 1"]),
    (SETTLING, "the last is lost unsent", UNREACHED, ["back 0 1"]),
]


@pytest.mark.parametrize(("state", "event", "after", "effects"), ROWS)
def test_every_state_and_event(state: RouteState, event: str, after: RouteState, effects: list[str]) -> None:
    story = BEGINNINGS[state]()
    assert story.route.state is state
    assert story.tell(EVENTS[event](story)) == effects
    assert story.route.state is after


def test_the_table_has_a_row_for_every_state_and_event() -> None:
    """Responses come only where something is under way."""
    shown = {(state, type(EVENTS[event](BEGINNINGS[state]()))) for state, event, _, _ in ROWS}
    assert shown == {pair for pair, cell in TABLE.items() if cell is not Cell.NEVER}
    assert set(TABLE) == set(itertools.product(RouteState, get_args(Event)))
    for state in (UNASSIGNED, UNREACHED, REFUSED):
        assert not BEGINNINGS[state]().route.under_way


# ------------------------------------------------------------------------------------------------------ what it means


def test_parts_come_back_in_order_and_those_that_come_too_early_behind_them() -> None:
    story = opened()
    story.tell(Assigned("b", is_up=True))
    assert story.hand(9) == []
    assert story.refuse(1) == []
    assert story.refuse(0) == ["back 0 1 2"]
    assert (story.route.state, story.route.bytes) == (OPEN, 0)
    assert story.hand(9) == ["send b 3"]


def test_rule_9_a_sent_batch_without_a_producer_id_is_not_sent_again() -> None:
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(NO_PRODUCER, 7, NO_PRODUCER)
    story.tell(ConnectionLost("a"))
    assert story.lose(0) == ["fail 0 REQUEST_TIMED_OUT"]
    assert story.lose(1) == []
    assert story.lose(2, was_sent=False) == ["back 1 2"]
    assert [each.is_unsure for each in story.parts[1:]] == [True, False]


def test_rule_9_a_batch_that_may_be_stored_is_sent_again_only_with_a_producer_id() -> None:
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(NO_PRODUCER, 7)
    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert story.refuse(0, code) == [f"fail 0 {code.name}"]
    assert story.refuse(1, code) == ["back 1"]


def test_rule_9_a_returned_batch_waits_for_those_in_flight_until_its_time_limit() -> None:
    story = settling()
    wake_at = story.route.wake_at
    assert wake_at == HELD_S
    assert story.tell(Tick(), now=wake_at) == [f"fail 0 {NOT_LEADER}"]
    assert (story.route.state, story.route.wake_at) == (SETTLING, None)


def test_a_batch_that_may_be_stored_is_answered_as_timed_out() -> None:
    """Clients take NOT_LEADER_OR_FOLLOWER for "certainly not written"."""
    story = opened()
    story.tell(ConnectionLost("a"))
    story.lose(0)
    assert story.tell(Tick(), now=HELD_S) == ["fail 0 REQUEST_TIMED_OUT"]
    assert story.lose(1) == ["fail 1 REQUEST_TIMED_OUT"]


def test_a_refused_part_does_not_come_after_what_followed_it() -> None:
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(NO_PRODUCER, NO_PRODUCER)
    story.refuse(0)
    assert story.accept(1) == ["done 1", f"fail 0 {NOT_LEADER}"]


def test_a_producers_later_batches_are_given_up_with_an_earlier_one() -> None:
    """Give up a producer's batch while its later one is in flight, which is then refused: it is given up too."""
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(7, 8, 7)
    story.refuse(0, ErrorCode.KAFKA_STORAGE_ERROR)
    story.refuse(1)
    assert story.refuse(2) == [f"fail 2 {NOT_LEADER}", "back 1"]


def test_a_producer_that_comes_again_is_not_given_up() -> None:
    story = Story()
    story.tell(Assigned("a", is_up=True))
    story.hand(8, 7)
    story.refuse(1, ErrorCode.KAFKA_STORAGE_ERROR)
    story.hand(7)
    story.refuse(0)
    assert story.refuse(2) == ["back 0 2"]


def test_an_expired_batch_is_given_up() -> None:
    """A batch under way gets no response; a refused batch is not given back."""
    story = opened()
    story.hand(9)
    assert story.tell(Expired(story.parts[0])) == []
    assert story.tell(Expired(story.parts[2])) == []
    assert story.accept(0) == []
    assert story.refuse(1) == []
    assert story.refuse(2) == ["back 1"]
    assert story.route.bytes == 0


def test_after_refusals_it_asks_less_and_less_often_and_at_once_after_a_move() -> None:
    story = Story()
    story.tell(Assigned("a", is_up=True))
    waits = []
    for number in range(8):
        assert story.hand(7) == [f"send a {number}"]
        story.refuse(number)
        wake_at = story.route.wake_at
        assert wake_at is not None
        waits.append(wake_at - story.now)
        assert story.tell(Tick(), now=wake_at) == []
    assert waits == sorted(waits)
    assert max(waits) <= RETRY_S.most
    story.hand(7)
    story.refuse(8)
    story.tell(Assigned("b", is_up=True))
    assert story.route.is_open


def test_a_late_loss_says_nothing_of_the_present_connection() -> None:
    story = opened()
    story.tell(ConnectionLost("a"))
    story.tell(ConnectionUp("a"))
    story.lose(0)
    assert story.lose(1) == ["back 0 1"]
    assert story.route.is_open


def test_batches_in_flight_and_returned_ones_count_against_the_room() -> None:
    story = Story(credit_bytes=30)
    story.tell(Assigned("a", is_up=True))
    story.hand(7, 8, size=10)
    assert story.route.has_room
    story.hand(9, size=10)
    assert not story.route.has_room
    story.refuse(0)
    story.refuse(1)
    assert not story.route.has_room
    story.tell(Expired(story.parts[0]))
    assert story.route.has_room


# ---------------------------------------------------------------------------------------------------------- histories


@dataclass
class Connection:
    """The stream between the route and one start of one broker: batches in, responses out, both in order."""

    broker: str
    sent: list[RoutedBatch] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)


class World:
    """Brokers that own one log in turn.  The log keeps what it has taken; its owner recognises repeated batches of
    idempotent producers, and refuses, as ``endpoint.produce.retry_order`` has it, what follows a refused batch.
    In front of the route is the partition's queue: returned batches go to its front."""

    def __init__(self) -> None:
        self.route = ProduceRoute(10_000)
        self.now = 0.0
        self.queue: list[RoutedBatch] = []
        self.arrivals: dict[RoutedBatch, int] = {}
        self.unsure: set[RoutedBatch] = set()
        self.owner = "a"
        self.log: list[RoutedBatch] = []
        self.connections: dict[str, Connection | None] = {"a": None, "b": None}
        self.stumbled: dict[tuple[str, int], int] = {}  # by broker and producer: the number refused
        self.outcomes: dict[RoutedBatch, str] = {}
        self.expired: set[RoutedBatch] = set()
        self.sent_order: list[int] = []
        self.tell(Assigned("a", is_up=False))

    def tell(self, event: Event) -> None:
        self.handle(event)
        while self.queue and self.route.is_open:
            self.handle(Submitted(self.queue.pop(0)))

    def handle(self, event: Event) -> None:
        for effect in self.route.handle(event, self.now):
            self.do(effect)

    def do(self, effect: Effect) -> None:
        if isinstance(effect, GiveBack):
            for one in effect.parts:
                assert one not in self.outcomes
                assert one.is_wanted
                if one.is_unsure:
                    self.unsure.add(one)
                one.is_unsure = False
            self.queue[:0] = effect.parts
            return
        if isinstance(effect, Send):
            connection = self.connections[effect.incarnation]
            assert connection is not None, "sent to whom there is no connection"
            others = [each for name, each in self.connections.items() if name != effect.incarnation and each]
            assert not any(each.sent or each.answers for each in others), "something is under way elsewhere"
            numbers = [each.number for each in effect.parts]
            assert numbers == sorted(numbers)
            connection.sent += effect.parts
            return
        assert effect.part not in self.outcomes, "answered twice"
        assert effect.part not in self.expired, "nobody waited for it"
        if isinstance(effect, Done):
            self.outcomes[effect.part] = "acked"
            assert effect.appended.base_offset == self.log.index(effect.part)
        else:
            assert effect.code.is_retriable
            self.fail(effect.part, effect.code)

    def fail(self, one: RoutedBatch, code: ErrorCode) -> None:
        """Also the producer's parts in the queue, as `RetryOrder` has it."""
        is_unsure = one in self.unsure and code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.outcomes[one] = (ErrorCode.REQUEST_TIMED_OUT if is_unsure else code).name
        self.drop_behind(one)

    def drop_behind(self, one: RoutedBatch) -> None:
        behind = [each for each in self.queue if one.is_idempotent and each.producer_id == one.producer_id]
        for each in behind:
            if each in self.queue and self.arrivals[each] > self.arrivals[one]:
                self.queue.remove(each)
                self.fail(each, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def receive(self, name: str) -> None:
        """Let a broker take the next batch, in order."""
        connection = self.connections[name]
        if connection is None or not connection.sent:
            return
        one = connection.sent.pop(0)
        if one.restarts_order:
            self.forget(name)
        sequence = self.arrivals[one]
        refused = self.stumbled.get((name, one.producer_id), sequence) if one.is_idempotent else sequence
        if name != self.owner or sequence > refused:
            if one.is_idempotent:
                self.stumbled[name, one.producer_id] = min(sequence, refused)
            connection.answers.append(Answered(one, ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here"))
            return
        self.stumbled.pop((name, one.producer_id), None)
        if one not in self.log:
            self.log.append(one)
        else:
            assert one.is_idempotent, "sent twice without a producer id"
        connection.answers.append(Answered(one, appended=appended(self.log.index(one))))

    def forget(self, name: str) -> None:
        self.stumbled = {each: number for each, number in self.stumbled.items() if each[0] != name}

    def respond(self, name: str) -> None:
        connection = self.connections[name]
        if connection is not None and connection.answers:
            self.tell(connection.answers.pop(0))

    def connect(self, name: str) -> None:
        if self.connections[name] is None:
            self.connections[name] = Connection(name)
            self.forget(name)
            self.tell(ConnectionUp(name))

    def cut(self, name: str, unsent: int) -> None:
        """Break the connection when the broker has taken all but the last ``unsent`` batches.

        The route may be notified that those were not sent.
        """
        connection = self.connections[name]
        if connection is None:
            return
        while len(connection.sent) > unsent:
            self.receive(name)
        self.connections[name] = None
        self.tell(ConnectionLost(name))
        for answered in connection.answers:
            self.tell(Lost(answered.part, was_sent=True))
        for one in connection.sent:
            self.tell(Lost(one, was_sent=unsent % 2 == 0))

    def assign(self, name: str) -> None:
        self.tell(Assigned(name, is_up=self.connections.get(name) is not None))

    def hand(self, producer: int) -> None:
        one = part(producer, held_until=self.now + HELD_S)
        self.arrivals[one] = len(self.arrivals)
        if self.queue or not self.route.is_open:
            self.queue.append(one)
        else:
            self.tell(Submitted(one))

    def expire(self, number: int) -> None:
        known = [*self.queue, *self.route.returned, *self.route.under_way]
        if known:
            one = known[number % len(known)]
            if one in self.queue:
                self.queue.remove(one)
                self.expired.add(one)
                self.drop_behind(one)
            elif one.is_wanted:
                self.expired.add(one)
                self.tell(Expired(one))

    def run_down(self) -> None:
        """Everything comes up again, and time passes."""
        for name in ("a", "b"):
            self.connect(name)
        self.assign(self.owner)
        for _ in range(200):
            for name in ("a", "b"):
                connection = self.connections[name]
                assert connection is not None
                while connection.sent:
                    self.receive(name)
                while connection.answers:
                    self.respond(name)
            if self.route.is_idle and not self.queue:
                return
            self.now += RETRY_S.least
            self.tell(Tick())


NAMES = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("hand"), st.sampled_from([NO_PRODUCER, 7, 8])),
    st.tuples(st.just("hand"), st.sampled_from([NO_PRODUCER, 7, 8])),
    st.tuples(st.just("receive"), NAMES),
    st.tuples(st.just("respond"), NAMES),
    st.tuples(st.just("connect"), NAMES),
    st.tuples(st.just("cut"), st.tuples(NAMES, st.integers(0, 3))),
    st.tuples(st.just("assign"), st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("move"), NAMES),
    st.tuples(st.just("expire"), st.integers(0, 10)),
    st.tuples(st.just("wait"), st.sampled_from([0.001, RETRY_S.least, 1.0, HELD_S])),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=60))
@settings(max_examples=example_count(100, 4_000), deadline=None)
def test_of_any_history_nothing_acked_is_lost_doubled_or_reordered(steps: list[tuple[str, object]]) -> None:
    world = World()

    for name, argument in steps:
        match name, argument:
            case "hand", int(producer):
                world.hand(producer)
            case "receive", str(broker):
                world.receive(broker)
            case "respond", str(broker):
                world.respond(broker)
            case "connect", str(broker):
                world.connect(broker)
            case "cut", (str(broker), int(unsent)):
                world.cut(broker, unsent)
            case "assign", str(broker):
                world.assign(broker)
            case "move", str(broker):
                world.owner = broker
            case "expire", int(number):
                world.expire(number)
            case "wait", float(seconds):
                world.now += seconds
                world.tell(Tick())
    world.run_down()
    assert world.route.is_idle
    assert not world.queue
    assert world.route.bytes == 0
    assert set(world.outcomes) | world.expired == set(world.arrivals)
    acked = [one for one, outcome in world.outcomes.items() if outcome == "acked"]
    assert set(acked) <= set(world.log)
    arrivals = [world.arrivals[one] for one in world.log]
    assert arrivals == sorted(arrivals)
    assert len(world.log) == len(set(world.log))
    for one, outcome in world.outcomes.items():
        assert one not in world.log or outcome != NOT_LEADER, "a client believes that it was not written"
