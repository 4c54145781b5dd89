"""Saturation: a backlog that grows is one, a pause is not, whenever it comes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.saturation import Growth, backlog, growth

SECONDS, RECORDS_S = 10.0, 1000
DUE = 50.0 + np.arange(int(SECONDS * RECORDS_S)) / RECORDS_S


def served(records_s: float) -> NDArray[np.float64]:
    """Return when each record is done by a server that does so many a second, one after another."""
    done, free = np.empty(len(DUE)), 0.0
    for number, due in enumerate(DUE):
        free = max(free, due) + 1 / records_s
        done[number] = free
    return done


def paused(begin: float, length: float) -> NDArray[np.float64]:
    """Return when each record is done by a quick server that stands still once, from so many seconds on."""
    from_, to = DUE[0] + begin, DUE[0] + begin + length
    return np.where((from_ < DUE) & (to > DUE), to, DUE + 0.001)


def test_the_backlog_is_what_was_due_and_is_not_done() -> None:
    due, done = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.5, 3.5, np.nan, 4.5])
    assert [backlog(due, done, at) for at in (0.5, 1.0, 2.5, 3.0, 3.5, 9.0)] == [0, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("records_s", [2000, 1100, 1000.1])
def test_a_server_that_is_quick_enough_is_not_saturated(records_s: float) -> None:
    assert not growth(DUE, served(records_s)).is_saturated


@pytest.mark.parametrize("records_s", [950, 700, 100])
def test_a_server_that_is_too_slow_is_saturated(records_s: float) -> None:
    found = growth(DUE, served(records_s))
    assert found.is_saturated
    assert found.after_s == pytest.approx((1 - records_s / RECORDS_S) * 0.75 * SECONDS, rel=0.1)


def test_what_is_never_done_is_a_backlog() -> None:
    assert growth(DUE, np.full(len(DUE), np.nan)).is_saturated


@pytest.mark.parametrize("begin", [0.0, 3.0, 8.0, 9.0])
def test_a_pause_is_not_saturation_whenever_it_comes(begin: float) -> None:
    assert not growth(DUE, paused(begin, 1.0)).is_saturated


def test_a_backlog_that_stays_as_it_is_does_not_grow() -> None:
    assert not Growth(before_s=0.5, after_s=0.6).is_saturated
    assert Growth(before_s=0.5, after_s=0.8).is_saturated
