"""Sums over series of /metrics."""

from __future__ import annotations

from bench.metrics import sum_of

TEXT = """\
# HELP bmq_flushes_total Flushes
bmq_flushes_total{topic="a"} 2
bmq_flushes_total{topic="b"} 3.5
bmq_flushes_total_other 100
"""


def test_series_that_begin_so_are_added() -> None:
    assert sum_of(TEXT, "bmq_flushes_total{") == 5.5
    assert sum_of(TEXT, 'bmq_flushes_total{topic="a"') == 2


def test_a_counter_that_is_not_there_is_0() -> None:
    assert sum_of(TEXT, "bmq_none{") == 0
