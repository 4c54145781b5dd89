"""The log lines of the server, read from its source: level, text, fields, and where each stands."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).resolve().parent.parent
ROOMS = (
    "broker",
    "cli",
    "console",
    "controller",
    "coordinator",
    "core",
    "endpoint",
    "meta",
    "proxy",
    "server",
    "storage",
)
"""Rooms of the server; Spark's driver and workers log by Spark's settings."""
LOGGERS = ("log", "_log", "logger")
LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
PARTITION = frozenset({"topic", "partition"})
CONNECTION = frozenset({"connection", "client_id"})
REPORTS: dict[str, tuple[str, frozenset[str]]] = {
    "report": ("ERROR", frozenset()),
    "_report": ("ERROR", frozenset()),
    "_lost": ("ERROR", PARTITION | {"path"}),
    "_failed": ("WARNING", frozenset({"path", "error"})),
}
"""Methods that write the text that they are given: the broker's reports and its janitor's warnings."""
OF_A_SEGMENT = {"broker/partition/recovery.py": PARTITION | {"path", "error"}, "broker/files/closing.py": PARTITION}
"""Fields that these files' ``_report`` adds."""
_ABOUT = {"log_fields": PARTITION, "_about": CONNECTION}


_Texts = list[tuple[int, str, str]]


class LogEvent(NamedTuple):
    """One place that writes a line."""

    path: str
    line: int
    level: str
    text: str
    """Empty where it is not a constant."""
    fields: frozenset[str]
    has_fields: bool


@functools.cache
def events() -> tuple[LogEvent, ...]:
    """Read all of them, in the order of files and lines."""
    paths = [path for room in ROOMS for path in sorted((TREE / room).rglob("*.py"))]
    found = [event for path in paths for event in of_source(str(path.relative_to(TREE)), path.read_text())]
    return tuple(sorted(found, key=lambda event: event[:2]))


def of_source(path: str, source: str) -> Iterator[LogEvent]:
    """Read those of one file."""
    if not any(f".{name}(" in source for name in (*LEVELS, *REPORTS)) and "_log." not in source:
        return
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            texts = _constants(function)
            for node in _own_nodes(function):
                if isinstance(node, ast.Call) and (event := _event(path, node, texts)) is not None:
                    yield event


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Walk what is in the function and not in one inside it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(node)


def _constants(function: ast.AST) -> _Texts:
    found: _Texts = []
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (text := _text(node.value, [])):
            found.append((node.lineno, node.targets[0].id, text))
    return sorted(found)


def _text(node: ast.expr, texts: _Texts) -> str:
    """Return a constant, or the one that the name was given last above."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.Name):
        return ""
    return next((text for line, name, text in reversed(texts) if name == node.id and line <= node.lineno), "")


def _event(path: str, call: ast.Call, texts: _Texts) -> LogEvent | None:
    function = call.func
    if not call.args:
        return None
    if isinstance(function, ast.Attribute) and _last_name(function.value) in LOGGERS and function.attr in LEVELS:
        extra = next((each.value for each in call.keywords if each.arg == "extra"), None)
        given = extra.keywords if isinstance(extra, ast.Call) else []
        return _made(path, call, LEVELS[function.attr], _text(call.args[0], texts), given, extra is not None)
    if path.startswith("broker/") and (found := _reported(call)) is not None:
        name, arguments = found
        level, known = REPORTS[name]
        if name == "_report":
            known = OF_A_SEGMENT.get(path, known)
        text = _text(arguments[0], texts)
        if text:
            made = _made(path, call, level, text, call.keywords, True)
            return made._replace(fields=made.fields | known)
    return None


def _reported(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """Return the method that is called with a text, or bound to one, and its arguments."""
    function, arguments = call.func, call.args
    if isinstance(function, ast.Name) and function.id == "partial":
        function, arguments = arguments[0], arguments[1:]
    if isinstance(function, ast.Attribute) and function.attr in REPORTS and arguments:
        return function.attr, arguments
    return None


def _made(path: str, call: ast.Call, level: str, text: str, given: list[ast.keyword], has_fields: bool) -> LogEvent:
    names = {each.arg for each in given if each.arg is not None}
    for each in given:
        if each.arg is None:
            names |= _ABOUT.get(_last_name(each.value), frozenset())
    return LogEvent(path, call.lineno, level, text, frozenset(names), has_fields)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
