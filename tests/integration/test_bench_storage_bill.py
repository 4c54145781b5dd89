"""The bill of storage is measured, computed and drawn: a few partitions on real processes, etcd and HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results
from bench.stale import page_fault
from bench.storage_bill import main
from bench.storage_measure import QUICK
from bench.storage_report import ADAPTER, BENCH, bills


def test_a_quick_run_computes_a_bill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    assert main(["--quick", "--out", str(tmp_path), "--folder", str(folder)]) == 0
    results = Results.load_from(tmp_path / "benchmarks" / "storage.json")
    (created,) = results.of(BENCH, ADAPTER, "created")
    assert created.metrics["etcd_keys"] >= QUICK.partitions
    (opened,) = results.of(BENCH, ADAPTER, "opened")
    assert opened.metrics["open_files"] >= QUICK.partitions
    assert opened.metrics["reserved_bytes"] >= QUICK.partitions * 3 * (15 << 20)
    (lives,) = results.of(BENCH, ADAPTER, "segments' lives")
    assert lives.metrics["files_created"] >= lives.metrics["batches"]
    assert lives.metrics["calls"] > 5 * lives.metrics["batches"]
    assert set(bills(results)) == {"a batch a second", "a batch a minute", "a batch in ten minutes", "idle"}
    assert page_fault((tmp_path / "benchmarks-storage.md").read_text(), results) == ""
    assert list(folder.iterdir()) == []
