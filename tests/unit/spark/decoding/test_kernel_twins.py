"""Functions that two compiled modules have each for itself are the same in both.

numba keeps machine code by the one file that a function stands in: a change in a function that another file imports
would not be noticed (heads of ``core.records.kernels`` and ``spark.decoding.kernels``).  So they are written twice, and
kept alike here.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[4]
TWINS = {"_varint"}


def body_of(path: str, name: str) -> str:
    """Return the statements of a module's function, without its docstring, and its arguments."""
    tree = ast.parse((ROOT / path).read_text())
    (found,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    return "\n".join(map(ast.unparse, [found.args, *found.decorator_list, *found.body[1:]]))


def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)} - {"_inlined", "_compiled"}


def test_twins_are_alike() -> None:
    assert functions_of("core/records/kernels.py") & functions_of("spark/decoding/kernels.py") == TWINS
    for name in TWINS:
        assert body_of("core/records/kernels.py", name) == body_of("spark/decoding/kernels.py", name)
