"""Stand-ins of tests without a class: a number by folder that only falls.

A `SimpleNamespace` in place of an object has any field that a test gives it.  It goes on fitting the test when the
product's class has changed, and neither a type checker nor the product notices.  Take the real object, on storage and a
store in memory (`tests/harness/members.py`), or a fake of the harness.
"""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.voice import ROOT, files

BOUNDS = {
    "tests/simulation": 8,
    "tests/unit/bench": 2,
    "tests/unit/broker": 18,
    "tests/unit/cli": 10,
    "tests/unit/console": 1,
    "tests/unit/controller": 2,
    "tests/unit/core": 1,
    "tests/unit/proxy": 6,
    "tests/unit/server": 10,
    "tests/unit/simulation": 1,
    "tests/unit/storage": 8,
}
"""Namespaces made in the tests of each folder.  No number rises."""


def namespaces(tree: ast.AST) -> int:
    """Return how often a tree makes one."""
    return sum(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "SimpleNamespace"
        for node in ast.walk(tree)
    )


def found() -> Counter[str]:
    """Return the numbers of the folders that have any."""
    counts: Counter[str] = Counter()
    for path in files(["tests"]):
        text = path.read_text()
        if "SimpleNamespace" in text:
            parts = path.relative_to(ROOT).parts
            counts["/".join(parts[: 3 if parts[1] == "unit" else 2])] += namespaces(ast.parse(text))
    return +counts


@pytest.mark.slow
def test_no_folder_has_more_stand_ins_without_a_class_than_before() -> None:
    assert found() == BOUNDS


def test_only_a_call_is_counted() -> None:
    source = "from types import SimpleNamespace\na = SimpleNamespace(b=types.SimpleNamespace())\nc: SimpleNamespace\n"
    assert namespaces(ast.parse(source)) == 2
