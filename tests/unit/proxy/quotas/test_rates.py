"""Rates and allowances: Kafka's numbers, and that no window has more than its limit."""

from __future__ import annotations

import random
from bisect import bisect_left
from heapq import heapify, heapreplace

import pytest

from bmq.proxy.quotas.rates import BURST_S, SAMPLE_S, SAMPLES, Allowance, Rate

WINDOW_S = SAMPLES * SAMPLE_S


def test_a_rate_counts_ten_whole_samples_at_least() -> None:
    rate = Rate()
    assert rate.per_second(5.0) == 0.0
    rate.record(100.0, 5.0)
    assert rate.per_second(5.0) == 10.0  # as if nothing had been in nine samples before
    assert rate.per_second(5.5) == pytest.approx(100 / 10.5)
    rate.record(100.0, 6.2)
    assert rate.per_second(6.2) == pytest.approx(200 / 10.2)


def test_a_rate_forgets_after_eleven_samples() -> None:
    rate = Rate()
    for second in range(30):
        rate.record(50.0, float(second))
    assert rate.per_second(29.5) == pytest.approx(50 * 11 / 10.5)
    assert rate.per_second(45.0) == 0.0


def test_kafkas_throttle_time_brings_the_rate_to_the_limit() -> None:
    rate = Rate()
    rate.record(200.0, 0.0)
    assert rate.wait_s(10.0, 0.0) == 10.0  # 20 a second in ten seconds: (20 - 10) / 10 * 10 s
    assert rate.wait_s(20.0, 0.0) == 0.0


def test_an_allowance_is_overdrawn_and_paid() -> None:
    allowance = Allowance(100.0, 0.0, credit_s=0.0)
    allowance.take(250.0, 0.0)
    assert allowance.wait_s(0.0) == 2.5
    assert allowance.wait_s(1.0) == 1.5
    assert allowance.credit(2.5) == 0.0
    assert allowance.credit(100.0) == 100.0 * BURST_S


def test_a_debt_is_paid_at_the_limit_of_each_time() -> None:
    allowance = Allowance(100.0, 0.0, credit_s=0.0)
    allowance.take(300.0, 0.0)
    allowance.set_limit(50.0, 1.0)
    assert allowance.wait_s(1.0) == 4.0
    allowance.set_limit(200.0, 2.0)
    assert allowance.wait_s(2.0) == 0.75


@pytest.mark.slow
@pytest.mark.parametrize("connections", [1, 5, 50])
@pytest.mark.parametrize("size", [100, 5_000, 50_000])
def test_every_window_has_at_most_a_tenth_more_whatever_the_number_of_connections(connections: int, size: int) -> None:
    """Each connection sends as fast as it may; ``size`` is small against the limit, as in use."""
    limit, rng = min(10_000_000.0, 2_000.0 * size), random.Random(connections * size)
    allowance = Allowance(limit, 0.0)
    ready = [rng.random() / 100 for _ in range(connections)]
    heapify(ready)
    sent: list[float] = []
    while (now := ready[0]) < 60.0:
        allowance.take(size, now)
        sent.append(now)
        heapreplace(ready, now + allowance.wait_s(now) + 0.001)
    for start in range(49):
        total = size * (bisect_left(sent, start + WINDOW_S) - bisect_left(sent, start))
        assert total <= 1.1 * limit * WINDOW_S
        if connections * size * 1_000 > 2 * limit:  # they ask for more than there is
            assert total >= 0.9 * limit * WINDOW_S
