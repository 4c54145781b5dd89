"""Verdicts about two sides: what lies within the spread is equal."""

import pytest

from bench.comparison import compare, compare_all, compare_rounds, quartiles
from bench.results import Results, Sample


@pytest.mark.parametrize(
    ("metric", "ratios", "verdict"),
    [
        ("produce_mb_s", (0.9, 1.0, 1.1, 1.2), "equal"),
        ("produce_mb_s", (1.1, 1.2, 1.3, 1.4), "better"),
        ("produce_mb_s", (0.6, 0.7, 0.8, 0.9), "WORSE"),
        ("records_s", (1.1, 1.2, 1.3, 1.4), "better"),
        ("produce_cpu_s_gb", (1.1, 1.2, 1.3, 1.4), "WORSE"),
        ("paced_cpu_us_record", (0.6, 0.7, 0.8, 0.9), "better"),
        ("paced_p99_us", (1.1, 1.2, 1.3, 1.4), "WORSE"),
        ("paced_p99_ms", (0.5, 0.9, 1.1, 9.0), "equal"),
        ("seconds", (0.5, 0.6, 0.7, 0.8), "better"),
    ],
)
def test_a_ratio_counts_only_beyond_the_quartiles_of_the_pairs(
    metric: str, ratios: tuple[float, ...], verdict: str
) -> None:
    assert compare(metric, [(10.0, 10.0 * ratio) for ratio in ratios]).verdict == verdict


def test_the_ratio_is_the_median_of_the_pairs_and_not_that_of_the_medians() -> None:
    found = compare("produce_mb_s", [(10.0, 11.0), (100.0, 110.0), (20.0, 10.0)])
    assert (found.before, found.after) == (20.0, 11.0)
    assert found.ratio == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ((10.0, 10.1, 10.0, 10.1), (11.0, 11.1, 11.0, 11.1), "better"),
        ((10.0, 14.0, 10.0, 14.0), (11.0, 15.4, 11.0, 15.4), "equal"),
        ((10.0, 14.0, 10.0, 14.0), (20.0, 28.0, 20.0, 28.0), "better"),
    ],
)
def test_a_ratio_counts_only_beyond_what_a_side_differs_from_itself(
    before: tuple[float, ...], after: tuple[float, ...], verdict: str
) -> None:
    found = compare("records_s", list(zip(before, after, strict=True)))
    assert found.verdict == verdict
    assert found.own_low == pytest.approx(1 / found.own_high)  # no round comes first by right


def test_one_pair_has_a_ratio_and_no_spread() -> None:
    found = compare("records_s", [(10.0, 12.0)])
    assert (found.ratio, found.low, found.high) == (1.2, 1.2, 1.2)
    assert (found.own_low, found.own_high) == (1.0, 1.0)
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)


def test_a_metric_that_a_side_lacks_in_one_round_is_left_out() -> None:
    pairs = [({"a": 1.0, "b": 2.0, "zero": 0.0}, {"a": 2.0, "b": 2.0, "zero": 1.0}), ({"a": 1.0}, {"a": 2.0, "b": 2.0})]
    assert [found.metric for found in compare_all(pairs)] == ["a"]


def results(rates: dict[tuple[str, str], list[float]]) -> Results:
    """Return results with so many rounds of each adapter and case."""
    samples = [
        Sample(adapter=adapter, bench="produce", case=case, round=number, metrics={"records_s": rate})
        for (adapter, case), series in rates.items()
        for number, rate in enumerate(series)
    ]
    return Results(command="", machine={}, plan={}, started="", samples=samples)


def test_two_deployments_or_two_cases_are_compared_over_the_rounds_that_both_have() -> None:
    found = results({("kafka", "a"): [10.0, 20.0, 90.0], ("bmq", "a"): [20.0, 20.0], ("bmq", "b"): [10.0]})
    beside = compare_rounds(found, "produce", "records_s", before=("kafka", "a"), after=("bmq", "a"))
    assert beside is not None
    assert (beside.ratio, beside.before, beside.after) == (1.5, 15.0, 20.0)
    cases = compare_rounds(found, "produce", "records_s", before=("bmq", "a"), after=("bmq", "b"))
    assert cases is not None
    assert cases.ratio == 0.5
    assert compare_rounds(found, "produce", "seconds", before=("kafka", "a"), after=("bmq", "a")) is None
    assert compare_rounds(found, "consume", "records_s", before=("kafka", "a"), after=("bmq", "a")) is None
