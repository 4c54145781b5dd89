"""The benchmark of latency runs: tiny amounts, one real ``bmq serve``, a page and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.latency import main
from bench.results import Results


def test_a_quick_run_measures_every_load_and_draws_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    status = main(["--quick", "--deployments", "bmq-local", "--out", str(tmp_path), "--folder", str(folder)])
    results = Results.load_from(tmp_path / "benchmarks" / "latency.json")
    assert (status, results.failures) == (0, [])
    assert {each.bench for each in results.samples} == {"ladder", "saturation", "flush"}
    assert set(results.cases("flush")) == {"in memory", "on disk"}
    assert all(0 < each.metrics["ack_p50_us"] < 60e6 for each in results.of_bench("flush"))
    assert all(0 < each.metrics["end_p50_us"] < 60e6 for each in results.of_bench("flush"))
    assert "## Up to which load" in (tmp_path / "benchmarks-latency.md").read_text()
    assert (tmp_path / "benchmarks" / "latency-load.svg").exists()
    assert list(folder.iterdir()) == []
    assert "round 1" in capsys.readouterr().out
