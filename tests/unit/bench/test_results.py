"""Percentiles: in their unit, and only where enough values lie beyond.  Earlier results: of the same plan."""

from pathlib import Path

import pytest

from bench.results import Results, latency_metrics


@pytest.mark.parametrize(("unit", "middle"), [("ms", 500.5), ("us", 500_500.0)])
def test_percentiles_are_in_the_unit_that_is_asked_for(unit: str, middle: float) -> None:
    found = latency_metrics([number / 1000 for number in range(1, 1001)], unit)
    assert found[f"p50_{unit}"] == pytest.approx(middle)
    assert found["n"] == 1000


@pytest.mark.parametrize(
    ("count", "known"), [(1, []), (2, ["p50"]), (20, ["p50", "p90", "p95"]), (999, ["p50", "p90", "p95", "p99"])]
)
def test_a_percentile_needs_a_value_beyond_it(count: int, known: list[str]) -> None:
    found = latency_metrics([1.0] * count, "us")
    assert [name.removesuffix("_us") for name in found if name not in ("n", "max_us")] == known


def test_a_percentile_may_need_more_values_beyond_it() -> None:
    found = latency_metrics([1.0] * 100_000, "us", beyond=10)
    assert "p99.99_us" in found
    assert "p99.99_us" not in latency_metrics([1.0] * 99_000, "us", beyond=10)


def test_no_latencies_have_no_percentiles() -> None:
    assert latency_metrics([]) == {}


def test_an_earlier_plan_is_compared_as_it_was_stored(tmp_path: Path) -> None:
    now = Results(command="", machine={}, plan={"sizes": (1, 2), "payloads": {}}, started="")
    now.save(tmp_path / "results.json")
    earlier = Results.load_from(tmp_path / "results.json")
    now.require_same_plan(earlier)
    now.plan["payloads"] = {"1": {}}
    now.require_same_plan(earlier, besides=("payloads",))
    with pytest.raises(ValueError, match="another payloads"):
        now.require_same_plan(earlier)
