"""The benchmark of transactions runs: tiny amounts, a real Kafka and a real ``bmq serve``, every case, a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results
from bench.stale import page_fault
from bench.transactions import main
from bench.transactions_plan import COST, IDS, MANY, ONE, ONE_CASES, READS


def test_a_quick_run_measures_every_case_of_both_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "data", tmp_path / "docs"
    folder.mkdir()
    given = ["--quick", "--rounds", "1", "--sites", "local", "--out", str(out), "--folder", str(folder)]
    assert main(given) == 0, capsys.readouterr().err
    results = Results.load_from(out / "benchmarks" / "transactions.json")
    assert {each.bench for each in results.samples} == {ONE, MANY, COST, READS, IDS}
    for bench in (ONE, MANY, COST, READS):
        assert set(results.adapters(bench)) == {"kafka-1", "bmq-local"}
    assert set(results.cases(ONE)) == set(ONE_CASES)
    assert all(each.metrics["transactions_s"] > 0 for bench in (ONE, MANY, COST) for each in results.of_bench(bench))
    assert len(results.of_bench(IDS)) == 4
    page = (out / "benchmarks-transactions.md").read_text()
    assert page_fault(page, results) == ""
    for part in ("## Aims", "## Readers", "## Idle transactional ids"):
        assert part in page
    assert list(folder.iterdir()) == []
