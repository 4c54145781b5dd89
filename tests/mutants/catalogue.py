"""The list of mutations, `mutations.toml`: read, and applied to a tree.

A mutation replaces a text that stands exactly once in its file.  When the code has changed so that it does not, that is
an error: the list follows the code or the unit tests fail.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).parent / "mutations.toml"


class StaleMutation(ValueError):
    """A mutation that no longer fits the code."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake.  `rule` is that of docs/design/rules.md; `killed_by` is `path::test`, a fast test."""

    name: str
    rule: int
    file: str
    old: str
    new: str
    breaks: str
    killed_by: str

    def applied(self, text: str) -> str:
        """Return the file's text with the mistake in it.  Raises StaleMutation."""
        count = text.count(self.old)
        if count != 1:
            raise StaleMutation(f"{self.name}: its old text stands {count} times in {self.file}, not once")
        mutated = text.replace(self.old, self.new)
        if not _differ(text, mutated):
            raise StaleMutation(f"{self.name}: changes nothing in {self.file}")
        return mutated


def _differ(text: str, other: str) -> bool:
    """Return whether two modules differ by more than comments and layout."""
    before, after = _statements(text), _statements(other)
    if len(before) != len(after):
        return True
    return any(
        ours != theirs and ast.dump(statement) != ast.dump(changed)
        for (ours, statement), (theirs, changed) in zip(before, after, strict=True)
    )


def _statements(text: str) -> list[tuple[list[str], ast.stmt]]:
    """Return each statement at the top of a module, with its lines."""
    lines = text.splitlines()
    return [(lines[_first_line(node) - 1 : node.end_lineno], node) for node in ast.parse(text).body]


def _first_line(node: ast.stmt) -> int:
    """Return the line of a statement, or of its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def read_list(path: Path = LIST) -> list[Mutation]:
    """Return all mutations, by rule.  Raises TypeError for a field that is missing or not known."""
    listed = tomllib.loads(path.read_text())["mutation"]
    return sorted((Mutation(**fields) for fields in listed), key=lambda mutation: mutation.rule)
