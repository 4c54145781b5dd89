"""docs/faults.md names tests and folders that exist, and every integration test of a fault is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "faults.md").read_text()
WITHOUT_FAULTS = {"tests/integration/cluster/test_smoke.py", "tests/integration/cluster/test_zones.py"}
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")


def named_tests() -> list[tuple[str, str]]:
    """Return (path, test) of each test that the page names; the test is "" where a whole file is named.

    A name that begins with `::` is in the file that was named before it.
    """
    found, path = [], ""
    for match in NAMED.finditer(PAGE):
        path = match[1] or path
        found.append((path, match[2] or ""))
    return found


@pytest.mark.parametrize(("path", "test"), named_tests())
def test_what_the_page_names_exists(path: str, test: str) -> None:
    text = (ROOT / path).read_text()
    assert not test or f"def {test}(" in text


def test_every_file_of_faults_is_on_the_page() -> None:
    folder = ROOT / "tests" / "integration"
    of_faults = {each.relative_to(ROOT).as_posix() for each in folder.rglob("test_*fault*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in folder.glob("test_*takeover*.py")}
    of_faults |= {each.relative_to(ROOT).as_posix() for each in (folder / "cluster").glob("test_*.py")}
    missing = of_faults - {path for path, _ in named_tests()} - WITHOUT_FAULTS
    assert not missing
