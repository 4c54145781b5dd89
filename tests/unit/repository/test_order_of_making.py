"""The order of making in `server/`: an object is whole once it is made, and nobody else fills its fields.

A process is wired here.  A field that its owner's maker sets later is invisible in the constructor, and is missing in a
test that forgets it.  Three kinds of places:

* an assignment to an attribute of another object than `self`;
* an attribute of `self` that `__init__` sets to None or to an empty value, and another method sets again;
* a lambda in `__init__` that looks up at each call an attribute that is not set yet, or calls such an attribute.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
Function = ast.FunctionDef | ast.AsyncFunctionDef

PLACES = {
    "server/node.py: Node._give_clients_up: self.counters.clients_given_up": "a counter: counting is its use",
    "server/process.py: Leaving.begin: self._before": "a life cycle: None until the drain begins",
    "server/queries/cluster_history.py: ClusterHistory._arm: self._timer": "a timer between start and stop",
    "server/queries/cluster_history.py: ClusterHistory.stop: self._timer": "a timer between start and stop",
    "server/queries/counts.py: Counts._count: self.partitions_by_state": "the last count: empty before the first",
    "server/queries/storage_room.py: StorageRoom._read: self.known": "the last reading: None before the first",
    "server/root_guard.py: RootGuard.check: self._checked": "the root is checked when the process joins",
}
"""The places that are left, each with its reason.  No place joins them: use a constructor argument, the right order of
making, or a small object that both sides take.  A field of a life cycle is private to its class and to its methods."""


def filled_from_outside(tree: ast.AST) -> Iterator[str]:
    """Yield each function's assignments to attributes of other objects than `self`."""
    for name, function in _functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_own(node):
                yield f"{name}: {ast.unparse(node)}"


def filled_later(tree: ast.AST) -> Iterator[str]:
    """Yield each method's assignments to attributes that `__init__` leaves empty."""
    for made in _classes(tree):
        empty = set[str]()
        for method in _methods(made):
            if method.name == "__init__":
                empty = {to.attr for to, value in _assigned(method) if _is_own(to) and _is_empty(value)}
        for method in _methods(made) if empty else ():
            if method.name != "__init__":
                stored = {node.attr for node in _stores(method) if node.attr in empty}
                yield from (f"{made.name}.{method.name}: self.{name}" for name in sorted(stored))


def looked_up_later(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes that a lambda in `__init__` reads before they are set, or calls although they are fields."""
    for made in _classes(tree):
        for method in _methods(made):
            if method.name == "__init__":
                lambdas = [node for node in ast.walk(method) if isinstance(node, ast.Lambda)]
                first = _first_lines(method) if lambdas else {}
                for hidden in lambdas:
                    yield from (f"{made.name}.__init__: lambda of self.{name}" for name in _late(hidden, first))


def _late(hidden: ast.Lambda, first: Mapping[str, int]) -> Iterator[str]:
    """Yield the fields that a lambda reads before their first line, or calls."""
    called = {id(node.func) for node in ast.walk(hidden) if isinstance(node, ast.Call)}
    for node in ast.walk(hidden.body):
        if not isinstance(node, ast.Attribute) or not _is_own(node) or node.attr not in first:
            continue
        if id(node) in called or node.lineno < first[node.attr]:
            yield node.attr


def _first_lines(method: ast.AST) -> dict[str, int]:
    """Return the line in which each field is set first."""
    first = dict[str, int]()
    for node in _stores(method):
        first[node.attr] = min(node.lineno, first.get(node.attr, node.lineno))
    return first


def _functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, Function]]:
    """Yield each outermost function with its class's name before its own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{outer}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{outer}{node.name}.")
        else:
            yield from _functions(node, outer)


def _classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.ClassDef))


def _methods(made: ast.ClassDef) -> Iterator[Function]:
    return (node for node in made.body if isinstance(node, Function))


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _stores(method: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            yield node


def _assigned(method: ast.AST) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes that assignments set, each with the value, also those of a tuple of targets."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        yield from ((to, value) for to, value in pairs if isinstance(to, ast.Attribute))


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value is None, or an empty text, tuple, list or dict."""
    if isinstance(value, ast.Constant):
        return value.value in (None, "", b"")
    if isinstance(value, ast.Tuple | ast.List):
        return not value.elts
    return isinstance(value, ast.Dict) and not value.keys


def found() -> set[str]:
    """Return the places of `server/`, each as module, function and attribute."""
    places = set[str]()
    for path in sorted((ROOT / "server").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for rule in (filled_from_outside, filled_later, looked_up_later):
            places.update(f"{path.relative_to(ROOT)}: {place}" for place in rule(tree))
    return places


@pytest.mark.slow
def test_objects_are_whole_once_they_are_made() -> None:
    assert found() == PLACES.keys()


def test_each_place_that_is_left_has_its_reason() -> None:
    assert [place for place, why in PLACES.items() if not why] == []


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ("node.close = close", ["f: node.close"]),
        ("self.node.close = close", ["f: self.node.close"]),
        ("a.on_lost, b.on_id = lost, renumbered", ["f: a.on_lost", "f: b.on_id"]),
        ("counters.lost += 1", ["f: counters.lost"]),
        ("def inner():\n  node.close = close", ["f: node.close"]),
        ("self.close = node.close", []),
        ("node.closes[name] = close", []),
    ],
)
def test_fields_that_others_fill_are_found(body: str, places: list[str]) -> None:
    tree = ast.parse("def f(self):\n" + "\n".join(f" {line}" for line in body.splitlines()))
    assert list(filled_from_outside(tree)) == places


@pytest.mark.parametrize(
    ("first", "later", "is_found"),
    [
        ("self.x = None", "self.x = 1", True),
        ("self.x: Any = None", "self.x = 1", True),
        ("self.x = self.y = None", "self.x = 1", True),
        ("self.x, self.y = None, 1", "self.x = 1", True),
        ("self.x = ''", "self.x = 'a'", True),
        ("self.x = {}", "self.x, y = {1: 2}, 3", True),
        ("self.x = {}", "self.x[1] = 2", False),
        ("self.x = 0", "self.x = 1", False),
        ("self.x = None", "y.x = 1", False),
        ("self.x = None", "self.y = 1", False),
    ],
)
def test_fields_that_are_filled_later_are_found(first: str, later: str, is_found: bool) -> None:
    tree = ast.parse(f"class A:\n  def begin(self):\n    {later}\n  def __init__(self):\n    {first}")
    assert list(filled_later(tree)) == (["A.begin: self.x"] if is_found else [])


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("b(lambda: self.x.go())\n    self.x = 1", True),
        ("self.x = no_op\n    b(lambda: self.x())", True),
        ("self.x = 1\n    b(lambda _: self.x.go())", False),
        ("b(lambda _: self.go())", False),
    ],
)
def test_lambdas_that_hide_the_order_are_found(body: str, is_found: bool) -> None:
    tree = ast.parse(f"class A:\n  def __init__(self):\n    {body}")
    assert list(looked_up_later(tree)) == (["A.__init__: lambda of self.x"] if is_found else [])
