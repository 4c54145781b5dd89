"""The benchmark of readers runs: tiny amounts, one real ``bmq serve``, a page and a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.reading import main
from bench.results import Results


def test_a_quick_run_measures_every_case_and_draws_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    status = main(["--quick", "--deployments", "bmq-local", "--out", str(tmp_path), "--folder", str(folder)])
    results = Results.load_from(tmp_path / "benchmarks" / "reading.json")
    assert (status, results.failures) == (0, [])
    assert set(results.cases("tail")) == {"1 group", "3 groups"}
    assert len(results.cases("backlog")) == 3
    assert all(each.metrics["mb_s"] > 0 for each in results.of_bench("backlog"))
    assert all("block_share" in each.metrics or "tail_share" in each.metrics for each in results.of_bench("backlog"))
    (alone, *others) = sorted(results.of_bench("effect"), key=lambda each: "catch_up_mb_s" in each.metrics)
    assert "catch_up_mb_s" not in alone.metrics
    assert all(each.metrics["catch_up_mb_s"] > 0 for each in others)
    assert "## A backlog" in (tmp_path / "benchmarks-reading.md").read_text()
    assert (tmp_path / "benchmarks" / "reading-effect.svg").exists()
    assert list(folder.iterdir()) == []
    capsys.readouterr()
