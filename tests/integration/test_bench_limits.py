"""The limits beside BMQ are measured and drawn: tiny amounts, bare clients and one ``bmq serve`` on one real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.limits import main
from bench.limits_measure import BENCH
from bench.results import Results
from bench.stale import page_fault

SIDES = {"java-flush", "java-stream", "bare", "loopback", "append", "put", "bmq-hdfs"}


def test_a_quick_run_draws_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    assert main(["--quick", "--only", ",".join(SIDES), "--out", str(tmp_path), "--folder", str(folder)]) == 0
    results = Results.load_from(tmp_path / "benchmarks" / "limits.json")
    brokers = {"bmq-hdfs, ready-made requests", "bmq-hdfs, Kafka's perf tool"}
    assert set(results.adapters(BENCH)) == SIDES - {"bmq-hdfs"} | brokers
    assert all(sample.metrics["mb_s"] > 0 for sample in results.samples)
    bare = results.spread(BENCH, "bare", "", "datanode_cpu_s_gb")
    assert bare is not None
    assert bare.low > 0
    flush = results.spread(BENCH, "bmq-hdfs, ready-made requests", "", "flush_bytes")
    assert flush is not None
    assert 64 << 10 <= flush.middle <= 1 << 20
    assert page_fault((tmp_path / "benchmarks-limits.md").read_text(), results) == ""
    assert (tmp_path / "benchmarks" / "limits.svg").exists()
    assert list(folder.iterdir()) == []
