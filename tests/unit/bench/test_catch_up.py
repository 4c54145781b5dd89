"""The readers of a backlog: their parts of it, their cases, their rates."""

from __future__ import annotations

from itertools import pairwise

from bench.catch_up import Backlog, Delivered
from bench.reading_measure import ALONE, FULL_SPEED, Parts, Plan, effect_cases, in_words, part_of


def test_parts_of_a_backlog_follow_each_other_and_leave_nothing_out() -> None:
    assert part_of([100, 50], 1, 0) == ((0, 100), (0, 50))
    parts = [part_of([101, 50], 5, index) for index in range(5)]
    assert parts[0] == ((0, 20), (0, 10))
    assert parts[4] == ((80, 101), (40, 50))
    assert all(one[each][1] == other[each][0] for one, other in pairwise(parts) for each in range(2))


def test_rounds_read_parts_of_one_half_in_turn() -> None:
    assert [Parts(1).of_round(number) for number in range(3)] == [0, 0, 0]
    assert [Parts(2).of_round(number) for number in range(3)] == [0, 0, 0]
    assert [Parts(10, 5).of_round(number) for number in range(6)] == [5, 6, 7, 8, 9, 5]


def test_a_backlog_has_the_records_of_its_ranges() -> None:
    assert Backlog(bootstrap="", topic="", ranges=((0, 10), (5, 8), (3, 3)), record_bytes=1).count == 13
    assert Delivered(2_000_000, 4.0).mb_s == 0.5


def test_the_cases_of_a_catch_up_are_none_slow_and_as_fast_as_it_goes() -> None:
    assert effect_cases(Plan()) == {ALONE: None, "catch-up at 50 MB/s": 50.0, FULL_SPEED: 0.0}
    assert (in_words(1), in_words(10)) == ("1 group", "10 groups")
