"""Effects for clients: no task of a handler outlives its request by a turn of the loop."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("proxy/handlers", "proxy/shards", "proxy/groups", "proxy/transactions", "proxy/partition_queries.py")
"""The code that serves one request of a client."""
LATER = {"create_task", "ensure_future", "TaskGroup", "shield", "OwnedTasks", "run_coroutine_threadsafe"}
"""Work that begins, or is cancelled, in a later turn than its caller: ``core.aio.children`` is for such work."""


def modules() -> list[Path]:
    found: list[Path] = []
    for room in ROOMS:
        path = ROOT / room
        found += [path] if path.suffix else sorted(path.rglob("*.py"))
    return found


def test_no_handler_starts_a_task_that_is_cancelled_in_a_later_turn() -> None:
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in LATER:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")  # type: ignore[attr-defined]
    assert not wrong, "use core.aio.children: after a standstill such a task sends what its client has given up"


def test_the_rooms_are_there() -> None:
    assert len(modules()) > 50
