"""The mechanical part of the house's voice (CONTRIBUTING.md), as a lint step: ``python -m tests.voice``.

Ruff's D401 checks that a function's docstring begins with an imperative verb.  This finds the rest that a program can
find: docstrings that begin as a riddle does, and log lines that speak of processes as of people.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS: tuple[str, ...] = (
    "bench",
    "broker",
    "cli",
    "console",
    "controller",
    "coordinator",
    "core",
    "demo",
    "endpoint",
    "meta",
    "proxy",
    "server",
    "spark",
    "storage",
    "tests",
)
"""Folders whose every docstring and log line was read by this rule."""
OPENERS = frozenset({
    "As", "For", "How", "If", "It", "Its", "Of", "That", "Them", "These", "They", "This", "Those", "Until", "What",
    "When", "Where", "Whether", "Which", "Who", "Whoever", "Whom", "Whose", "Why",
})  # fmt: skip
"""First words that name no subject, or begin a sentence whose subject comes last."""
PREPOSITIONS = frozenset({
    "About", "Above", "Across", "After", "Against", "Along", "Among", "Around", "At", "Before", "Behind", "Below",
    "Beneath", "Beside", "Besides", "Between", "Beyond", "By", "Despite", "During", "Except", "From", "In", "Inside",
    "Into", "Near", "On", "Onto", "Out", "Outside", "Over", "Past", "Per", "Since", "Through", "Throughout", "To",
    "Toward", "Towards", "Under", "Up", "Upon", "Via", "With", "Within", "Without",
})  # fmt: skip
"""First words that add to a subject before it is named, as if the docstring went on with the name of its function."""
PRONOUNS = re.compile(
    r"\b(?:he|she|him|her|his|hers|himself|we|us|our|ours|who|whom|whose|whoever|nobody|somebody|i|you|your)\b", re.I
)
EXCEPTION_ONLY = re.compile(r"[A-Z]\w+(?:, (?:or )?[A-Z]\w+)*\.?")
"""A docstring that names exceptions and nothing else."""
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


def main(arguments: list[str]) -> int:
    """Print what breaks the voice in the folders given, or in all of `ROOMS`, and return the exit status."""
    found = [line for path in files(arguments or list(ROOMS)) for line in faults(path)]
    for line in found:
        sys.stdout.write(f"{line}\n")
    return 1 if found else 0


def files(folders: list[str]) -> Iterator[Path]:
    """Give the Python files of these folders, except generated ones.

    Raises FileNotFoundError for a folder that is not there.
    """
    for folder in folders:
        if not (ROOT / folder).is_dir():
            raise FileNotFoundError(f"{folder} is not a folder of {ROOT}")
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if not path.stem.endswith("_pb2"))


def faults(path: Path) -> Iterator[str]:
    """Give one line, ``file:line: reason``, for each docstring and log line that breaks the voice."""
    name = path.relative_to(ROOT)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            reason = docstring_fault(ast.get_docstring(node) or "")
            if reason:
                yield f"{name}:{node.body[0].lineno}: {reason}"
        elif isinstance(node, ast.Call):
            reason = log_fault(node)
            if reason:
                yield f"{name}:{node.lineno}: {reason}"


def docstring_fault(text: str) -> str:
    """Return why a docstring breaks the voice; empty if it does not, or if there is none."""
    first, *_ = text.split("\n")
    word = re.match(r"[\w']*", first)
    if word is not None and word[0].split("'")[0] in OPENERS | PREPOSITIONS:
        return f"a docstring begins with {word[0]!r}: begin with a verb (functions) or a noun (classes, modules)"
    if EXCEPTION_ONLY.fullmatch(text) and text.rstrip(".").endswith(
        ("Error", "Unavailable", "Lost", "Failed", "Refused")
    ):
        return f"a docstring is nothing but {text!r}: say what is done, then Raises"
    return ""


def log_fault(call: ast.Call) -> str:
    """Return why the text of a log call breaks the voice; empty if it does not, or if it is no log call."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr in LEVELS and _is_logger(function.value)):
        return ""
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            pronoun = PRONOUNS.search(argument.value)
            if pronoun is not None:
                return f"a log line says {pronoun[0]!r}: name the subject, a process is 'it'"
    return ""


def _is_logger(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") in ("log", "logger", "report")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
