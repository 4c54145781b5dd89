"""Names and forms inside bodies, counted against a bound that only falls: ``python -m tests.voice_names``.

Four kinds of departures from the house's words, all of which a program finds:

``logger``   a module's logger that is not ``_log``, or is neither ``__name__``'s nor one of ``LOGGERS``
``quoting``  code in a docstring between single backticks; the house writes double backticks
``names``    a variable, parameter, attribute or function with a word of ``WORDS``, which has a better name
``parts``    a longer name, also of a class, with such a word, or its plural, in it: ``_answer_all``, ``AnswerQueue``

Each folder has its bounds in ``tests/voice_names.toml``; a folder without a bound has none of the kind.  A change may
lower a bound, by ``--lower``, and never raise it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.voice import ROOT, files
from tests.voice_sentences import ROOMS as PRODUCT

ROOMS = (*PRODUCT, "tests")
BOUNDS = ROOT / "tests" / "voice_names.toml"
KINDS = ("logger", "quoting", "names", "parts")
LOGGERS = frozenset({
    "bmq", "bmq.audit", "bmq.authorizer", "bmq.broker", "bmq.proxy", "bmq.root", "bmq.spark",
})  # fmt: skip
"""Loggers of several modules, by which operators set levels and search the log."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of a name in snake_case or CamelCase."""
_SINGLE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")

Bounds = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Word:
    """A word that bodies should not have, and the word to write."""

    word: str
    better: str
    rooms: tuple[str, ...] = PRODUCT
    """The rooms that the word is unwanted in."""
    value: str = ""
    """Regular expression of the value or annotation that gives the word this meaning; empty: each value."""
    is_part: bool = False
    """True if the word is unwanted in longer names too, whatever their value."""

    def is_in(self, name: str) -> bool:
        """Return whether a longer name has the word or its plural."""
        words = [each.lower() for each in _WORD.findall(name)]
        return name.lstrip("_") != self.word and (self.word in words or f"{self.word}s" in words)


WORDS = (
    Word("answer", "response", ROOMS, is_part=True),
    Word("handed", "release_note", ROOMS),
    Word("told", "the content: message, notified, sent ...", ("tests",), is_part=True),
    Word("shared", "context", ("broker", "server"), r"\b\w+Context\b|(^|\.)_?shared$"),
    Word("partition", "machine", ("broker",), r"\bPartitionMachine\b|\.machine$"),
)


@dataclass(frozen=True, slots=True)
class Departure:
    """One place that departs from the house's words."""

    folder: str
    place: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the departures with their bounds, print the folders that are over, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.voice_names", description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", default=[*ROOMS], help="rooms to read; all by default")
    parser.add_argument("--list", action="store_true", help="print every departure, also below the bounds")
    parser.add_argument("--lower", action="store_true", help="write today's numbers where they are below the bounds")
    options = parser.parse_args(arguments)
    bounds = tomllib.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    found = [each for room in options.rooms for each in departures(room)]
    numbers = count(found)
    over = set(exceeded(numbers, bounds))
    for each in found:
        if options.list or (each.folder, each.kind) in over:
            sys.stdout.write(f"{each}\n")
    for folder, kind in sorted(over):
        bound = bounds.get(folder, {}).get(kind, 0)
        sys.stdout.write(f"{folder}: {numbers[folder][kind]} of the kind {kind!r}, at most {bound} may be\n")
    if options.lower:
        BOUNDS.write_text(_written(lowered(numbers, bounds, options.rooms)))
    return 1 if over else 0


def count(found: Sequence[Departure]) -> dict[str, Counter[str]]:
    """Return the number of departures of each kind, by folder."""
    numbers: dict[str, Counter[str]] = {}
    for each in found:
        numbers.setdefault(each.folder, Counter())[each.kind] += 1
    return numbers


