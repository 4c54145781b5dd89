"""Counters of the hot path: buckets at their bounds, and topics past the bound."""

from __future__ import annotations

import pytest

from bmq.core.metrics.counters import LATENCY_BOUNDS_MS, ApiCounters, Histogram, RequestCounters, UnreadCounters


@pytest.mark.parametrize(
    ("ms", "bucket"),
    [
        (0.0, 0), (1.0, 0), (1.001, 1), (2.0, 1), (30_000.0, len(LATENCY_BOUNDS_MS) - 1),
        (30_000.1, len(LATENCY_BOUNDS_MS)),
    ],
)  # fmt: skip
def test_a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_pass(ms: float, bucket: int) -> None:
    histogram, api = Histogram(), ApiCounters()
    histogram.observe(ms)
    api.answered(ms)
    wanted = [int(number == bucket) for number in range(len(LATENCY_BOUNDS_MS) + 1)]
    assert histogram.buckets == api.buckets == wanted
    assert (histogram.total_ms, api.total_ms, api.count) == (ms, ms, 1)


def test_errors_of_an_api_are_counted_by_code() -> None:
    metrics = RequestCounters()
    for code in (3, 17, 3):
        metrics.api(0).failed(code)
    assert metrics.api(0).errors == {3: 2, 17: 1}
    assert metrics.api(1).errors == {}


def test_topics_past_the_bound_share_counters() -> None:
    metrics = RequestCounters(topics_max=2)
    first, second = metrics.topic("a"), metrics.topic("b")
    assert metrics.other_topics is None
    others = metrics.topic("c")
    assert metrics.topic("d") is others is metrics.other_topics
    assert metrics.topic("a") is first
    assert metrics.topic("b") is second
    metrics.forget("a")
    metrics.forget("unknown")
    assert metrics.topic("c") is not others, "the room of a deleted topic is given to the next"
    assert set(metrics.topics) == {"b", "c"}


def test_counters_that_nobody_reads_do_not_grow() -> None:
    metrics = UnreadCounters()
    for number in range(10):
        metrics.topic(f"t{number}").fetches += 1
        metrics.api(number).answered(1.0)
    assert metrics.topic("t0") is metrics.topic("t9")
    assert metrics.api(0) is metrics.api(9)
    assert (metrics.topics, metrics.other_topics, metrics.apis) == ({}, None, {})
