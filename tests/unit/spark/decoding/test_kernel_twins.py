"""Functions that several compiled modules have each for itself are the same in all.

numba keeps machine code by the one file that a function stands in: a change in a function that another file imports
would not be noticed (heads of the modules).  So such a function is written in each module, and kept alike here.
"""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
MODULES = ("core/records/kernels.py", "spark/decoding/kernels.py", "storage/cleaning/loops/records.py")
TWINS = {"_varint"}


def body_of(path: str, name: str) -> str:
    """Return the statements of a module's function, without its docstring, and its arguments."""
    tree = ast.parse((ROOT / path).read_text())
    (found,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    decorators = [ast.unparse(each).lstrip("_") for each in found.decorator_list]  # some modules share theirs
    return "\n".join([*decorators, *map(ast.unparse, [found.args, *found.body[1:]])])


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)} - {"_inlined", "_compiled"}


@pytest.mark.slow
def test_twins_are_alike() -> None:
    for first, second in combinations(MODULES, 2):
        assert functions_of(first) & functions_of(second) == TWINS
    for name in TWINS:
        assert len({body_of(path, name) for path in MODULES}) == 1
