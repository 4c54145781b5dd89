"""docs/faults.md names tests and folders that exist, and every integration test of a fault is on it."""

from __future__ import annotations

import pytest

from tests.unit.repository.named_tests import ROOT, exists, named_tests

PAGE = (ROOT / "docs" / "faults.md").read_text()
WITHOUT_FAULTS = {
    "tests/integration/cluster/test_smoke.py",
    "tests/integration/cluster/test_zones.py",
    "tests/integration/test_bench_failover.py",
}
OF_CLIENTS = {
    "tests/integration/test_hostile_client.py",
    "tests/unit/console/access/test_logins.py",
    "tests/unit/core/net/test_login_budget.py",
    "tests/unit/core/net/test_strangers.py",
    "tests/unit/server/test_shared_bounds.py",
}
"""Files with tests of clients, or of strangers without a log-in, that would cost others their service."""
TRIED = {
    "one NameNode": "tests/integration/test_hdfs_failover_secure.py",
    "pair with Kerberos or": "tests/integration/test_hdfs_failover_secure.py",
}
"""Words by which the page would deny what a file tries."""
NAMED = named_tests(PAGE)


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_what_the_page_names_exists(path: str, test: str) -> None:
    assert exists(path, test)


def test_every_file_of_faults_is_on_the_page() -> None:
    folder = ROOT / "tests" / "integration"
    of_faults = {each.relative_to(ROOT).as_posix() for each in folder.rglob("test_*fault*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in folder.glob("test_*takeover*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in folder.rglob("test_*failover*.py")}
    of_faults |= OF_CLIENTS
    of_faults |= {each.relative_to(ROOT).as_posix() for each in (folder / "cluster").glob("test_*.py")}
    missing = of_faults - {path for path, _ in NAMED} - WITHOUT_FAULTS
    assert not missing


@pytest.mark.parametrize("words", TRIED)
def test_the_page_does_not_deny_a_fault_that_a_row_tries(words: str) -> None:
    assert TRIED[words] in {path for path, _ in NAMED}
    _, found, not_tried = PAGE.partition("## Not tried")
    assert found
    assert words not in " ".join(not_tried.split())
