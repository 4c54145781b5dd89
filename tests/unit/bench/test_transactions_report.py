"""The page of transactions: aims, ratios to Kafka's, cases beside each other, and the cost of idle ids."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.results import Results, Sample
from bench.stale import page_fault
from bench.transactions_ids import ADAPTER, FEW_LOADED, FEW_MADE, LOADED, MADE
from bench.transactions_plan import (
    COMMITTED,
    COST,
    FLUSHES,
    FULL,
    IDS,
    MANY,
    ONE,
    ONE_CASES,
    READS,
    TRANSACTIONS,
    UNCOMMITTED,
)
from bench.transactions_report import aimed, idle_ids, page, pairs
from tests.unit.bench.test_against_report import section

KAFKA, BMQ = "kafka-3", "bmq-3"


def rated(rate: float, p99_us: float = 4000.0) -> dict[str, float]:
    return {"transactions_s": rate, "p50_us": 2000.0, "p99_us": p99_us, "n": 100.0}


def of_rounds(adapter: str, bench: str, case: str, metrics: Mapping[str, float]) -> list[Sample]:
    return [Sample(adapter=adapter, bench=bench, case=case, round=each, metrics=dict(metrics)) for each in (1, 2, 3)]


@pytest.fixture
def results() -> Results:
    """Return results of three rounds: BMQ is faster with one producer, and slower with many."""
    samples: list[Sample] = []
    for adapter, rate in ((KAFKA, 100.0), (BMQ, 120.0)):
        for case in ONE_CASES:
            samples += of_rounds(adapter, ONE, case, rated(rate))
    samples += of_rounds(KAFKA, MANY, "50 producers, 1 record", rated(1000.0))
    samples += of_rounds(BMQ, MANY, "50 producers, 1 record", rated(600.0, 5600.0))
    for adapter in (KAFKA, BMQ):
        samples += of_rounds(adapter, COST, TRANSACTIONS, rated(80.0))
        samples += of_rounds(adapter, COST, FLUSHES, rated(100.0))
        samples += of_rounds(adapter, READS, COMMITTED, {"records_s": 96_000.0})
        samples += of_rounds(adapter, READS, UNCOMMITTED, {"records_s": 100_000.0})
    for case, metrics in (
        (FEW_LOADED, {"rss_bytes": 100e6, "seconds": 1.5}),
        (FEW_MADE, {"rss_bytes": 110e6}),
        (MADE, {"rss_bytes": 260e6}),
        (LOADED, {"rss_bytes": 190e6, "seconds": 4.0}),
    ):
        samples.append(Sample(adapter=ADAPTER, bench=IDS, case=case, round=1, metrics=metrics))
    plan = {
        "rounds": 3, "measured_s": FULL.measured_s, "many_s": FULL.many_s, "warm_s": FULL.warm_s,
        "producers": FULL.producers, "read_records": FULL.read_records, "ids": FULL.ids, "settings": {}, "clients": {},
        "warm_up": {"rounds": 2, "is_warm": True},
    }  # fmt: skip
    machine = {"cpu": "a processor", "cores": "2", "memory": "8 GB", "kernel": "Linux", "file_system": "ext4"}
    return Results(
        command="python -m bench.transactions", machine=machine, plan=plan, started="2026-11-29", commit="c" * 40,
        samples=samples,
    )  # fmt: skip


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_a_ratio_to_kafka_is_of_the_same_case_and_has_its_aim(results: Results) -> None:
    part = section(page(results), "## Aims")
    where = "BMQ, three processes over etcd and HDFS"
    assert f"| rate, Java, 1 record, to Kafka's | {where} | **1.20** (1.20 to 1.20) better | at least 1 | yes |" in part
    many = "50 producers, 1 record, to Kafka's"
    assert f"| rate, {many} | {where} | **0.60** (0.60 to 0.60) WORSE | at least 0.7 | **no** |" in part
    assert f"| p99, {many} | {where} | **1.40** (1.40 to 1.40) WORSE | at most 1.5 | yes |" in part


def test_transactions_are_set_beside_flushes_within_a_deployment(results: Results) -> None:
    found = {each.what: each for each in aimed(results)}
    assert not found["rate in transactions, to plain idempotence"].is_met
    assert found["rate of read_committed, to read_uncommitted"].is_met
    part = section(page(results), "## What transactions cost")
    assert "| Kafka, three nodes | 100 | 80 | **0.80** (0.80 to 0.80) WORSE |" in part


def test_idle_ids_are_counted_less_the_process_with_few(results: Results) -> None:
    idle = idle_ids(results)
    assert idle is not None
    assert (idle.made_bytes, idle.loaded_bytes, idle.load_s) == (1500.0, 900.0, 2.5)
    part = section(page(results), "## Aims")
    assert "| memory of an idle id, made | BMQ, one process | 1,500 bytes | at most 1,000 bytes | **no** |" in part
    assert "| load of 100,000 ids | BMQ, one process | 2.5 s | at most 5 s | yes |" in part


def test_ids_that_were_not_loaded_have_no_section(results: Results) -> None:
    results.samples = [each for each in results.samples if each.case != LOADED]
    text = page(results)
    assert "## Idle transactional ids" not in text
    assert "memory of an idle id" not in text


def test_a_site_without_kafka_has_figures_and_no_ratio(results: Results) -> None:
    results.samples = [each for each in results.samples if each.adapter != KAFKA]
    assert pairs(results, ONE) == []
    text = page(results)
    assert "beside Kafka, three nodes" not in text
    assert "| Java, 1 record | 120 |" in section(text, "## One producer")


def test_a_page_whose_aims_are_missed_says_why(results: Results) -> None:
    title = "## Why aims are missed"
    assert title in page(results)
    results.samples = [each for each in results.samples if each.bench == ONE]
    assert all(each.is_met for each in aimed(results))
    assert title not in page(results)
