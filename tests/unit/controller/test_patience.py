"""A leader's patience with a silent member: more where members were silent before and not dead."""

from __future__ import annotations

import pytest

from bmq.controller.patience import FACTOR, LEAST_S, MEMORY_S, MOST_S, Patience


def test_a_leader_that_has_seen_no_slow_member_has_the_least_patience() -> None:
    patience = Patience()
    assert patience.seconds(0.0) == LEAST_S
    patience.responded(0.01, 0.0)
    assert patience.seconds(0.0) == LEAST_S


@pytest.mark.parametrize(("silence_s", "patience_s"), [(0.5, 1.5), (1.0, 3.0), (1.5, MOST_S), (MOST_S, MOST_S)])
def test_a_silence_that_ended_is_waited_for_several_times_over(silence_s: float, patience_s: float) -> None:
    patience = Patience()
    patience.responded(silence_s, 0.0)
    patience.responded(silence_s / 2, 0.0)
    assert patience.seconds(0.0) == pytest.approx(patience_s)
    assert patience_s >= min(MOST_S, FACTOR * silence_s)


def test_a_silence_that_no_patience_would_have_been_enough_for_teaches_nothing() -> None:
    patience = Patience()
    patience.responded(MOST_S + 0.1, 0.0)
    assert patience.seconds(0.0) == LEAST_S


def test_a_silence_is_remembered_for_its_time_and_then_forgotten() -> None:
    patience = Patience()
    patience.responded(0.1, 0.0)
    patience.responded(1.0, MEMORY_S - 1)
    assert patience.seconds(2 * MEMORY_S - 2) == 3.0
    assert patience.seconds(3 * MEMORY_S - 2) == LEAST_S


def test_after_a_long_time_without_a_term_nothing_is_left() -> None:
    patience = Patience()
    patience.responded(1.0, 0.0)
    assert patience.seconds(2 * MEMORY_S) == LEAST_S
