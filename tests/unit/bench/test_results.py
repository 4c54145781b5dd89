"""Percentiles: in their unit, and only where enough values lie beyond.  Earlier results: of the same plan."""

from pathlib import Path

import pytest

from bench.results import Results, Sample, latency_metrics, saver


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


def result(*rounds: int, commit: str = "0123") -> Results:
    samples = [Sample(adapter="a", bench="b", case="", round=number, metrics={"x": 1.0}) for number in rounds]
    return Results(command="run", machine={}, plan={}, started="", commit=commit, took_s=60.0, samples=samples)


def test_each_step_is_saved_with_what_was_measured_earlier(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    now = result()
    save = saver(now, path, result(1, 2), lambda sample: sample.round)
    now.samples += result(2).samples
    save()
    now.samples += result(3).samples
    save()
    found = Results.load_from(path)
    assert [sample.round for sample in found.samples] == [1, 2, 3]
    assert found.took_s >= 60.0  # the minutes of both runs
    assert (found.command, now.command) == ("run\n    run", "run")  # what is saved twice is added once


def test_earlier_figures_of_other_code_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not of commit 0123"):
        saver(result(), tmp_path / "results.json", result(1, commit="4567"))
    assert not (tmp_path / "results.json").exists()
