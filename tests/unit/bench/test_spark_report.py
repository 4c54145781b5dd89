"""The Spark page, drawn from results as a run writes them: every part beside Kafka, good and bad said alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results
from bench.spark_plot import draw, rows
from bench.spark_report import PICTURE, page, write
from bench.stale import page_fault

FIXTURE = Path(__file__).with_name("spark.json")


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def section(text: str, title: str) -> str:
    """Return the part of a page below this heading, up to the next of its kind or a higher one."""
    after = text.partition(f"\n{title}\n")[2]
    assert after, f"no {title} in the page"
    lines = []
    for line in after.splitlines():
        if line.startswith("#") and len(line.split(" ")[0]) <= len(title.split(" ")[0]):
            break
        lines.append(line)
    return "\n".join(lines)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_a_ratio_is_of_the_rounds_that_both_have(results: Results) -> None:
    part = section(section(page(results), "## Batch reads of what was just written"), "### Count")
    # 2.0 and 3.0 in the two rounds that both have; the third has no counterpart
    row = (
        "| 1000 B, lz4 | BMQ's source, all columns | 200 | 500 | **2.50** | "
        "2.25 to 2.75; itself 0.92 to 1.12 | better |"
    )
    assert row in part
    row = "| 1000 B, lz4 | Kafka source, from BMQ | 200 | 180 | **0.90** | 0.90 to 0.90; itself 1.00 to 1.00 | WORSE |"
    assert row in part
    row = (
        "| 1000 B, lz4 | Kafka source, from one BMQ process | 200 | 200 | **1.00** | "
        "1.00 to 1.00; itself 1.00 to 1.00 | equal |"
    )
    assert row in part
    row = "| 1000 B, lz4 | Kafka source, from BMQ | 4 | 5.5 | **1.38** | 1.38 to 1.38; itself 1.00 to 1.00 | WORSE |"
    assert row in part


def test_processor_time_is_told_apart_and_servers_that_are_not_asked_are_left_out(results: Results) -> None:
    part = section(page(results), "## Batch reads of what was just written")
    assert "| | | Spark's JVM | Python | BMQ or Kafka | HDFS | etcd |".replace("| | |", "|  |  |") in part
    assert "| 1000 B, lz4 | Kafka source, from BMQ | 3 | 0 | 1 | 1 | 0.5 |" in part
    assert "| 1000 B, lz4 | BMQ's source, columns selected | 0.5 | 1 | - | 0.5 | - |" in part
    assert "used 1.0% to 3.0% of a core" in section(page(results), "## Load on the cluster")


def test_what_was_dropped_from_the_page_cache_is_told(results: Results) -> None:
    part = section(page(results), "## Batch reads of data that no cache holds")
    assert "The page cache held 0.4% of the files at most" in part
    assert "**Not warm**: the rounds that do not count ended at 8" in part
    row = (
        "| 1000 B, uncompressed | BMQ's source, all columns | 90 | 100 | **1.12** | "
        "1.06 to 1.19; itself 0.95 to 1.06 | better |"
    )
    assert row in part


def test_a_page_cache_that_could_not_be_dropped_is_told(results: Results) -> None:
    next(each for each in results.samples if each.bench.startswith("cold/")).metrics["resident_share"] = 0.97
    assert "**The page cache could not be dropped**: it held up to 97%" in page(results)


def test_a_cluster_says_how_many_workers_it_had(results: Results) -> None:
    assert "one master and 2 worker processes" in section(page(results), "## Batch reads on a Spark cluster")


def test_streaming_shows_latency_rate_and_backlog_by_trigger(results: Results) -> None:
    part = section(page(results), "## Streaming queries")
    assert "**that second is in every latency of" in part.replace("\n", " ")
    latency = section(part, "### Latency")
    row = (
        "| as fast as possible | BMQ's source, all columns | 300 | 1,500 | **5.00** | "
        "5.00 to 5.00; itself 1.00 to 1.00 |"
    )
    assert row in latency
    assert "| a trigger every 1 s | Kafka source, from BMQ | 1,000 | 1,100 | **1.10** |" in latency
    kept = section(part, "### The rate that it keeps up with")
    assert "| as fast as possible | BMQ's source, all columns | 60,000 (40,000 to 80,000) | 1 of 2 |" in kept
    drained = section(part, "### A backlog drained")
    row = (
        "| as fast as possible | BMQ's source, all columns | 250 | 500 | **2.00** | 2.00 to 2.00; itself 1.00 to 1.00 |"
    )
    assert row in drained


def test_sinks_and_jobs_stand_beside_kafkas(results: Results) -> None:
    sinks = section(page(results), "## Writing a DataFrame")
    row = (
        "| 1000 B, defaults | BMQ's sink, into BMQ | 90 | 100 | **1.12** | 1.06 to 1.19; itself 0.95 to 1.06 | better |"
    )
    assert row in sinks
    row = "| 1000 B, defaults | Kafka sink, into BMQ | 16 | 30 | **1.88** | 1.88 to 1.88; itself 1.00 to 1.00 | WORSE |"
    assert row in sinks
    jobs = section(page(results), "## A topic into a Parquet table")
    row = "| 1000 B, lz4 | `bmq job to_parquet` | 30 | 40 | **1.33** | 1.33 to 1.33; itself 1.00 to 1.00 | better |"
    assert row in jobs
    assert "| `bmq job to_parquet` | 6 |" in jobs


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    results.samples = [each for each in results.samples if each.bench.startswith("sink/")]
    text = page(results)
    assert "## Writing a DataFrame" in text
    for title in ("## Batch", "## Streaming", "## A topic into", "## The decoder", "## Before the first", "## Load on"):
        assert title not in text


def test_objections_notes_and_failures_are_on_the_page(results: Results) -> None:
    results.failures.append("round 1, count, storage: ValueError: a wrong result")
    text = page(results)
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text
    assert "- round 1, count, storage: ValueError: a wrong result" in text
    assert "each round: 0.5, 1.5." in text


def test_results_of_an_earlier_form_are_refused(results: Results) -> None:
    results.commit = ""
    with pytest.raises(ValueError, match="measure again"):
        page(results)


@pytest.mark.slow
def test_the_picture_is_of_every_case_and_the_same_each_time(results: Results, tmp_path: Path) -> None:
    assert len(rows(results)) == 8
    (tmp_path / "benchmarks").mkdir()
    write(results, tmp_path)
    picture = tmp_path / "benchmarks" / f"{PICTURE}.svg"
    assert f"benchmarks/{PICTURE}.svg" in (tmp_path / "benchmarks-spark.md").read_text()
    first = picture.read_text()
    draw(results, tmp_path / "benchmarks", PICTURE)
    assert picture.read_text() == first
    assert "BMQ's sink, into BMQ" in first
