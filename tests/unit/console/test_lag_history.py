"""The rings of groups' lag: what is kept, for how long, and how it goes over the wire."""

from __future__ import annotations

import pytest

from bmq.console.lag_history import (
    INTERVAL_MS,
    KEPT_MS,
    SAMPLES_MAX,
    LagHistory,
    LagSample,
)

pytestmark = pytest.mark.slow

START_MS = 1_700_000_000_000


def test_each_group_has_its_samples() -> None:
    history = LagHistory()
    history.add(START_MS, {"billing": 5, "audit": 0})
    history.add(START_MS + INTERVAL_MS, {"billing": 7})
    assert history.since("billing", 0) == [LagSample(START_MS, 5), LagSample(START_MS + INTERVAL_MS, 7)]
    assert history.since("billing", START_MS) == [LagSample(START_MS + INTERVAL_MS, 7)]
    assert history.since("audit", 0) == [LagSample(START_MS, 0)]
    assert history.since("nobody", 0) == []


def test_rings_are_bounded() -> None:
    history = LagHistory()
    for number in range(SAMPLES_MAX + 10):
        history.add(START_MS + number * INTERVAL_MS, {"billing": number})
    assert [each.lag for each in history.since("billing", 0)] == list(range(10, SAMPLES_MAX + 10))


def test_a_group_that_is_not_counted_any_more_goes() -> None:
    history = LagHistory()
    history.add(START_MS, {"deleted": 5, "billing": 1})
    history.add(START_MS + KEPT_MS, {"billing": 1})
    assert len(history) == 2
    history.add(START_MS + KEPT_MS + 1, {"billing": 1})
    assert len(history) == 1
    assert history.since("deleted", 0) == []


def test_a_clock_that_is_set_back_drops_what_is_of_the_future() -> None:
    history = LagHistory()
    history.add(START_MS, {"quiet": 5})
    history.add(START_MS - 1, {"billing": 5})
    assert history.since("quiet", 0) == []
