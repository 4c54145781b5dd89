"""The page of latencies: loads that were not held are said, and not compared; pictures are drawn again the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.latency_report import held_always, page, write
from bench.results import Results
from bench.stale import page_fault
from tests.unit.bench.test_against_report import section

FIXTURE = Path(__file__).with_name("latency.json")
THREE = "### BMQ, three processes over etcd and HDFS, beside Kafka, three nodes"


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def test_the_page_says_which_code_it_is_of_and_its_command(results: Results) -> None:
    text = page(results)
    assert page_fault(text, results) == ""
    assert "    python -m bench.latency\n" in text
    assert "until no deployment's rate of producing was more than 10% above its best before: after 4." in text


def test_the_saturating_load_has_its_spread(results: Results) -> None:
    part = section(page(results), "## Up to which load")
    assert "| Kafka, three nodes | 10,000 | 20,000 | 0.95 |" in part
    row = "| BMQ, three processes over etcd and HDFS | 10,000 (1,000 to 10,000) | 20,000 (10,000 to 20,000) | 0.95 |"
    assert row in part
    assert "in the load that it held: **1.00** (0.55 to 1.00) equal." in part


@pytest.mark.slow
def test_latencies_are_those_of_rounds_in_which_the_load_was_held(results: Results) -> None:
    part = section(page(results), "## Produce: from due to acknowledged")
    assert "| 1,000 | 1.2 | 2.4 | 8 (7 to 9) | 16 (14 to 18) | - | 3 of 3 |" in part
    assert "| 10,000 | 3.6 | 7.2 | 22.5 (21 to 24) | 45 (42 to 48) | 75 (70 to 80) | 2 of 3 |" in part
    assert "20,000 |" not in part


def test_a_load_that_was_not_held_in_every_round_is_not_compared(results: Results) -> None:
    part = section(page(results), "## Produce: from due to acknowledged")
    beside = section(part, THREE)
    assert "| 1,000 | **1.20** (1.20 to 1.20) WORSE |" in beside
    assert "10,000" not in beside
    assert "- WORSE:\n  - p50 at 1,000\n  - p95 at 1,000" in beside
    assert "| 10,000 | **0.80** (0.80 to 0.80) better |" in part
    assert {each.case for each in held_always(results).of_bench("ladder") if each.adapter == "bmq-3"} == {"1000"}


def test_a_flush_to_disk_is_compared_with_memory_and_with_kafka(results: Results) -> None:
    part = section(page(results), "## Acknowledged from memory, and from disk")
    assert "| on disk | `flush.messages=1` | `flush.mode=hsync` |" in part
    assert "| ack, p50 | 1.2 | 3.6 | **3.00** (3.00 to 3.00) WORSE |" in part
    assert "| ack, p50 | 1 | 5 | - |" in part  # Kafka did not hold it in one round
    assert "Rounds in which the backlog grew, or that failed: on disk in 1." in part
    assert "| ack, p50 | **1.20** (1.20 to 1.20) WORSE | - |" in part


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    results.samples = [each for each in results.samples if each.bench != "flush"]
    assert "from disk" not in page(results).partition("## What this page")[0]
    results.samples = []
    assert "## Up to which load" not in page(results)


def test_the_page_says_what_it_does_not_show_and_answers_objections(results: Results) -> None:
    results.failures.append("ladder on bmq-3: TimeoutError()")
    text = page(results)
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text
    assert "- ladder on bmq-3: TimeoutError()" in text


def test_a_warm_up_that_did_not_end_is_said(results: Results) -> None:
    results.plan["warm_up"]["is_warm"] = False
    assert "**Not warm**" in page(results)


def test_results_without_a_commit_are_refused(results: Results) -> None:
    results.commit = ""
    with pytest.raises(ValueError, match="Measure again"):
        page(results)


@pytest.mark.slow
def test_the_picture_is_drawn_and_drawn_again_the_same(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    picture = tmp_path / "benchmarks" / "latency-load.svg"
    first = picture.read_bytes()
    write(results, tmp_path)
    assert picture.read_bytes() == first
    assert f"(benchmarks/{picture.name})" in (tmp_path / "benchmarks-latency.md").read_text()
