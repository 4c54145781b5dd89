"""The benchmark of security runs: tiny amounts, a real Kafka and a real ``bmq serve``, every configuration, a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.quota_pairs import NEIGHBOUR
from bench.results import Results
from bench.security import main
from bench.security_plan import CONFIGURATIONS
from bench.stale import page_fault
from tests.harness.certificates import PASSWORD

BENCHES = {"produce", "consume", "paced", "connect"}


def test_a_quick_run_measures_every_configuration_of_both_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "data", tmp_path / "docs"
    folder.mkdir()
    assert main(["--quick", "--out", str(out), "--folder", str(folder)]) == 0, capsys.readouterr().err
    path = out / "benchmarks" / "security.json"
    results = Results.load_from(path)
    assert {each.bench for each in results.samples} == BENCHES | {NEIGHBOUR}
    for bench in BENCHES:
        assert set(results.adapters(bench)) == {"kafka-1", "bmq-local"}
        assert set(results.cases(bench)) == set(CONFIGURATIONS)
    assert all(value > 0 for each in results.samples for name, value in each.metrics.items() if "cpu" in name)
    agreed = {found for of in results.plan["tls"].values() for found in of.values()}
    assert len(agreed) == 1
    assert "TLSv1.3, TLS_AES_256_GCM_SHA384" in agreed.pop()
    page = (out / "benchmarks-security.md").read_text()
    assert page_fault(page, results) == ""
    assert "## Connecting" in page
    assert "quota of 1 MB a second. There are 2 pairs" in page
    for text in (page, path.read_text()):
        assert PASSWORD not in text
    assert list(folder.iterdir()) == []
