"""Named tuples without fields: all are equal, so ``One() in effects`` is true for any other."""

from __future__ import annotations

import ast

import pytest

from tests.voice import ROOT, files
from tests.voice_sentences import ROOMS as PRODUCT


def without_fields(tree: ast.AST) -> list[str]:
    """Return the names of the classes that are named tuples without fields."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2] == "NamedTuple" for base in node.bases)
        and not any(isinstance(each, ast.AnnAssign) for each in node.body)
    ]


@pytest.mark.slow
def test_no_named_tuple_of_the_product_is_without_fields() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in files(list(PRODUCT))
        if "NamedTuple" in (text := path.read_text()) and (names := without_fields(ast.parse(text)))
    }
    assert found == {}, "make them dataclasses: two named tuples without fields are equal"


def test_the_rule_finds_one() -> None:
    source = "class A(NamedTuple):\n  'a'\nclass B(typing.NamedTuple):\n  b: int\nclass C:\n  'c'\n"
    assert without_fields(ast.parse(source)) == ["A"]
