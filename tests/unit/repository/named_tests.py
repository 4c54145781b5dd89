"""The tests that a page of the documentation names, as `path::name`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(test_\w+))?`")


def named_tests(page: str) -> list[tuple[str, str]]:
    """Return (path, test) of each test that a page's text names; the test is "" where a whole file is named.

    A name that begins with `::` is in the file that was named before it.
    """
    found, path = [], ""
    for match in _NAMED.finditer(page):
        path = match[1] or path
        found.append((path, match[2] or ""))
    return found


def exists(path: str, test: str) -> bool:
    """Return whether the file exists, and has the test."""
    file = ROOT / path
    return file.is_file() and (not test or f"def {test}(" in file.read_text())
