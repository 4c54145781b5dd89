"""docs/design/known-mistakes.md names tests that exist, at least one for each mistake."""

from __future__ import annotations

import re

import pytest

from tests.unit.repository.named_tests import ROOT, exists, named_tests

PAGE = (ROOT / "docs" / "design" / "known-mistakes.md").read_text()
ROWS = re.findall(r"^\| (?!mistake \|)([^|]+) \|[^|]+\| ([^|]+) \|$", PAGE, re.MULTILINE)
"""The mistake and the tests of each row."""


@pytest.mark.parametrize(("path", "test"), named_tests(PAGE))
def test_what_the_page_names_exists(path: str, test: str) -> None:
    assert exists(path, test)


def test_every_mistake_has_a_public_reference_and_a_test() -> None:
    assert len(ROWS) == len(re.findall(r"^\| ", PAGE, re.MULTILINE)) - PAGE.count("\n| mistake |")
    for mistake, tests in ROWS:
        assert re.search(r"https://|KAFKA-\d+", mistake), mistake
        assert named_tests(tests), mistake
