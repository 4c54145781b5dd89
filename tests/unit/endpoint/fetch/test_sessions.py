"""Fetch sessions: the table of ids and epochs, which session makes room for which, and a naive model beside it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode
from bmq.endpoint.fetch.purgatory import Identity, SessionPartition
from bmq.endpoint.fetch.sessions import (
    EPOCH_MAX,
    EVICTION_MS,
    NO_SESSION,
    PARTITIONS_A_STEP,
    PARTITIONS_PER_SLOT,
    FetchSessions,
    Turn,
)
from tests.harness.seeds import example_count
from tests.unit.endpoint.serving import want

ID = uuid.UUID(int=7)


def counter() -> Callable[[], int]:
    return itertools.count(1).__next__


def wanted(*partitions: int, topic: str | uuid.UUID = "t", offset: int = 0) -> list[SessionPartition]:
    return [SessionPartition(topic, partition, offset, 1000) for partition in partitions]


def begin(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    listed: Sequence[SessionPartition] = (),
    forgotten: Iterable[Identity] = (),
    *,
    by_id: bool = False,
    now_ms: int = 0,
) -> Turn:
    return sessions.begin(session_id, epoch, listed, forgotten, by_id=by_id, now_ms=now_ms)


def opened(sessions: FetchSessions, partitions: int = 1, now_ms: int = 0) -> int:
    """Open a session and return its id."""
    turn = begin(sessions, 0, 0, wanted(*range(partitions)), now_ms=now_ms)
    assert turn.session is not None
    return turn.session.id


# ------------------------------------------------------------------------------------------------------- the table

NONE, NOT_FOUND, BAD_EPOCH, BAD_TOPIC = (
    ErrorCode.NONE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
TABLE = [
    # the session named, epoch, by id,       error, goes on in: a new session, the old one, none; is the old one closed
    ("none", 0, False, NONE, "new", False),
    ("none", -1, False, NONE, "none", False),
    ("none", 1, False, NOT_FOUND, "none", False),
    ("none", -2, False, NOT_FOUND, "none", False),
    ("unknown", 0, False, NONE, "new", False),
    ("unknown", -1, False, NONE, "none", False),
    ("unknown", 1, False, NOT_FOUND, "none", False),
    ("unknown", EPOCH_MAX, False, NOT_FOUND, "none", False),
    ("old", 0, False, NONE, "new", True),
    ("old", 0, True, NONE, "new", True),
    ("old", -1, False, NONE, "none", True),
    ("old", 1, False, NONE, "old", False),
    ("old", 1, True, BAD_TOPIC, "none", False),
    ("old", 2, False, BAD_EPOCH, "none", False),
    ("old", 2, True, BAD_EPOCH, "none", False),
    ("old", -2, False, BAD_EPOCH, "none", False),
    ("old", EPOCH_MAX, False, BAD_EPOCH, "none", False),
]


@pytest.mark.parametrize(("named", "epoch", "by_id", "error", "goes_on", "is_closed"), TABLE)
def test_a_session_id_and_epoch_have_kafkas_meaning(
    named: str, epoch: int, by_id: bool, error: ErrorCode, goes_on: str, is_closed: bool
) -> None:
    sessions = FetchSessions(10, counter())
    old = sessions.get(opened(sessions, 3))
    assert old is not None
    listed = wanted(5, topic=ID if by_id else "t")
    turn = begin(sessions, {"none": 0, "unknown": 99, "old": old.id}[named], epoch, listed, by_id=by_id)
    assert turn.error == error
    assert turn.closed == ([old] if is_closed else [])
    assert old.is_closed == is_closed
    assert (sessions.get(old.id) is None) == is_closed
    if goes_on == "new":
        assert turn.session not in (None, old)
        assert turn.session is not None
        assert (turn.session.epoch, turn.session.by_id, turn.is_new) == (1, by_id, True)
        assert turn.partitions == listed == list(turn.session.watch.changed)
    elif goes_on == "old":
        assert turn.session is old
        assert (old.epoch, turn.epoch, turn.partitions, turn.is_new) == (2, 2, None, False)
    else:
        assert turn.session is None
        assert old.epoch == 1
        assert turn.partitions == (None if error else listed)


def test_an_epoch_runs_from_1_to_the_largest_and_back_to_1() -> None:
    sessions = FetchSessions(10, counter())
    session = sessions.get(opened(sessions))
    assert session is not None
    session.epoch = EPOCH_MAX
    assert begin(sessions, session.id, EPOCH_MAX).epoch == session.epoch == 1


def test_a_request_that_was_overtaken_is_refused() -> None:
    sessions = FetchSessions(10, counter())
    session_id = opened(sessions)
    first = begin(sessions, session_id, 1)
    assert not first.is_overtaken
    begin(sessions, session_id, 2)
    assert first.is_overtaken


def test_listed_partitions_join_or_change_and_forgotten_ones_leave() -> None:
    sessions = FetchSessions(10, counter())
    session = sessions.get(opened(sessions, 3))
    assert session is not None
    first = session.partitions["t", 1]
    for each in tuple(session.watch.changed):
        session.watch.is_quiet(each, is_sent=True)
    turn = begin(sessions, session.id, 1, wanted(1, 7, offset=42), [("t", 0), ("t", 9), ("u", 1)])
    assert [each.identity for each in turn.left] == [("t", 0)]
    assert list(session.partitions) == [("t", 1), ("t", 2), ("t", 7)]
    assert session.partitions["t", 1] is first
    assert (first.offset, session.partitions["t", 7].offset) == (42, 42)
    assert [each.partition for each in session.watch.changed] == [1, 7]  # and not 2: nothing has happened there
    assert sessions.partitions == 3


def test_a_session_without_partitions_is_closed_and_the_request_answered_without() -> None:
    sessions = FetchSessions(10, counter())
    session_id = opened(sessions, 2)
    turn = begin(sessions, session_id, 1, wanted(5), [("t", 0), ("t", 1), ("t", 5)])
    assert (turn.error, turn.session, len(turn.closed), len(turn.left)) == (NONE, None, 1, 3)
    assert turn.partitions is not None
    assert [each.partition for each in turn.partitions] == [5]
    assert (len(sessions), sessions.partitions) == (0, 0)
    assert begin(sessions, session_id, 2).error == NOT_FOUND


def test_a_partition_named_twice_is_one_and_the_last_counts() -> None:
    sessions = FetchSessions(10, counter())
    turn = begin(sessions, 0, 0, wanted(1, offset=5) + wanted(1, offset=6))
    assert turn.session is not None
    assert [each.offset for each in turn.session.watch.changed] == [6]
    begin(sessions, turn.session.id, 1, wanted(2, offset=5) + wanted(2, offset=6))
    assert [(each.partition, each.offset) for each in turn.session.watch.changed] == [(1, 6), (2, 6)]
    assert sessions.partitions == 2


def test_ids_are_never_zero_nor_taken() -> None:
    given = iter([0, 5, 5, 0, 6])
    sessions = FetchSessions(10, given.__next__)
    assert [opened(sessions), opened(sessions)] == [5, 6]


def test_a_request_without_partitions_begins_no_session() -> None:
    sessions = FetchSessions(10, counter())
    assert begin(sessions, 0, 0).session is None


# ---------------------------------------------------------------------------------------------------------- room


def test_without_room_there_is_no_session() -> None:
    assert begin(FetchSessions(0, counter()), 0, 0, wanted(1)).session is None
    sessions = FetchSessions(2, counter())
    first, second = opened(sessions), opened(sessions, 5)
    turn = begin(sessions, 0, 0, wanted(*range(9)), now_ms=EVICTION_MS)  # not unused for over two minutes
    assert (turn.session, turn.error, turn.partitions is not None) == (None, NONE, True)
    assert sessions.get(first) is not None
    assert sessions.get(second) is not None


def test_the_session_unused_for_longest_makes_room() -> None:
    sessions = FetchSessions(2, counter())
    first, second = opened(sessions, 9), opened(sessions, 1)
    begin(sessions, first, 1, now_ms=10)
    turn = begin(sessions, 0, 0, wanted(1), now_ms=EVICTION_MS + 1)
    assert [session.id for session in turn.closed] == [second]
    assert turn.session is not None


@pytest.mark.parametrize(("size", "is_let_in"), [(3, False), (4, True)])
def test_a_larger_session_displaces_the_smallest_old_one(size: int, is_let_in: bool) -> None:
    sessions = FetchSessions(3, counter())
    small, large = opened(sessions, 3), opened(sessions, 5)
    now = EVICTION_MS + 1
    for session_id in (large, small):
        begin(sessions, session_id, 1, now_ms=now)
    young = opened(sessions, 1, now_ms=now)
    turn = begin(sessions, 0, 0, wanted(*range(size)), now_ms=now)
    assert [session.id for session in turn.closed] == ([small] if is_let_in else [])
    assert sessions.get(young) is not None
    assert (turn.session is not None) == is_let_in


def test_partitions_are_bounded_over_all_sessions() -> None:
    sessions = FetchSessions(2, counter())
    bound = 2 * PARTITIONS_PER_SLOT
    assert begin(sessions, 0, 0, wanted(*range(bound + 1))).session is None
    full = opened(sessions, bound)
    assert begin(sessions, 0, 0, wanted(1)).session is None
    turn = begin(sessions, full, 1, wanted(bound))
    assert turn.error == NOT_FOUND  # so that the client lists everything, without a session
    assert (len(turn.closed), len(sessions), sessions.partitions) == (1, 0, 0)


# ---------------------------------------------------------------------------------------------------------- model


@dataclass
class Kept:
    """A session, as the model has it.  ``rank`` is its size, once it may be displaced by size."""

    by_id: bool
    numbers: set[int]
    created: int
    used: tuple[int, int]
    epoch: int = 1
    rank: int | None = None


class Model(RuleBasedStateMachine):
    """Plain dicts and scans, as KIP-227 and Kafka's FetchSessionCache say it; compared in full after each step."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.sessions = FetchSessions(self.SLOTS, counter(), eviction_ms=100)
        self.model: dict[int, Kept] = {}
        self.next_id = 1
        self.now = self.uses = 0

    def use(self) -> tuple[int, int]:
        self.uses += 1
        return self.now, self.uses

    def make_room(self, size: int) -> bool:
        if len(self.model) < self.SLOTS:
            return True
        oldest = min(self.model, key=lambda key: self.model[key].used)
        if self.now - self.model[oldest].used[0] > 100:
            del self.model[oldest]
            return True
        ranks = sorted((kept.rank, key) for key, kept in self.model.items() if kept.rank is not None)
        if ranks and ranks[0][0] < size:
            del self.model[ranks[0][1]]
            return True
        return False

    @rule(ms=st.integers(1, 70))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(named=st.integers(0, 8), numbers=st.sets(st.integers(0, 5)), final=st.booleans(), by_id=st.booleans())
    def full(self, named: int, numbers: set[int], final: bool, by_id: bool) -> None:
        listed = wanted(*numbers, topic=ID if by_id else "t")
        turn = begin(self.sessions, named, -1 if final else 0, listed, by_id=by_id, now_ms=self.now)
        self.model.pop(named, None)
        expected = NO_SESSION
        if not final and numbers and self.make_room(len(numbers)):
            expected, self.next_id = self.next_id, self.next_id + 1
            self.model[expected] = Kept(by_id, set(numbers), self.now, self.use())
        assert turn.error == NONE
        assert (turn.session.id if turn.session is not None else NO_SESSION) == expected

    @rule(
        which=st.integers(0, 3),
        shift=st.sampled_from([0, 0, 0, 1, -1]),
        numbers=st.sets(st.integers(0, 5)),
        gone=st.sets(st.integers(0, 5)),
        other_names=st.sampled_from([False, False, False, True]),
    )
    def incremental(self, which: int, shift: int, numbers: set[int], gone: set[int], other_names: bool) -> None:
        known = sorted(self.model)
        session_id = known[which] if which < len(known) else 999
        kept = self.model.get(session_id)
        epoch = (kept.epoch if kept is not None else 3) + shift
        if epoch < 1:  # a full fetch: see above
            return
        by_id = (kept is not None and kept.by_id) != other_names
        topic = ID if by_id else "t"
        forgotten: list[Identity] = [(topic, number) for number in sorted(gone)]
        listed = wanted(*numbers, topic=topic)
        turn = begin(self.sessions, session_id, epoch, listed, forgotten, by_id=by_id, now_ms=self.now)
        if kept is None:
            assert turn.error == NOT_FOUND
        elif shift:
            assert turn.error == BAD_EPOCH
        elif other_names:
            assert turn.error == BAD_TOPIC
        else:
            assert turn.error == NONE
            self.go_on(session_id, kept, numbers, gone)

    def go_on(self, session_id: int, kept: Kept, numbers: set[int], gone: set[int]) -> None:
        kept.numbers = (kept.numbers | numbers) - gone
        if not kept.numbers:
            del self.model[session_id]
            return
        kept.epoch += 1
        kept.used = self.use()
        if self.now - kept.created > 100:
            kept.rank = len(kept.numbers)

    @invariant()
    def they_are_the_same(self) -> None:
        assert len(self.sessions) == len(self.model)
        assert self.sessions.partitions == sum(len(kept.numbers) for kept in self.model.values())
        for session_id, kept in self.model.items():
            session = self.sessions.get(session_id)
            assert session is not None
            assert (session.epoch, session.by_id) == (kept.epoch, kept.by_id)
            assert {number for _, number in session.partitions} == kept.numbers
            assert set(session.watch.changed) == set(session.partitions.values())


