"""The judge of isolation (tests/simulation/transaction_isolation.py): each phenomenon is reported, and nothing else."""

from __future__ import annotations

import pytest

from bmq.core.records.control import Marker
from tests.simulation.transaction_attempts import RING, Attempt, Key, Read
from tests.simulation.transaction_isolation import (
    HOPS,
    Log,
    aborted_reads,
    broken_circles,
    circular_flows,
    disorder,
    early_reads,
    misplaced,
    next_hop,
)

THERE, BACK = (RING[0], 0), (RING[1], 0)
SEED = b"token:0"
SEEDS = {SEED}


def attempt(name: str, *reads: Read, source: Key = THERE, begin: int = 0, end: int = 0) -> Attempt:
    return Attempt(name, source, begin, end, reads=list(reads))


def of(*writers: str) -> list[Read]:
    return [Read(BACK, offset, f"{writer}|1|token:0".encode()) for offset, writer in enumerate(writers)]


def test_a_read_of_a_transaction_that_was_not_committed_is_reported() -> None:
    reader = attempt("c", Read(THERE, 0, SEED), *of("a", "b"))
    assert aborted_reads([reader], {"a", "b", "c"}, SEEDS) == []
    (found,) = aborted_reads([reader], {"a", "c"}, SEEDS)
    assert "b|1|token:0" in found


@pytest.mark.parametrize(
    ("markers", "end", "is_early"),
    [
        ({6: (1, Marker.COMMIT)}, 7, False),
        ({6: (1, Marker.COMMIT)}, 6, True),
        ({6: (1, Marker.ABORT)}, 7, True),
        ({6: (2, Marker.COMMIT)}, 7, True),
        ({4: (1, Marker.COMMIT)}, 7, True),
        ({5: (2, Marker.ABORT), 6: (1, Marker.COMMIT), 8: (1, Marker.ABORT)}, 7, False),
        ({}, 7, True),
    ],
)
def test_a_record_is_read_only_once_the_commit_marker_is_in_the_log(
    markers: dict[int, tuple[int, Marker | None]], end: int, is_early: bool
) -> None:
    log = Log({5: b"a|1|token:0"}, {5: 1}, markers)
    assert bool(early_reads(BACK, {5: end}, log)) is is_early


def test_a_circle_of_two_transactions_that_read_each_other_is_reported() -> None:
    attempts = [attempt("a", *of("b")), attempt("b", *of("a"))]
    (found,) = circular_flows(attempts, {"a", "b"})
    assert "(G1c)" in found
    assert circular_flows(attempts, {"a"}) == []
    assert circular_flows([attempt("a", *of("b")), attempt("b")], {"a", "b"}) == []


def test_a_circle_through_a_third_transaction_is_reported() -> None:
    attempts = [attempt("a", *of("c")), attempt("b", *of("a")), attempt("c", *of("b"))]
    assert len(circular_flows(attempts, {"a", "b", "c"})) == 1
    assert circular_flows([*attempts[1:], attempt("a")], {"a", "b", "c"}) == []


def test_a_circle_through_a_consumed_offset_is_reported() -> None:
    """The second transaction begins where the first has ended, and the first has read what the second has written."""
    first = attempt("a", *of("b"), begin=0, end=2)
    second = attempt("b", begin=2, end=3)
    assert len(circular_flows([second, first], {"a", "b"})) == 1
    elsewhere = attempt("b", source=BACK, begin=2, end=3)
    assert circular_flows([elsewhere, first], {"a", "b"}) == []


def test_a_transaction_that_reads_its_own_record_is_reported() -> None:
    assert len(circular_flows([attempt("a", *of("a"))], {"a"})) == 1


@pytest.mark.parametrize(
    ("written", "is_wrong"),
    [
        ([b"a|0", b"a|1", b"a|2"], False),
        ([b"a|0", b"b|0", b"a|1"], False),
        ([], False),
        ([b"a|0", b"a|2"], True),
        ([b"a|1", b"a|0", b"a|2"], True),
        ([b"a|0", b"a|1", b"a|1", b"a|2"], True),
        ([b"a|1"], True),
        ([b"a|0", b"a|1", b"a|2", b"a|3"], True),
    ],
)
def test_the_records_of_a_transaction_are_in_the_log_once_in_order_without_a_gap(
    written: list[bytes], is_wrong: bool
) -> None:
    sent = attempt("a")
    sent.records[BACK] = [b"a|0", b"a|1", b"a|2"]
    other = attempt("b")
    other.records[BACK] = [b"b|0"]
    assert bool(disorder([sent, other], {BACK: Log(dict(enumerate(written)))})) is is_wrong


def test_an_acknowledged_record_is_at_its_offset() -> None:
    logs = {BACK: Log({3: b"a|0"})}
    assert misplaced({BACK: {3: b"a|0"}}, logs) == []
    assert len(misplaced({BACK: {3: b"a|1"}}, logs)) == 1
    assert len(misplaced({BACK: {2: b"a|0"}}, logs)) == 1


class Circle:
    """The hops of a token, each by a transaction of its own, up to a hop."""

    def __init__(self, hops: int) -> None:
        self.records: dict[Key, dict[int, bytes]] = {THERE: {0: SEED}, BACK: {}}
        self.attempts: dict[str, Attempt] = {}
        self.positions = {THERE: 0, BACK: 0}
        value = SEED
        for hop in range(hops):
            read, written = (THERE, BACK) if hop % 2 == 0 else (BACK, THERE)
            offset, name = 2 * (hop // 2), f"a{hop}"
            self.attempts[name] = attempt(name, Read(read, offset, value), source=read, begin=offset, end=offset + 1)
            self.positions[read] = offset + 1
            value = next_hop(name, value)
            self.records[written][2 * ((hop + 1) // 2)] = value

    def found(self) -> list[str]:
        return broken_circles(self.records, self.attempts, SEEDS, self.positions)


@pytest.mark.parametrize("hops", range(HOPS + 1))
def test_a_circle_may_end_at_its_last_hop_or_before_a_record_that_is_not_consumed(hops: int) -> None:
    assert Circle(hops).found() == []


def test_a_missing_hop_is_reported() -> None:
    circle = Circle(4)
    del circle.records[THERE][2]
    assert len(circle.found()) == 1


def test_a_token_without_any_record_is_reported() -> None:
    circle = Circle(0)
    del circle.records[THERE][0]
    assert len(circle.found()) == 1


def test_a_hop_that_is_there_twice_is_reported() -> None:
    circle = Circle(4)
    circle.records[BACK][9] = circle.records[BACK][2]
    assert len(circle.found()) == 1


def test_a_last_record_that_is_consumed_before_the_last_hop_is_reported() -> None:
    circle = Circle(3)
    circle.positions[BACK] = 3
    assert len(circle.found()) == 1


def test_a_consumed_record_of_the_last_hop_is_the_end() -> None:
    circle = Circle(HOPS)
    circle.positions[RING[HOPS % 2], 0] = 100
    assert circle.found() == []


def test_a_hop_behind_the_last_one_is_reported() -> None:
    assert len(Circle(HOPS + 1).found()) == 1


def test_a_hop_by_a_transaction_that_has_not_read_the_hop_before_is_reported() -> None:
    circle = Circle(4)
    circle.attempts["a2"].reads.clear()
    assert len(circle.found()) == 1


def test_a_hop_in_the_wrong_topic_is_reported() -> None:
    circle = Circle(1)
    circle.records[THERE][4] = circle.records[BACK].pop(0)
    assert circle.found() != []
