"""The page of readers: bytes and hit rates beside rates, the effect of a catch-up, the fate of the page cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.reading_plot import in_order
from bench.reading_report import page, write
from bench.results import Results
from bench.stale import page_fault
from tests.unit.bench.test_against_report import section

FIXTURE = Path(__file__).with_name("reading.json")
THREE = "### BMQ, three processes over etcd and HDFS, beside Kafka, three nodes"


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_the_tail_has_latencies_hit_rates_and_processor_time(results: Results) -> None:
    part = section(section(page(results), "## The end of the log"), "### 50 groups")
    assert "| Kafka, three nodes | 1.5 | 7.5 | 15 | - | - | 10 | own 10 |" in part
    assert (
        "| 7.5 (6 to 9) | 15 (12 to 18) | 99% (99% to 99%) | 0.01 (0.01 to 0.01) | 12 | own 6, HDFS 5, etcd 1 |" in part
    )


def test_a_backlog_has_bytes_from_hdfs_and_from_disk(results: Results) -> None:
    part = section(page(results), "## A backlog")
    assert "2 GB, written once before the rounds; a process of BMQ caches 0.537 GB at most" in part
    assert "(1 group: all; 50 groups: one of the parts 6 to 10 in turn, of 10)" in part
    assert "at most 0.3% of the files' bytes were left in it" in part
    assert "| 300 | 1.02 (1.02 to 1.02) | 1.00 (1.00 to 1.00) | 0% (0% to 0%) | 1% (1% to 1%) | 12 |" in part
    assert "| MB/s | **0.50** (0.50 to 0.50) WORSE |" in section(part, THREE)


def test_a_page_cache_that_was_not_dropped_is_said(results: Results) -> None:
    for sample in results.samples:
        sample.metrics.pop("page_cache_share", None)
    assert "which was not done here" in page(results)


def test_the_effect_of_a_catch_up_is_a_ratio_to_none_in_the_same_round(results: Results) -> None:
    part = section(page(results), "## A catch-up beside producers and readers of the tail")
    kafka = section(part, "### Kafka, three nodes")
    assert "| produce, p99 | 8 | 16 | 24 | **2.00** (2.00 to 2.00) WORSE | **3.00** (3.00 to 3.00) WORSE |" in kafka
    assert "| MB/s of the catch-up | - | 50 | 600 |  |  |" in kafka
    beside = section(part, THREE)
    assert "| tail reader, p99 | **0.50** (0.50 to 0.50) better |" in beside
    assert "| MB/s of the catch-up | - | **1.00** (1.00 to 1.00) equal | **0.50** (0.50 to 0.50) WORSE |" in beside


def test_cases_are_in_one_order_whatever_the_rounds_was(results: Results) -> None:
    order = ["no catch-up", "catch-up at 50 MB/s", "catch-up as fast as it goes"]
    assert in_order(results) == order
    results.samples.reverse()
    assert in_order(results) == order


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    results.samples = [each for each in results.samples if each.bench == "tail"]
    text = page(results)
    assert "## A backlog" not in text
    assert "## A catch-up" not in text
    assert "## What would a Kafka engineer object to, and the answer" in text


@pytest.mark.slow
def test_the_picture_is_drawn_and_drawn_again_the_same(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    picture = tmp_path / "benchmarks" / "reading-effect.svg"
    first = picture.read_bytes()
    write(results, tmp_path)
    assert picture.read_bytes() == first
    assert f"(benchmarks/{picture.name})" in (tmp_path / "benchmarks-reading.md").read_text()
