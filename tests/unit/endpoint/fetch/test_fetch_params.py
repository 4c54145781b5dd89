"""Bounds of a fetch that contradict each other are brought together."""

from __future__ import annotations

from bmq.core.metrics.counters import RequestCounters
from bmq.endpoint.fetch.fetch_params import WAIT_MAX_S, FetchParams


def test_a_fetch_waits_for_no_more_bytes_than_it_may_return() -> None:
    assert FetchParams(1_000, 100, 0.5, committed=False, metrics=RequestCounters()).min_bytes == 100
    assert FetchParams(10, 100, 0.5, committed=False, metrics=RequestCounters()).min_bytes == 10


def test_a_wait_of_days_is_bounded() -> None:
    params = FetchParams(1, 100, (2**31 - 1) / 1000, committed=False, metrics=RequestCounters())
    assert params.max_wait_s == WAIT_MAX_S
    params = FetchParams(1, 100, WAIT_MAX_S - 1, committed=False, metrics=RequestCounters())
    assert params.max_wait_s == WAIT_MAX_S - 1


def test_a_wait_below_zero_is_none() -> None:
    assert FetchParams(1, 100, -0.001, committed=False, metrics=RequestCounters()).max_wait_s == 0.0
