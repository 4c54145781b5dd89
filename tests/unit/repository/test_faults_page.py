"""docs/faults.md names tests and folders that exist, and every integration test of a fault is on it."""

from __future__ import annotations

import pytest

from tests.unit.repository.named_tests import ROOT, exists, named_tests

NAMED = named_tests((ROOT / "docs" / "faults.md").read_text())
WITHOUT_FAULTS = {"tests/integration/cluster/test_smoke.py", "tests/integration/cluster/test_zones.py"}


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_what_the_page_names_exists(path: str, test: str) -> None:
    assert exists(path, test)


def test_every_file_of_faults_is_on_the_page() -> None:
    folder = ROOT / "tests" / "integration"
    of_faults = {each.relative_to(ROOT).as_posix() for each in folder.rglob("test_*fault*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in folder.glob("test_*takeover*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in (folder / "cluster").glob("test_*.py")}
    missing = of_faults - {path for path, _ in NAMED} - WITHOUT_FAULTS
    assert not missing
