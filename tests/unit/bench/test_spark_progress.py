"""The progress of a streaming query becomes micro-batches, and these the time that each record waited."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bench.spark_progress import Commit, commits_of, drain_rate, growth, keeps_up, latencies, taken
from bench.steady_load import SteadyLoad

BEGUN_S = 1_767_225_600.0  # 2026-01-01


def progress(rows: int, ends: dict[str, int] | None, *, second: int = 0, took_ms: int = 500) -> dict[str, Any]:
    return {
        "timestamp": f"2026-01-01T00:00:{second:02}.250Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": took_ms},
        "sources": [{"endOffset": json.dumps(ends and {"topic": ends})}],
    }


def test_a_micro_batch_is_committed_when_its_trigger_ends() -> None:
    found = commits_of([progress(3, {"0": 2, "1": 1}), progress(0, {"0": 2, "1": 1}, second=5)], "topic")
    assert found == [Commit(BEGUN_S + 0.75, 3, {0: 2, 1: 1})]


@pytest.mark.parametrize(
    ("last", "count"), [(None, 0), (progress(0, None), 0), (progress(1, {"0": 5, "1": 2}), 7), (progress(0, {}), 0)]
)
def test_offsets_tell_how_many_records_were_taken(last: dict[str, Any] | None, count: int) -> None:
    assert taken(last, "topic") == count


def test_offsets_may_come_as_an_object() -> None:
    found = progress(1, None) | {"sources": [{"endOffset": {"topic": {"0": 4}}}]}
    assert taken(found, "topic") == 4


def load(count: int, *, records_s: int = 10, partitions: int = 2) -> SteadyLoad:
    return SteadyLoad(BEGUN_S, records_s, count, partitions, 0.0)


def test_a_record_waits_from_when_it_was_due_to_the_commit_of_its_batch() -> None:
    # Partition 0 has records 0, 2 and 4 at offsets 1, 2 and 3; partition 1 has 1 and 3 at 1 and 2.
    commits = [
        Commit(BEGUN_S - 1, 2, {0: 1, 1: 1}),
        Commit(BEGUN_S + 1, 2, {0: 3, 1: 1}),
        Commit(BEGUN_S + 2, 3, {0: 4, 1: 3}),
    ]
    assert latencies(commits, load(5), 1) == pytest.approx([1.0, 1.9, 0.8, 1.7, 1.6])


def test_a_record_that_no_batch_took_is_an_error() -> None:
    with pytest.raises(ValueError, match="partition 1: offset 1 is in no micro-batch"):
        latencies([Commit(BEGUN_S, 2, {0: 3, 1: 1})], load(4), 0)


@pytest.mark.parametrize(("slope", "kept"), [(0.0, True), (0.05, True), (0.3, False), (-0.2, True)])
def test_a_query_keeps_up_if_records_do_not_wait_longer_and_longer(slope: float, kept: bool) -> None:
    given = load(900, records_s=90)
    waited = 1.0 + slope * np.arange(900) / 90
    assert growth(waited, 10.0) == pytest.approx(slope)
    assert keeps_up(waited, given) == kept


def test_the_rate_of_a_drain_leaves_out_the_first_batch() -> None:
    commits = [Commit(10.0, 1000, {}), Commit(11.0, 300, {}), Commit(12.0, 500, {})]
    assert drain_rate(commits) == 400.0
    with pytest.raises(ValueError, match="too few"):
        drain_rate(commits[:1])