def exceeded(numbers: Bounds, bounds: Bounds) -> Iterator[tuple[str, str]]:
    """Yield the folder and kind of each number over its bound, which is 0 if none is written."""
    for folder, kinds in numbers.items():
        for kind, number in kinds.items():
            if number > bounds.get(folder, {}).get(kind, 0):
                yield folder, kind


def lowered(numbers: Bounds, bounds: Bounds, rooms: Sequence[str] = ROOMS) -> dict[str, dict[str, int]]:
    """Return the bounds, with today's numbers of these rooms where they are lower; without bounds of 0."""
    new = {}
    for folder, kinds in bounds.items():
        is_read = folder.split("/")[0] in rooms
        today = numbers.get(folder, {}) if is_read else kinds
        left = {kind: least for kind, bound in kinds.items() if (least := min(bound, today.get(kind, 0)))}
        if left:
            new[folder] = left
    return new


def departures(room: str) -> Iterator[Departure]:
    """Yield the departures of a room's files."""
    for path in files([room]):
        name = path.relative_to(ROOT)
        for line, kind, text in of_source(room, path.read_text()):
            yield Departure(str(name.parent), f"{name}:{line}", kind, text)


def of_source(room: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each departure of a module; the product alone is judged by logger and quoting."""
    tree = ast.parse(source)
    is_product = room in PRODUCT
    if is_product:
        for statement in tree.body:
            if fault := logger_fault(statement):
                yield statement.lineno, "logger", fault
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if is_product:
                for quoted in _SINGLE.findall(node.value.value):
                    yield node.lineno, "quoting", f"{quoted} is written `{quoted}`"
        else:
            for line, name, value in bindings(node):
                for word in WORDS:
                    if room in word.rooms and name.lstrip("_") == word.word and re.search(word.value, value):
                        yield line, "names", f"{name}: write {word.better}"
                    if room in word.rooms and word.is_part and word.is_in(name):
                        yield line, "parts", f"{name}: write {word.better}"


def logger_fault(statement: ast.stmt) -> str:
    """Return why a module's logger departs from the idiom; empty if it does not, or if it is no logger."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return ""
    if ast.unparse(statement.value.func) not in ("logging.getLogger", "getLogger"):
        return ""
    target, argument = ast.unparse(statement.targets[0]), ast.unparse(ast.Tuple(statement.value.args))
    if argument.startswith("(f'{__name__}."):  # a further logger of the module
        return ""
    name = next((each.value for each in statement.value.args if isinstance(each, ast.Constant)), None)
    if target == "_log" and (argument == "(__name__,)" or name in LOGGERS):
        return ""
    return f"{ast.unparse(statement)}: write _log = logging.getLogger(__name__), or a name of LOGGERS"


def bindings(node: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line and name of each name that a node binds, with the text of its annotation or value; "" without both."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign):
        yield from ((line, name, ast.unparse(node.annotation)) for line, name in _names(node.target))
    elif isinstance(node, ast.NamedExpr):
        yield from _pairs(node.target, node.value)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from ((line, name, "") for line, name in _names(node.target))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from ((line, name, "") for line, name in _names(node.optional_vars))
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg, ast.unparse(node.annotation) if node.annotation is not None else ""
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.lineno, node.name, ""


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[int, str, str]]:
    """Yield the names of an assignment's target, in a tuple each with its own value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, its)
    else:
        yield from ((line, name, ast.unparse(value)) for line, name in _names(target))


def _names(target: ast.expr) -> Iterator[tuple[int, str]]:
    if isinstance(target, ast.Name):
        yield target.lineno, target.id
    elif isinstance(target, ast.Attribute):
        yield target.lineno, target.attr
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names(each)
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)


def _written(bounds: Bounds) -> str:
    lines = [
        "# Departures from the house's words, by folder: `python -m tests.voice_names --lower` lowers, nothing raises."
    ]
    for folder, kinds in sorted(bounds.items()):
        lines += ["", f'["{folder}"]', *(f"{kind} = {kinds[kind]}" for kind in KINDS if kind in kinds)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
