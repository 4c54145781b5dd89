"""Files, or sections of them, that are drawn from elsewhere: comparing, writing, and Markdown's tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Drawn(NamedTuple):
    """One file: its path, its text as it is, and as it should be."""

    path: Path
    written: str
    drawn: str


def main(files: Iterable[Drawn], arguments: Sequence[str], usage: str) -> int:
    """Write the files that differ, or with ``--check`` name them; return the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"{usage}\n")
        return 2
    differing = [file for file in files if file.written != file.drawn]
    for file in differing:
        if arguments:
            sys.stderr.write(f"{file.path} differs from what it is drawn from: run `make docs-tables`\n")
        else:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.write_text(file.drawn)
            sys.stdout.write(f"{file.path} drawn again\n")
    return 1 if arguments and differing else 0


def replace_section(path: Path, text: str, begin: str, end: str, content: str) -> str:
    """Return `text` with `content` between the lines `begin` and `end`.  Raises ValueError if one is missing."""
    before, found, rest = text.partition(f"{begin}\n")
    _, found_end, after = rest.partition(f"{end}\n")
    if not (found and found_end):
        raise ValueError(f"{path} has no lines {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{content}\n{end}\n{after}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown; bars in cells are escaped."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
