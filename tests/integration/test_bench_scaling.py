"""The measurements of scaling run: one process and two workers, the planner, controllers with stub brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results
from bench.scaling import main
from bench.stale import page_fault

pytestmark = [pytest.mark.hdfs, pytest.mark.etcd]


def test_each_part_is_measured_and_drawn_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, folder = tmp_path / "docs", tmp_path / "data"
    folder.mkdir()
    assert main(["--quick", "--out", str(out), "--folder", str(folder)]) == 0, capsys.readouterr().err
    results = Results.load_from(out / "benchmarks" / "scaling.json")
    for bench in ("produce", "consume"):
        assert set(results.cases(bench)) == {"1 process", "--workers 2"}  # rounds turn their order
    assert all(sample.metrics["records_s"] > 0 for sample in results.samples if "records_s" in sample.metrics)
    (control,) = results.of("control", "controllers", "20 brokers, 10 topics of 1,000")
    assert control.metrics["lost_seconds"] > 0
    assert control.metrics["store_bytes"] > 10_000
    page = (out / "benchmarks-scaling.md").read_text()
    assert page_fault(page, results) == ""
    assert all(title in page for title in ("## Processes", "## The planner", "## The controllers and their store"))
    assert list(folder.iterdir()) == []
