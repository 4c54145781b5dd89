"""Lists inside a loop share the turns of the loop: read from the code of the whole project.

``map_in_turns`` counts the elements of its own list alone.  In a loop, lists of 999 elements never fill a turn, and 150
of them stop the event loop for 0.2 s.  There, ``Turns.map`` of one ``Turns`` that is made before the loop counts them
all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.log_events import ROOMS, TREE

OF_ONE_LIST = {"map_in_turns", "Turns"}
"""Calls that begin a count."""
Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def begun_in_loops(source: str) -> Iterator[int]:
    """Yield the lines of calls in loops that begin a count of elements.

    A loop's first iterable is read once, before the loop, and is no part of it.
    """
    for loop in ast.walk(ast.parse(source)):
        if not isinstance(loop, Loop):
            continue
        before: ast.AST | None = None
        if isinstance(loop, ast.For | ast.AsyncFor):
            before = loop.iter
        elif not isinstance(loop, ast.While):
            before = loop.generators[0].iter
        once = set() if before is None else set(ast.walk(before))
        for each in ast.walk(loop):
            if isinstance(each, ast.Call) and each not in once and _name(each) in OF_ONE_LIST:
                yield each.lineno


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


@pytest.mark.slow
def test_lists_in_a_loop_share_their_turns() -> None:
    found = [
        f"{path.relative_to(TREE)}:{line}"
        for room in ROOMS
        for path in sorted((TREE / room).rglob("*.py"))
        for line in begun_in_loops(path.read_text())
    ]
    assert found == [], "make one Turns before the loop, and use Turns.map"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("for each in topics:\n  await map_in_turns(f, each)", [2]),
        ("[await map_in_turns(f, each) for each in topics]", [1]),
        ("while True:\n  turns = Turns()", [2]),
        ("for each in await map_in_turns(f, topics):\n  g(each)", []),
        ("[g(each) for each in await map_in_turns(f, topics)]", []),
        ("turns = Turns()\nfor each in topics:\n  await turns.map(f, each)", []),
    ],
)
def test_the_loops_are_found(source: str, lines: list[int]) -> None:
    assert list(begun_in_loops(source)) == lines
