"""Numbers of quotas in /metrics: counted for all, shown by name for some."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.console.state import OwnMetric, OwnSeries
from bmq.core.net.request import Response
from bmq.meta.security.client_quotas import CLIENT_ID, USER, Holder
from bmq.proxy.quotas.request_quotas import KINDS
from bmq.server.queries.quota_metrics import SERIES_MAX, quota_metrics
from tests.unit.proxy.quotas.quotas_world import QuotasWorld

PRODUCE = 0


def read(w: QuotasWorld) -> tuple[dict[str, float], dict[str, dict[Any, float]]]:
    """Return the counters by name and quota, and the series by name and labels."""
    numbers = list(quota_metrics(w.quotas, w.now))
    counters = {f"{each.name}/{each.label_value}": each.value for each in numbers if isinstance(each, OwnMetric)}
    return counters, {each.name: dict(each.samples) for each in numbers if isinstance(each, OwnSeries)}


def produce(w: QuotasWorld, size: int, client_id: str = "app") -> None:
    w.quotas.serve(w.request(PRODUCE, client_id=client_id), size, lambda: Response(()))


def test_counters_are_there_before_anybody_has_a_quota() -> None:
    counters, series = read(QuotasWorld())
    assert counters == {
        f"{name}/{kind}": 0 for name in ("quota_throttled", "quota_throttled_seconds") for kind in KINDS
    }
    assert series == {}


def test_a_client_that_is_held_up_is_counted_and_named() -> None:
    w = QuotasWorld()
    w.view.put("producer_byte_rate", ((USER, "alice"),), 1_000.0)
    produce(w, 400)
    assert read(w)[0]["quota_throttled/producer_byte_rate"] == 0
    produce(w, 2_100)
    counters, series = read(w)
    assert counters["quota_throttled/producer_byte_rate"] == 1
    assert counters["quota_throttled_seconds/producer_byte_rate"] == pytest.approx(2.0)
    assert counters["quota_throttled/consumer_byte_rate"] == 0
    alice = Holder("alice", "")
    assert series == {
        "kafka_server_produce_byte_rate": {alice: 250.0},
        "kafka_server_produce_throttle_time": {alice: pytest.approx(2_000.0)},
    }


def test_series_are_bounded_and_counters_count_all() -> None:
    w = QuotasWorld()
    w.view.put("producer_byte_rate", ((CLIENT_ID, None),), 1.0)
    for number in range(SERIES_MAX + 50):
        w.now += 0.001
        produce(w, 100, f"app-{number}")
    counters, series = read(w)
    assert counters["quota_throttled/producer_byte_rate"] == SERIES_MAX + 50
    shown = series["kafka_server_produce_byte_rate"]
    assert set(shown) == {Holder("", f"app-{number}") for number in range(50, SERIES_MAX + 50)}
