"""The page of security's cost: each server beside its own PLAINTEXT, and BMQ beside Kafka in the same configuration."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bench.results import Results, Sample
from bench.security_plan import CONFIGURATIONS, CONNECT, FULL, PACED, PLAIN
from bench.security_report import page, write
from bench.stale import page_fault
from tests.unit.bench.test_against_report import section

SUITE = "TLSv1.3, TLS_AES_256_GCM_SHA384, x25519"
OF_TLS = ("SSL", "SASL_SSL with ACLs")
COSTS = dict(zip(CONFIGURATIONS, (1.0, 1.0, 2.0, 2.5), strict=True))
"""What a configuration costs, as a multiple of PLAINTEXT."""


def metrics(bench: str, cost: float, share: float) -> dict[str, float]:
    """Return a round's metrics of a server that takes ``share`` of Kafka's time."""
    cost *= share
    if bench == PACED:
        return {"p50_us": 500 * cost, "p99_us": 2000 * cost, "all_cpu_us_record": 100 * cost}
    if bench == CONNECT:
        return {
            "connections_s": 1000 / cost,
            "all_cpu_us_connection": 800 * cost,
            "client_cpu_us_connection": 90.0,
        }
    return {"mb_s": 200 / cost, "all_cpu_s_gb": 4 * cost, "client_cpu_s_gb": 3.0}


@pytest.fixture
def results() -> Results:
    samples = [
        Sample(adapter=name, bench=bench, case=case, round=number, metrics=metrics(bench, cost, share))
        for number in (1, 2, 3)
        for bench in ("produce", "consume", PACED, CONNECT)
        for name, share in (("bmq-local", 0.5), ("kafka-1", 1.0))
        for case, cost in COSTS.items()
    ]
    plan = asdict(FULL) | {
        "settings": {"both, open": {"ssl.enabled.protocols": "TLSv1.3"}}, "clients": {"produce": "librdkafka"},
        "cores": "apart", "warm_up": {"rounds": 4, "is_warm": True},
        "tls": {name: dict.fromkeys(OF_TLS, SUITE) for name in ("kafka-1", "bmq-local")},
    }  # fmt: skip
    return Results(
        command="python -m bench.security", machine={"CPU": "one"}, plan=plan, started="2026-11-24", commit="0123abcd",
        samples=samples, took_s=1100.0,
    )  # fmt: skip


def test_the_page_says_which_code_it_is_of_and_how_it_was_warmed(results: Results) -> None:
    text = page(results)
    assert page_fault(text, results) == ""
    assert "    python -m bench.security\n" in text
    assert "rate of producing or connecting was more than 10% above its best before: after 4." in text


def test_what_was_negotiated_is_on_the_page_and_a_difference_too(results: Results) -> None:
    part = section(page(results), "## Configurations")
    assert f"| SSL | SSL | no authorizer, no client's certificate | {SUITE} |" in part
    assert "| PLAINTEXT | PLAINTEXT | no authorizer | - |" in part
    results.plan["tls"]["kafka-1"]["SSL"] = "TLSv1.3, TLS_AES_128_GCM_SHA256, x25519"
    assert f"TLSv1.3, TLS_AES_128_GCM_SHA256, x25519; {SUITE} |" in section(page(results), "## Configurations")


def test_each_server_is_compared_with_its_own_plaintext(results: Results) -> None:
    part = section(page(results), "## Producing")
    own = section(part, "### Kafka, one node, beside its own PLAINTEXT")
    assert "| SSL | **0.50** (0.50 to 0.50) WORSE | **2.00** (2.00 to 2.00) WORSE |" in own
    assert "| PLAINTEXT with ACLs | **1.00** (1.00 to 1.00) equal |" in own
    assert f"| {PLAIN.name} |" not in own


def test_bmq_is_compared_with_kafka_in_the_same_configuration(results: Results) -> None:
    part = section(page(results), "## Consuming what was just produced")
    beside = section(part, "### BMQ, one process, beside Kafka, one node in the same configuration")
    for case in CONFIGURATIONS:
        assert f"| {case} | **2.00** (2.00 to 2.00) better | **0.50** (0.50 to 0.50) better |" in beside
    assert "  - MB/s (PLAINTEXT with ACLs)\n  - server's CPU (PLAINTEXT with ACLs)" in beside
    assert "client" not in beside


def test_kafkas_figures_come_first_and_the_clients_are_named(results: Results) -> None:
    part = section(page(results), "## Producing")
    assert part.index("### Kafka, one node\n") < part.index("### BMQ, one process\n")
    assert "| SSL | 100 | 8 | 3 |" in part


def test_latencies_are_in_milliseconds_and_connections_have_their_cost(results: Results) -> None:
    text = page(results)
    assert "| SSL | 1 | 4 | 200 |" in section(text, "## At 1,000 records a second")
    assert "| SASL_SSL with ACLs | 400 | 2,000 | 90 |" in section(text, "## Connecting")


def test_what_was_not_measured_has_no_section(results: Results) -> None:
    results.samples = [each for each in results.samples if each.bench != CONNECT and each.adapter == "bmq-local"]
    text = page(results)
    assert "## Connecting" not in text
    assert "beside Kafka, one node in the same" not in text
    assert "### BMQ, one process, beside its own PLAINTEXT" in text


def test_the_page_says_what_it_does_not_show_and_answers_objections(results: Results) -> None:
    results.failures.append("paced, SSL, on kafka-1: TimeoutError()")
    text = page(results)
    assert "## What this page does not show" in text
    assert "## What would a Kafka engineer object to, and the answer" in text
    assert "- paced, SSL, on kafka-1: TimeoutError()" in text


def test_results_without_a_commit_are_refused(results: Results, tmp_path: Path) -> None:
    results.commit = ""
    with pytest.raises(ValueError, match="Measure again"):
        write(results, tmp_path)
