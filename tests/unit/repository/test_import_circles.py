"""Imports of the product's modules: no circle, not even one of imports that only type checkers follow.

A module that imports another for its types alone depends on it all the same: neither is understood, or changed, without
the other. The imports inside of functions and under `if TYPE_CHECKING` count like those at a module's top.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.log_events import ROOMS, TREE

Graph = Mapping[str, frozenset[str]]


def modules() -> dict[str, Path]:
    """Return the product's modules by their names."""
    found = {}
    for room in (*ROOMS, "spark"):
        for path in (TREE / room).rglob("*.py"):
            parts = path.relative_to(TREE).with_suffix("").parts
            found[".".join(("bmq", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def imported(source: str, known: Mapping[str, object]) -> Iterator[str]:
    """Yield those modules of ``known`` that the source imports, wherever the import stands."""
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0, "imports name the module from the root on"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in known or node.module in known:
                    yield name if name in known else node.module


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield each statement under a node, without the expressions, which are most of a tree and import nothing."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        children = getattr(node, name, ())
        for child in children if isinstance(children, list) else ():
            yield child
            yield from _statements(child)


@cache
def graph() -> Graph:
    """Return the modules that each module of the product imports."""
    known = modules()
    return {name: frozenset(imported(path.read_text(), known)) - {name} for name, path in known.items()}


def reached(imports: Graph, start: str) -> set[str]:
    """Return the modules that ``start`` imports, itself or through others."""
    found: set[str] = set()
    left = [start]
    while left:
        new = imports[left.pop()] - found
        found |= new
        left += new
    return found


def circles(imports: Graph) -> frozenset[frozenset[str]]:
    """Return the largest sets of modules of which each imports, through others, each of the others."""
    reach = {name: reached(imports, name) for name in imports}
    return frozenset(
        frozenset(other for other in reach[name] if name in reach[other]) for name in imports if name in reach[name]
    )


@pytest.mark.slow
def test_the_products_imports_make_no_circle() -> None:
    assert circles(graph()) == frozenset(), "let imports go one way"


@pytest.mark.slow
def test_the_imports_of_a_partition_go_one_way() -> None:
    """The log knows no transition and no table; the I/O knows no effect and no table."""
    imports = graph()
    room = "bmq.broker.partition"
    assert f"{room}.owned_log" in reached(imports, f"{room}.machine")
    assert {f"{room}.transitions", f"{room}.machine"}.isdisjoint(reached(imports, f"{room}.owned_log"))
    assert f"{room}.partition_io" in reached(imports, f"{room}.driver")
    assert {f"{room}.effects", f"{room}.driver"}.isdisjoint(reached(imports, f"{room}.partition_io"))


@pytest.mark.parametrize(
    "source",
    [
        "import bmq.core.clock",
        "from bmq.core import clock",
        "from bmq.core.clock import Clock",
        "if TYPE_CHECKING:\n    from bmq.core.clock import Clock",
        "def now():\n    from bmq.core.clock import Clock",
    ],
)
def test_an_import_is_found_wherever_it_stands(source: str) -> None:
    assert list(imported(source, {"bmq.core.clock": None})) == ["bmq.core.clock"]


def test_a_circle_through_several_modules_is_found() -> None:
    imports = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "ad", "d": "e", "e": ""}.items()}
    assert circles(imports) == {frozenset({"a", "b", "c"})}
