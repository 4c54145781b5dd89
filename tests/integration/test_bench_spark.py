"""The Spark benchmark runs: tiny amounts, real servers and a real Spark, one part of each kind, and its page."""

from __future__ import annotations

from pathlib import Path

from bench.results import Results
from bench.spark import main
from bench.stale import page_fault


def test_a_quick_run_measures_each_way_and_draws_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    arguments = ["--quick", "--only", "streaming,sink", "--out", str(tmp_path), "--folder", str(folder)]
    assert main(arguments) == 0
    results = Results.load_from(tmp_path / "benchmarks" / "spark.json")
    measured = {(sample.bench, sample.adapter) for sample in results.samples}
    assert {bench for bench, _ in measured} == {
        "streaming/drain", "streaming/latency", "streaming/keeps up", "sink/write",
    }  # fmt: skip
    assert {adapter for bench, adapter in measured if bench == "sink/write"} == {
        "sink", "sink, one process", "kafka sink into BMQ", "kafka",
    }  # fmt: skip
    assert all(value >= 0 for sample in results.samples for name, value in sample.metrics.items() if name != "growth")
    page = (tmp_path / "benchmarks-spark.md").read_text()
    assert page_fault(page, results) == ""
    assert "## Streaming queries" in page
    assert "## Writing a DataFrame" in page
    assert list(folder.iterdir()) == []
