"""Pauses that double within their bounds, however often a try fails."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bmq.core.aio.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 5.0)
    assert [backoff.pause(failures) for failures in range(7)] == [0, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_pauses_of_whole_numbers_are_whole_numbers() -> None:
    assert [repr(Backoff(100, 2_000).pause(failures)) for failures in (1, 2, 9)] == ["100", "200", "2000"]


@given(st.floats(1e-3, 10), st.floats(10, 1e6))
def test_any_number_of_failures_has_a_pause(least: float, most: float) -> None:
    pauses = [Backoff(least, most).pause(failures) for failures in (1, 2, 3, 31, 32, 33, 1_025, 10**9)]
    assert all(before <= after for before, after in pairwise(pauses))
    assert pauses[0] == least
    assert pauses[-1] == most


def test_half_of_a_pause_may_be_random() -> None:
    backoff, dice = Backoff(0.1, 2.0), Random(1)
    for failures in range(1, 8):
        whole = backoff.pause(failures)
        drawn = [backoff.half_random(failures, dice.random) for _ in range(100)]
        assert whole / 2 <= min(drawn) < 0.6 * whole
        assert 0.9 * whole < max(drawn) <= whole
    assert backoff.half_random(0) == 0
