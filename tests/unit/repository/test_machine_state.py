"""State of the product's state machines: only the module of a machine's data writes it.

Transitions, drivers and whoever else has a machine call its methods, which keep together what must change together.
What is looked at, in each module but the machine's own: parameters of the machine's class, `self` of a class that
derives from it, attributes that hold a machine, and local names for parts of these.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bmq.broker.partition.owned_log import OwnedLog
from tests.log_events import ROOMS, TREE
from tests.machine_tables import ASSIGNED, AUTHENTICATION, JOURNAL, MEMBER, PARTITION, ROUTE, TRANSACTION

KINDS = [machine.kind for machine in (PARTITION, JOURNAL, ASSIGNED, MEMBER, ROUTE, TRANSACTION, AUTHENTICATION)]
HOLDERS = {"PartitionMachine": "machine", "JournalMachine": "_machine", "AuthenticationMachine": "_machine"}
"""The attribute by which other objects hold a machine of the class."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[Path, str]:
    return {path.resolve(): path.read_text() for room in ROOMS for path in (TREE / room).rglob("*.py")}


def home(kind: type) -> type:
    """Return the class that has the machine's data: the class itself, or a base of it."""
    return next(each for each in kind.__mro__ if "__init__" in vars(each))


@cache
def fields(kind: type) -> frozenset[str]:
    """Return the attributes that the class itself assigns."""
    return frozenset(node.attr for node in _stored(ast.parse(textwrap.dedent(inspect.getsource(kind)))))


def _stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node


def writes(source: str, kind: type) -> Iterator[str]:
    """Yield each statement that writes to a machine of ``kind``, and each read of what is private to it."""
    names = {each.__name__ for each in kind.__mro__} - {"object"}
    holder = HOLDERS.get(kind.__name__, "")
    if not any(text in source for text in (*names, *([f".{holder}."] if holder else ()))):
        return
    tree = ast.parse(source)
    derived = {
        id(function)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and names & {ast.unparse(base) for base in node.bases}
        for function in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, Function):
            parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            machines = {each.arg for each in parameters if each.annotation and ast.unparse(each.annotation) in names}
            yield from _Writes(machines, fields(home(kind)) if id(node) in derived else frozenset(), holder).of(node)


class _Writes:
    """The writes of one function to machines.

    ``names``: parameters that are machines. ``own``: the machine's attributes if ``self`` is one. ``holder``: the
    attribute that holds one.
    """

    def __init__(self, names: set[str], own: frozenset[str], holder: str) -> None:
        self._names = names
        self._own = own
        self._holder = holder

    def of(self, function: Function) -> Iterator[str]:
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._names |= {name.id for name, value in _pairs(target, node.value) if self._is_part(value)}
        for node in ast.walk(function):
            for target in _targets(node):
                if isinstance(target, ast.Attribute | ast.Subscript) and self._is_written(target):
                    yield ast.unparse(node)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and self._is_private(node):
                yield ast.unparse(node)

    def _is_written(self, target: ast.Attribute | ast.Subscript) -> bool:
        return self._is_part(target.value) or self._is_own(target)

    def _is_private(self, node: ast.Attribute) -> bool:
        return node.attr.startswith("_") and node.attr != self._holder and self._is_part(node.value)

    def _is_part(self, node: ast.expr) -> bool:
        """Return whether the expression is a machine, or what is reached from it by attributes and items."""
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.Attribute | ast.Subscript):
            is_held = isinstance(node, ast.Attribute) and node.attr == self._holder
            return is_held or self._is_own(node) or self._is_part(node.value)
        return False

    def _is_own(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self" and node.attr in self._own


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        for each in node.targets:
            yield from each.elts if isinstance(each, ast.Tuple | ast.List) else [each]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    both = (
        zip(target.elts, value.elts, strict=True)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        else [(target, value)]
    )
    yield from ((name, each) for name, each in both if isinstance(name, ast.Name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_the_module_of_a_machines_data_writes_it(kind: type) -> None:
    own = Path(inspect.getfile(home(kind))).resolve()
    found = {
        str(path.relative_to(TREE)): statements
        for path, source in sources().items()
        if path != own and (statements := list(writes(source, kind)))
    }
    assert found == {}


def test_each_attribute_of_a_partitions_log_is_private_or_final() -> None:
    tree = ast.parse(inspect.getsource(OwnedLog))
    final = {
        ast.unparse(node.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Final"
    }
    public = {ast.unparse(node) for node in _stored(tree) if not node.attr.startswith("_")}
    assert "self.batches" in public
    assert public - final == set()


@pytest.mark.parametrize(
    "body",
    [
        "machine.state = 1",
        "machine.state, other = 1, 2",
        "machine.failures += 1",
        "machine.next_segment.last_bytes = 1",
        "del machine.current",
        "segment = machine.current\n    segment.opened_ms = 1",
        "first, segment = 1, machine.current\n    segment.flushed += 1",
        "driver.machine.current = None",
        "partition = driver.machine\n    partition.log_start = 1",
        "return machine._state",
    ],
)
def test_a_write_is_found(body: str) -> None:
    source = f"def on_event(machine: OwnedLog, driver: PartitionDriver) -> None:\n    {body}\n"
    assert len(list(writes(source, PARTITION.kind))) == 1


def test_a_subclass_reads_what_is_private_and_writes_nothing() -> None:
    source = "class A(OwnedLog):\n    def f(self) -> None:\n        self._state = 1\n        return self._state\n"
    assert list(writes(source, PARTITION.kind)) == ["self._state = 1"]


def test_a_read_and_a_call_are_no_write() -> None:
    source = "def f(machine: OwnedLog) -> None:\n    state = machine.state\n    machine.open()\n    mine.x = state\n"
    assert list(writes(source, PARTITION.kind)) == []
