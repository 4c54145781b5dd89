"""Verdicts about two builds: what lies within the spread is equal."""

from pathlib import Path

import pytest

from bench.pairs import compare, main


def _pairs(metric: str, *ratios: float) -> list[dict[str, dict[str, float]]]:
    return [{"before": {metric: 10.0}, "after": {metric: 10.0 * ratio}} for ratio in ratios]


@pytest.mark.parametrize(
    ("metric", "ratios", "verdict"),
    [
        ("produce_mb_s", (0.9, 1.0, 1.1, 1.2), "equal"),
        ("produce_mb_s", (1.1, 1.2, 1.3, 1.4), "better"),
        ("produce_mb_s", (0.6, 0.7, 0.8, 0.9), "WORSE"),
        ("produce_cpu_s_gb", (1.1, 1.2, 1.3, 1.4), "WORSE"),
        ("paced_cpu_us_record", (0.6, 0.7, 0.8, 0.9), "better"),
        ("paced_p99_ms", (1.1, 1.2, 1.3, 1.4), "WORSE"),
        ("paced_p99_ms", (0.5, 0.9, 1.1, 9.0), "equal"),
    ],
)
def test_a_ratio_counts_only_beyond_the_quartiles_of_the_pairs(
    metric: str, ratios: tuple[float, ...], verdict: str
) -> None:
    (comparison,) = compare(_pairs(metric, *ratios))
    assert comparison.verdict == verdict


def test_the_ratio_is_the_median_of_the_pairs_and_not_that_of_the_medians() -> None:
    pairs = [
        {"before": {"produce_mb_s": 10.0}, "after": {"produce_mb_s": 11.0}},
        {"before": {"produce_mb_s": 100.0}, "after": {"produce_mb_s": 110.0}},
        {"before": {"produce_mb_s": 20.0}, "after": {"produce_mb_s": 10.0}},
    ]
    (comparison,) = compare(pairs)
    assert (comparison.before, comparison.after) == (20.0, 11.0)
    assert comparison.ratio == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pairs", "1"), "--pairs is less than 2"),
        (("--sites", "moon"), "unknown site moon; there are local, cluster"),
        ((), "run make setup there"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), str(tmp_path), *arguments])
    assert message in capsys.readouterr().err
