"""An open loop's figures: a wait before sending counts, and what never came is no latency."""

from __future__ import annotations

import numpy as np
import pytest

from bench import latency_measure
from bench.deployments import Deployment
from bench.latency_measure import Plan, figures, ladder, latencies
from bench.open_loop import Timed
from bench.open_loop_clients import Load

DEPLOYMENT = Deployment("bmq-3", "", 3, {})


def timed(count: int = 1000, *, records_s: int = 100, ack_s: float = 0.002, end_s: float = 0.004) -> Timed:
    due = np.arange(count) / records_s
    return Timed(due=due, acked=due + ack_s, received=[due + end_s, due + 2 * end_s], client_cpu_s=2.0)


def test_latencies_count_from_when_a_record_was_due() -> None:
    found = timed(4)
    found.acked[3] = np.nan
    assert found.ack_latencies_s == pytest.approx([0.002] * 3)
    assert found.end_latencies_s == pytest.approx([0.004] * 4 + [0.008] * 4)


def test_figures_are_of_both_latencies_in_microseconds() -> None:
    found = figures(timed(), 10.0)
    assert found["ack_p50_us"] == pytest.approx(2000)
    assert found["end_p99_us"] == pytest.approx(8000)
    assert found["client_cores"] == 0.2
    assert not found["is_saturated"]


def test_a_percentile_needs_ten_values_beyond_it() -> None:
    assert "ack_p99_us" in latencies(timed(1000))
    assert "ack_p99_us" not in latencies(timed(990))


def test_without_readers_there_is_no_latency_from_end_to_end() -> None:
    assert not Timed(due=np.zeros(1), acked=np.ones(1)).end_latencies_s.size


def test_a_load_has_its_rate_for_its_seconds() -> None:
    load = Load(bootstrap="", topic="", partitions=12, records_s=2000, seconds=0.5, record_bytes=1000)
    assert load.count == 1000


def test_a_ladder_ends_where_the_backlog_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def run(_: Deployment, __: str, records_s: int, ___: float) -> dict[str, float]:
        ran.append(records_s)
        return {"is_saturated": float(records_s >= 300)}

    monkeypatch.setattr(latency_measure, "_open_loop", run)
    monkeypatch.setattr(Deployment, "create_topic", lambda *_, **__: "t")
    monkeypatch.setattr(Deployment, "delete_topic", lambda *_: None)
    samples = list(ladder(DEPLOYMENT, Plan(steps=(100, 200, 300, 400)), 1))
    assert ran == [100, 100, 200, 300]
    assert [each.case for each in samples] == ["100", "200", "300", "ladder"]
    assert samples[-1].metrics == {"held_records_s": 200, "saturated_records_s": 300}
    samples = list(ladder(DEPLOYMENT, Plan(steps=(100, 200)), 1))
    assert samples[-1].metrics == {"held_records_s": 200}
