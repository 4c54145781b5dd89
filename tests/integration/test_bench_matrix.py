"""The matrix runs: tiny amounts of one axis on one Kafka and one BMQ, a page of them, and another axis added."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.matrix import main
from bench.results import Results
from bench.stale import page_fault

DEPLOYMENTS = ("kafka-1", "bmq-local")


def test_axes_are_measured_one_after_another_and_drawn_on_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "docs", tmp_path / "data"
    folder.mkdir()
    given = ["--quick", "--deployments", ",".join(DEPLOYMENTS), "--out", str(out), "--folder", str(folder)]
    assert main([*given, "--only", "clients"]) == 0, capsys.readouterr().err
    assert main([*given, "--only", "corners", "--add"]) == 0, capsys.readouterr().err
    results = Results.load_from(out / "benchmarks" / "matrix.json")
    assert {sample.case.partition(":")[0] for sample in results.samples} == {"clients", "corners"}
    for bench in ("produce", "consume"):
        assert set(results.adapters(bench)) == set(DEPLOYMENTS)
        assert len(results.cases(bench)) == 4
    assert all(sample.metrics["records_s"] > 0 for sample in results.samples)
    assert all(sample.metrics["all_cpu_s_gb"] > 0 for sample in results.samples)
    page = (out / "benchmarks-matrix.md").read_text()
    assert page_fault(page, results) == ""
    assert page.count("### Producing") == 2
    assert (out / "benchmarks" / "matrix.svg").exists()
    assert list(folder.iterdir()) == []
