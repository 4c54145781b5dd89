"""The page of scaling, drawn from results as a run writes them: processes, the planner, controllers and their store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.results import Results
from bench.scaling_report import page, write
from bench.stale import page_fault
from tests.unit.bench.test_against_report import section

FIXTURE = Path(__file__).with_name("scaling.json")


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_rates_and_costs_stand_beside_those_of_one_process(results: Results) -> None:
    part = section(page(results), "### Producing")
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    assert "| 1 process | 90,000 (80,000 to 100,000) | 0.9 | 0.9 |  |  |  |" in lines
    # 1.5 and 1.0 in the two rounds
    row = (
        "| 2 processes | 110,000 (100,000 to 120,000) | 0.6 | 1.1 | **1.25** | "
        "1.12 to 1.38; itself 0.82 to 1.21 | better |"
    )
    assert row in lines
    row = (
        "| 2 processes | 12 | **1.50** | "
        "1.50 to 1.50; itself 1.00 to 1.00 | WORSE | BMQ's processes 6, HDFS 3, etcd 3 |"
    )
    assert row in lines
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert names[2:5] == ["1 process", "2 processes", "--workers 2"]


def test_the_page_says_that_few_cores_bound_the_rates(results: Results) -> None:
    part = section(page(results), "## Processes")
    assert "have 2 cores here, and clients share them." in part.replace("\n", " ")
    assert "rate cannot rise with them**" in part.replace("\n", " ")


def test_plans_have_their_time_their_longest_step_and_their_memory(results: Results) -> None:
    part = section(page(results), "## The planner")
    assert "| 1,000 brokers, 1,000 topics of 1,000 | 7 (6 to 9) | 8 | 0.02 | 3 | 0.002 | 40 |" in part
    assert "| 10 brokers, 100 topics of 1,000 | 0.5 | 4 | 0.05 | 3 | 20 µ | 45 |" in part
    assert "10 brokers, 100 topics of 1,000: 100,000, after the loss 10,000" in part


def test_controllers_have_each_step_and_what_they_store(results: Results) -> None:
    part = section(page(results), "## The controllers and their store")
    assert "| 5 brokers, 1,000 topics of 1,000 | 10 | 8 | 0 | 301 |" in part
    assert "| 5 brokers, 1,000 topics of 1,000 | 20 | 16 | 25 | 302 |" in part
    assert "| 5 brokers, 1,000 topics of 1,000 | 2,010 | 7,654,320 |" in part


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    results.samples = [sample for sample in results.samples if sample.bench == "control"]
    text = page(results)
    assert "## Processes" not in text
    assert "## The planner" not in text


def test_failures_limits_and_objections_are_on_the_page(results: Results) -> None:
    text = page(results)
    assert "- processes on 4 processes: TimeoutError()" in text
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text


@pytest.mark.slow
def test_the_picture_is_one_column_and_left_out_without_samples(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    drawn = (tmp_path / "benchmarks" / "scaling.svg").read_bytes()
    found = re.search(rb'<svg [^>]*width="([\d.]+)pt"', drawn)
    assert found is not None
    assert float(found[1]) < 400
    write(results, tmp_path)
    assert (tmp_path / "benchmarks" / "scaling.svg").read_bytes() == drawn
    results.samples = []
    write(results, tmp_path)
    assert "scaling.svg" not in (tmp_path / "benchmarks-scaling.md").read_text()
