"""The page of limits, drawn from results as a run writes them: shares, the floor, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.limits_report import floor, page, write
from bench.results import Results
from bench.stale import page_fault
from tests.unit.bench.limits_results import limits_results


@pytest.fixture
def results(tmp_path: Path) -> Results:
    path = tmp_path / "limits.json"
    limits_results().save(path)
    return Results.load_from(path)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_bmqs_share_is_that_of_each_round(results: Results) -> None:
    after = page(results).partition("## BMQ beside our HDFS client, without a broker")[2]
    row = "| bmq-3, ready-made requests | MB/s | 200 | 150 | **0.75** | 0.56 to 0.75; itself 0.88 to 1.25 | WORSE |"
    assert row in after
    row = (
        "| bmq-3, ready-made requests | CPU s/GB, all | 5 | 10 | **2.00** | 2.00 to 2.00; itself 1.00 to 1.00 | WORSE |"
    )
    assert row in after


def test_the_share_of_a_yardstick_that_was_not_measured_has_no_section(results: Results) -> None:
    assert "`hflush` at the end only" not in page(results)


def test_the_floor_counts_connections_and_files() -> None:
    assert floor(0.5, 1.0, hops=4, copies=3) == 5.0


def test_the_page_compares_all_processor_seconds_with_the_floor(results: Results) -> None:
    text = page(results)
    assert "| bare | 3 | 4.5 | 5 | 1.1 |" in text
    assert "| bmq-3, ready-made requests | 4 | 5 | 10 | 2.0 |" in text


def test_without_loopback_there_is_no_floor(results: Results) -> None:
    results.samples = [sample for sample in results.samples if sample.adapter != "loopback"]
    assert "times the floor" not in page(results)


def test_the_table_tells_the_groups_of_processes_apart(results: Results) -> None:
    text = page(results)
    assert "| bmq-3, ready-made requests | 150 (75 to 150) | 4 | 1 | 0 | 5 | 10 | 256 KB |" in text
    assert "| a loopback connection between two processes | 2,000 | 0.5 | - | - | - | 0.5 | - |" in text


def test_a_run_that_was_not_warm_says_so(results: Results) -> None:
    assert "**Not warm**: the rounds that do not count ended at 8" in page(results)
    results.plan["warm_up"]["is_warm"] = True
    assert "Warm after 8 rounds" in page(results)


def test_the_page_says_what_it_does_not_show_and_answers_objections(results: Results) -> None:
    assert "## What this page does not show" in page(results)
    assert "## What would a Kafka engineer object to, and the answer" in page(results)


@pytest.mark.slow
def test_the_picture_is_drawn(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    assert (tmp_path / "benchmarks-limits.md").read_text() == page(results)
    assert "datanodes" in (tmp_path / "benchmarks" / "limits.svg").read_text()


def test_failures_are_on_the_page(results: Results) -> None:
    results.failures.append("put: OSError()")
    assert "- put: OSError()" in page(results)
