"""The guard against regressions runs: tiny amounts, one real ``bmq serve`` and the reference loop, a baseline kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.reference_loop import VERSION
from bench.smoke import main

FIGURES = {"produce_cpu_s_gb", "consume_cpu_s_gb", "paced_cpu_us_record", "lone_p50_us", "tiny_requests_s"}


def test_a_quick_run_keeps_a_ratio_for_each_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = tmp_path / "baseline.json"
    folder = tmp_path / "data"
    folder.mkdir()
    assert main(["--quick", "--rounds", "2", "--keep", "--baseline", str(baseline), "--folder", str(folder)]) == 0
    kept = json.loads(baseline.read_text())
    assert kept["reference_version"] == VERSION
    assert set(kept["ratios"]) == FIGURES
    assert all(0 < ratio["low"] <= ratio["middle"] <= ratio["high"] for ratio in kept["ratios"].values())
    printed = capsys.readouterr().out
    assert "round 0" in printed
    assert printed.count("equal") == len(FIGURES)
    assert list(folder.iterdir()) == []
