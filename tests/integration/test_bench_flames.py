"""Flame graphs of a real process under tiny loads: they show the functions that these loads must call."""

from __future__ import annotations

from pathlib import Path

from bench.flame_graph import parse_folded
from bench.flames import LOADS, main
from bench.flames_report import BENCH, folder_of
from bench.results import Results
from bench.stale import page_fault


def test_a_quick_run_draws_its_page(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    assert main(["--quick", "--out", str(tmp_path), "--folder", str(data)]) == 0
    results = Results.load_from(tmp_path / "benchmarks" / "flames.json")
    assert results.cases(BENCH) == list(LOADS)
    for sample in results.samples:
        assert sample.metrics["cpu_s"] > 0, sample
        assert sample.metrics["samples"] > 0, sample
    assert {path.stem for path in folder_of(tmp_path).glob("*.svg")} == set(LOADS)
    produced = parse_folded((folder_of(tmp_path) / "produce.folded").read_text().splitlines())
    assert any("FlushScheduler._run (broker/files/flush_scheduler.py)" in frames for frames in produced)
    assert page_fault((tmp_path / "benchmarks-flames.md").read_text(), results) == ""
    assert list(data.iterdir()) == []
