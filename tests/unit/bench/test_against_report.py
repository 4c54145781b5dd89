"""The page beside Kafka, drawn from results as a run writes them: ratios of rounds, verdicts, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.against_report import page
from bench.results import Results
from bench.stale import page_fault

FIXTURE = Path(__file__).with_name("against.json")


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def section(text: str, title: str) -> str:
    """Return the part of a page below this heading, up to the next of its kind or a higher one."""
    level = title.split(" ")[0]
    after = text.partition(f"{title}\n")[2]
    assert after, f"no {title} in the page"
    lines = []
    for line in after.splitlines():
        if line.startswith("#") and len(line.split(" ")[0]) <= len(level):
            break
        lines.append(line)
    return "\n".join(lines)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_a_ratio_is_of_the_rounds_that_both_have(results: Results) -> None:
    part = section(page(results), "### BMQ, three processes over etcd and HDFS, beside Kafka, three nodes")
    # 1.5 and 1.0 in the two rounds that both have; Kafka's third has no counterpart
    assert "| 1000 B | 75,000 | 90,000 | **1.25** | 1.12 to 1.38; itself 0.92 to 1.12 | better |" in part
    row = (
        "| 1000 B | 16 | 12 | **0.75** | "
        "0.75 to 0.75; itself 1.00 to 1.00 | better | BMQ's processes 6, HDFS 5, etcd 1 |"
    )
    assert row in part
    assert "| p50 | 400 | 500 | **1.25** | 1.25 to 1.25; itself 1.00 to 1.00 | WORSE |" in part
    assert "| p99 | 5,500 | 6,875 | **1.25** | 0.88 to 1.62; itself 0.81 to 1.75 | equal |" in part


def test_each_deployment_of_bmq_stands_beside_kafka(results: Results) -> None:
    part = section(page(results), "### BMQ, one process over HDFS, beside Kafka, three nodes")
    assert "| 1000 B | 50,000 | 60,000 | **1.20** | 1.20 to 1.20; itself 1.00 to 1.00 | better |" in part


def test_a_rate_that_a_side_did_not_hold_gives_no_ratio_of_latencies(results: Results) -> None:
    assert "**No comparison**" not in page(results)
    for sample in results.of_bench("latency"):
        if sample.adapter == "kafka-3":
            sample.metrics["p50_us"] = 900_000.0
    part = section(page(results), "### BMQ, three processes over etcd and HDFS, beside Kafka, three nodes")
    assert "| p50 | 900,000 | 500 | - | - |  |" in part
    assert "**No comparison**: Kafka, three nodes did not hold this rate" in part


def test_a_site_that_is_not_warm_says_so(results: Results) -> None:
    assert "**Not warm**: the rounds that do not count ended at 8" in page(results)
    results.plan["warm_up"]["replicas"]["is_warm"] = True
    assert "Warm after 8 rounds" in page(results)


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    text = page(results)
    assert "## One node on a local disk" not in text
    assert "Resident memory" not in text


def test_the_restart_says_what_its_clock_is_exact_to(results: Results) -> None:
    text = page(results)
    assert "tries every 10 ms" in text
    assert "| 1 GB | 1.52 (1.51 to 1.53) |" in text


def test_settings_servers_clients_and_load_are_those_of_the_run(results: Results) -> None:
    text = page(results)
    assert "| bmq | `BMQ_LOG_LEVEL=WARNING` |" in text
    assert "| Servers | kafka-3: 1 kafka (heap 1024 MB); bmq-3: 1 bmq |" in text
    assert "    ProducerPerformance --topic TOPIC" in text
    assert "each round: 0.5, 1.5." in text


def test_the_page_says_what_it_does_not_show_and_answers_objections(results: Results) -> None:
    text = page(results)
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text


def test_failures_are_on_the_page(results: Results) -> None:
    results.failures.append("latency on bmq-3: TimeoutError()")
    assert "- latency on bmq-3: TimeoutError()" in page(results)


def test_results_of_an_earlier_form_are_refused(results: Results) -> None:
    results.commit = ""
    with pytest.raises(ValueError, match="measure again"):
        page(results)
