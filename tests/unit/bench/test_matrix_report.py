"""The page of the matrix, drawn from results as a run writes them: tables of each axis, and what is behind first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.matrix_report import page, write
from bench.results import Results
from bench.stale import page_fault
from tests.unit.bench.test_against_report import section

FIXTURE = Path(__file__).with_name("matrix.json")


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_each_case_has_a_row_for_each_deployment_of_bmq(results: Results) -> None:
    part = section(section(page(results), "## Record size"), "### Producing")
    # 1.5 and 1.0 in the two rounds that both have; Kafka's third has no counterpart
    row = (
        "| 1 KB | three processes | 60,000 (60 MB/s) | 90,000 (90 MB/s) | **1.25** | "
        "1.12 to 1.38; itself 0.92 to 1.12 | better |"
    )
    assert row in part
    row = (
        "| 1 KB | one process | 60,000 (60 MB/s) | 30,000 (30 MB/s) | **0.50** | "
        "0.50 to 0.50; itself 0.64 to 1.57 | WORSE |"
    )
    assert row in part
    row = (
        "| 100 B | three processes | 20 | 25 | **1.25** | 1.25 to 1.25; itself 1.00 to 1.00 | WORSE "
        "| BMQ's processes 12.5, HDFS 12.5 | 3 / 3 |"
    )
    assert row in part


def test_what_is_behind_comes_first_and_the_widest_one_at_its_top(results: Results) -> None:
    part = section(page(results), "### Where BMQ is behind")
    rows = [row.split(" | ") for row in part.splitlines() if row.startswith("| ")][2:]
    assert [(row[0].removeprefix("| "), row[1], row[2]) for row in rows] == [
        ("sizes: 1 KB", "three processes", "consuming, processor seconds a GB"),
        ("partitions: 1,000 partitions", "three processes", "producing, records a second"),
        ("sizes: 1 KB", "one process", "producing, records a second"),
        ("sizes: 1 KB", "three processes", "consuming, records a second"),
        ("partitions: 1,000 partitions", "three processes", "producing, processor seconds a GB"),
        ("sizes: 100 B", "three processes", "producing, processor seconds a GB"),
    ]


def test_verdicts_are_counted(results: Results) -> None:
    part = section(page(results), "## In short")
    assert "| BMQ, three processes over etcd and HDFS | records a second | 1 | 1 | 2 |" in part
    assert "| BMQ, one process over HDFS | processor seconds a GB | 1 | 2 | 0 |" in part


def test_without_a_loss_the_page_says_so(results: Results) -> None:
    case = "sizes: 1 KB"
    results.samples = results.of("produce", "kafka-3", case) + results.of("produce", "bmq-3", case)
    assert "In no case beyond the quartiles." in section(page(results), "### Where BMQ is behind")


def test_the_first_record_of_many_partitions_has_its_time(results: Results) -> None:
    part = section(page(results), "### The first record")
    assert "| 1,000 partitions | 1 (0.5 to 1.5) | 4 (2 to 6) | - |" in part


def test_an_axis_that_is_not_warm_says_so(results: Results) -> None:
    assert "Warm after 3 rounds" in section(page(results), "## Record size")
    assert "**Not warm**" in section(page(results), "## Active partitions")


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    text = page(results)
    assert "## Codecs" not in text
    assert "## Corners" not in text


def test_the_records_settings_and_cores_are_those_of_the_run(results: Results) -> None:
    text = page(results)
    assert "| 100 B | 10,000 | 37% | 23% | cdcdcdcdcdcd |" in text
    assert "Cores: clients and servers share all 2 cores: fewer than 4." in text
    assert "| bmq | `BMQ_LOG_LEVEL=WARNING` |" in text


def test_failures_limits_and_objections_are_on_the_page(results: Results) -> None:
    text = page(results)
    assert "- partitions: 1,000 partitions on bmq-hdfs: TimeoutError()" in text
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text


@pytest.mark.slow
def test_the_picture_is_one_column_and_the_same_each_time(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    picture = tmp_path / "benchmarks" / "matrix.svg"
    drawn = picture.read_bytes()
    found = re.search(rb'<svg [^>]*width="([\d.]+)pt"', drawn)
    assert found is not None
    assert float(found[1]) < 400
    write(results, tmp_path)
    assert picture.read_bytes() == drawn
    assert "](benchmarks/matrix.svg)" in (tmp_path / "benchmarks-matrix.md").read_text()


def test_a_run_without_kafka_has_neither_tables_nor_picture(results: Results, tmp_path: Path) -> None:
    results.plan["deployments"] = ["bmq-3"]
    write(results, tmp_path)
    text = (tmp_path / "benchmarks-matrix.md").read_text()
    assert "### Producing" not in text
    assert "matrix.svg" not in text
