"""The ring of samples, what is added up of several processes, and their rows on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.console.history import (
    INTERVAL_MS,
    SAMPLES_MAX,
    SETTLE_MS,
    HistoryRow,
    MetricsHistory,
    Totals,
    decode_rows,
    encode_rows,
    merge,
    next_sample_s,
    quantile,
)
from bmq.core.errors import FormatError
from bmq.core.metrics.counters import LATENCY_BOUNDS_MS, Histogram

pytestmark = pytest.mark.slow

START_MS = 1_000 * INTERVAL_MS
BUCKETS = len(LATENCY_BOUNDS_MS) + 1


def ring(*records: int, step_ms: int = INTERVAL_MS) -> MetricsHistory:
    """Return a history of these record totals, one after each ``step_ms``."""
    history = MetricsHistory()
    for index, total in enumerate(records):
        history.add(START_MS + index * step_ms, Totals(records_in=total, connections=3))
    return history


def test_a_row_has_what_was_counted_in_its_interval() -> None:
    rows = ring(100, 150, 150, 400).since(0)
    assert [(row.number, row.totals.records_in) for row in rows] == [(1001, 50), (1002, 0), (1003, 250)]
    assert {row.totals.connections for row in rows} == {3}
    assert [row.number for row in ring(1, 2, 3, 4).since(1002 * INTERVAL_MS)] == [1003]


def test_counters_that_go_with_a_deleted_topic_are_no_negative_rate() -> None:
    assert [row.totals.records_in for row in ring(100, 40, 45).since(0)] == [0, 5]


def test_a_timer_that_comes_early_takes_one_sample_only() -> None:
    history = ring(100, 150)
    history.add(START_MS + INTERVAL_MS + 1, Totals(records_in=160))
    history.add(START_MS + 2 * INTERVAL_MS - 3, Totals(records_in=170))
    assert [row.totals.records_in for row in history.since(0)] == [50, 20]


def test_a_pause_leaves_a_gap_and_a_clock_set_back_clears() -> None:
    history = ring(100, 150)
    history.add(START_MS + 4 * INTERVAL_MS, Totals(records_in=900))
    history.add(START_MS + 5 * INTERVAL_MS, Totals(records_in=910))
    assert [(row.number, row.totals.records_in) for row in history.since(0)] == [(1001, 50), (1005, 10)]
    history.add(START_MS, Totals(records_in=950))
    history.add(START_MS + INTERVAL_MS, Totals(records_in=951))
    assert [(row.number, row.totals.records_in) for row in history.since(0)] == [(1001, 1)]


def test_the_ring_is_bounded() -> None:
    rows = ring(*range(SAMPLES_MAX + 50)).since(0)
    assert len(rows) == SAMPLES_MAX
    assert rows[-1].number == 1000 + SAMPLES_MAX + 49


@pytest.mark.parametrize(("past_ms", "left_s"), [(0, 5.0), (1, 4.999), (2_499, 2.501), (4_998, 5.002), (2_500, 7.5)])
def test_the_next_sample_is_due_at_the_next_end_not_sampled_yet(past_ms: int, left_s: float) -> None:
    assert next_sample_s(START_MS + past_ms) == left_s


def test_processes_are_added_up_by_time_once_all_have_sampled() -> None:
    parts = [ring(0, 10, 30).since(0), ring(0, 5, 5).since(0), []]
    now_ms = START_MS + 2 * INTERVAL_MS + SETTLE_MS
    both = merge(parts, now_ms)
    assert [(each["time_ms"], each["processes"]) for each in both] == [
        (START_MS + INTERVAL_MS, 2),
        (START_MS + 2 * INTERVAL_MS, 2),
    ]
    assert [each["records_in_per_s"] for each in both] == [3.0, 4.0]
    assert [each["connections"] for each in both] == [6, 6]
    assert len(merge(parts, now_ms - 1)) == 1, "the newest may not be whole yet"


def test_latencies_of_processes_are_added_as_histograms() -> None:
    def with_latency(ms: float, count: int) -> HistoryRow:
        times = Histogram()
        for _ in range(count):
            times.observe(ms)
        return HistoryRow(1, Totals(produce_buckets=times.buckets))

    (sample,) = merge([[with_latency(1, 99)], [with_latency(400, 1)]], 2 * INTERVAL_MS)
    assert sample["produce_p50_ms"] is not None
    assert sample["produce_p50_ms"] <= 1
    assert sample["produce_p99_ms"] == 1.0
    assert sample["flush_p99_ms"] is None
    (sample,) = merge([[with_latency(1, 97)], [with_latency(400, 3)]], 2 * INTERVAL_MS)
    assert sample["produce_p99_ms"] is not None
    assert 200 < sample["produce_p99_ms"] <= 500


def test_quantiles_interpolate_and_end_at_the_last_bound() -> None:
    assert quantile([0] * BUCKETS, 0.5) is None
    assert quantile([0, 0, 10] + [0] * (BUCKETS - 3), 0.5) == 3.5
    assert quantile([0] * (BUCKETS - 1) + [4], 0.99) == LATENCY_BOUNDS_MS[-1]


numbers = st.integers(0, (1 << 63) - 1)
buckets = st.tuples(*[numbers] * BUCKETS)
totals = st.builds(Totals, *[numbers] * 7, buckets, buckets)


@given(st.lists(st.builds(HistoryRow, numbers, totals), max_size=4))
def test_rows_come_back_from_the_wire(rows: list[HistoryRow]) -> None:
    assert decode_rows(encode_rows(rows)) == rows


def test_cut_rows_are_refused() -> None:
    data = encode_rows([HistoryRow(1, Totals())])
    with pytest.raises(FormatError):
        decode_rows(data[:-1])
