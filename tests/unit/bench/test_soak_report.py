"""The page of a soak, drawn from samples: what rises is told, what was restarted has no verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results, Sample
from bench.soak_report import BENCH, RESTART, page, series, verdict, write
from bench.stale import page_fault

DAY_S = 86_400.0


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Return forty samples, a minute apart: node 0 gets larger, the NameNode does not."""
    samples = []
    for number in range(40):
        at_s = 60.0 * number
        metrics = {
            "at_s": at_s,
            "bmq_0_mb": 100 + 240 * at_s / DAY_S,
            "bmq_1_mb": 100.0 + number % 10,
            "namenode_mb": 300.0 + number % 3,
            "p99_us": 900.0,
        }
        samples.append(Sample(adapter="bmq-3", bench=BENCH, case="", round=number, metrics=metrics))
    for at_s, took_s in ((600.0, 2.0), (1200.0, 4.0)):
        case = "kill -9 and start of node 1"
        metrics = {"at_s": at_s, "took_s": took_s}
        samples.append(Sample(adapter="bmq-3", bench=RESTART, case=case, round=1, metrics=metrics))
    plan = {
        "records_s": 1000, "partitions": 6, "retention_s": 600.0, "segment_s": 120.0, "topics_every_s": 30.0,
        "groups_every_s": 20.0, "restart_every_s": 900.0, "sample_s": 60.0, "settings": {"BMQ_LOG_LEVEL": "WARNING"},
        "acknowledged": 2_400_000, "consumed": 2_400_100, "topics": 70, "groups": 90,
    }  # fmt: skip
    path = tmp_path / "soak.json"
    Results(
        command="python -m bench.soak", machine={"CPU": "two"}, plan=plan, started="2026-11-23", commit="0123456789ab",
        took_s=2400.0, load=[0.5, 1.5], samples=samples,
    ).save(path)  # fmt: skip
    return Results.load_from(path)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_a_figure_that_rises_says_by_how_much_a_day(results: Results) -> None:
    assert "| Memory, MB: node 0, never restarted | 100 | 106 | 100 | 106 | **rises by 240 a day** |" in page(results)


def test_a_steady_figure_says_what_would_not_be_seen(results: Results) -> None:
    (row,) = [line for line in page(results).splitlines() if line.startswith("| Memory, MB: NameNode ")]
    assert "| steady | " in row
    assert not row.endswith("| - |")


def test_a_restarted_process_has_no_verdict(results: Results) -> None:
    (row,) = [line for line in page(results).splitlines() if line.startswith("| Memory, MB: node 1 ")]
    assert row.endswith("| restarted | - |")


def test_what_was_not_sampled_has_no_row(results: Results) -> None:
    assert "| etcd, keys" not in page(results)


def test_samples_without_a_figure_are_left_out(results: Results) -> None:
    del results.samples[0].metrics["p99_us"]
    times, values = series(results, "bmq-3", "p99_us")
    assert times[0] == 60
    assert len(values) == 39


def test_few_samples_have_no_verdict() -> None:
    assert verdict([0.0, 1.0], [1.0, 2.0]) == ("too few samples", "-")


def test_restarts_are_told_with_their_times(results: Results) -> None:
    assert "| kill -9 and start of node 1 | 2 | 3 | 4 |" in page(results)


def test_failures_and_objections_are_on_the_page(results: Results) -> None:
    results.failures.append("topics at 30 s: KafkaException()")
    text = page(results)
    assert "- topics at 30 s: KafkaException()" in text
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text


@pytest.mark.slow
def test_the_picture_is_drawn_also_without_samples(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    assert "never restarted" in (tmp_path / "benchmarks" / "soak.svg").read_text()
    results.samples = []
    write(results, tmp_path)