Model.TestCase.settings = settings(max_examples=example_count(20, 600), stateful_step_count=40, deadline=None)
TestModel = Model.TestCase


def test_sessions_that_begin_together_stay_within_the_bound_of_partitions() -> None:
    """Two that begin in each other's pauses do not pass the bound together."""
    ids = iter(range(1, 10))
    sessions = FetchSessions(100, lambda: next(ids))
    count = 6 * PARTITIONS_A_STEP
    steps = [
        sessions.begin_in_steps(0, 0, [want(f"t{topic}", number) for number in range(count)], (), by_id=False, now_ms=0)
        for topic in range(2)
    ]
    for _ in range(8):
        for each in steps:
            next(each)
    turns = [finish_steps(each) for each in steps]
    assert [turn.session is not None for turn in turns] == [True, False]
    assert sessions.partitions == count
    assert [len(turn.partitions or ()) for turn in turns] == [count, count]


@pytest.mark.parametrize("name", ["x" * 250, "ä", "x" * 32_000])
def test_a_name_that_no_topic_can_have_is_not_kept(name: str) -> None:
    """Sessions are bounded in partitions, so that their names must be bounded in bytes."""
    sessions = FetchSessions(10, counter())
    turn = begin(sessions, 0, 0, [*wanted(0), *wanted(0, topic=name)])
    assert (turn.session, turn.error, len(sessions), sessions.partitions) == (None, ErrorCode.NONE, 0, 0)
    assert turn.partitions is not None
    assert len(turn.partitions) == 2, "served all the same"
    session_id = opened(sessions)
    turn = begin(sessions, session_id, 1, wanted(0, topic=name))
    assert (turn.error, len(sessions), sessions.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, 0)
    begin(sessions, 0, 0, wanted(0, topic="x" * 249))
    assert len(sessions) == 1
