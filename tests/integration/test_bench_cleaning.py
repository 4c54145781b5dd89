"""The benchmark of compaction runs: tiny logs, Kafka's cleaner and BMQ's, every shape of records, a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cleaning import main
from bench.cleaning_measure import BENCH, SHAPES, SIDES
from bench.results import Results
from bench.stale import page_fault


def test_a_quick_run_cleans_every_log_by_both_cleaners(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "data", tmp_path / "docs"
    folder.mkdir()
    assert main(["--quick", "--out", str(out), "--folder", str(folder)]) == 0, capsys.readouterr().err
    results = Results.load_from(out / "benchmarks" / "cleaning.json")
    assert set(results.cases(BENCH)) == set(SHAPES)
    for case in SHAPES:
        kafka, bmq = (results.spread(BENCH, side, case, "bytes_after_share") for side in SIDES)
        assert kafka is not None
        assert bmq is not None
        assert 0.1 < kafka.middle < 0.3, "three of four records have gone"
        assert 1 <= bmq.middle / kafka.middle < 1.05
    page = (out / "benchmarks-cleaning.md").read_text()
    assert page_fault(page, results) == ""
    assert "## Processor time, s/GB" in page
    assert list(folder.iterdir()) == []
