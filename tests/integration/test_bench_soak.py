"""A soak of half a minute: its load, its changes, its samples and its page, on real processes, etcd and HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results
from bench.soak import main
from bench.soak_report import BENCH, RESTART
from bench.stale import page_fault


def test_a_quick_soak_samples_and_draws_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    assert main(["--quick", "--out", str(tmp_path), "--folder", str(folder)]) == 0
    results = Results.load_from(tmp_path / "benchmarks" / "soak.json")
    samples = results.of(BENCH, "bmq-3", "")
    assert len(samples) >= 8
    for name in ("bmq_0_mb", "bmq_2_fds", "namenode_mb", "files", "etcd_revision", "etcd_in_use_mb", "lag"):
        assert all(name in sample.metrics for sample in samples), name
    assert any("p99_us" in sample.metrics for sample in samples)
    assert any(sample.bench == RESTART for sample in results.samples)
    assert results.plan["acknowledged"] > 0
    assert results.plan["consumed"] >= results.plan["acknowledged"]
    assert results.plan["topics"] > 0
    assert results.plan["groups"] > 0
    assert page_fault((tmp_path / "benchmarks-soak.md").read_text(), results) == ""
    assert list(folder.iterdir()) == []
