"""The sentences that stop a reader, counted against a bound that only falls: ``python -m tests.voice_sentences``.

The house writes for engineers who read English as a second language (CONTRIBUTING.md, "Names and voice").  Three kinds
of sentences stop them, and a program can find all three:

``pro-forms``  two or more of ``PRO_FORMS``, where a noun would say what is meant
``long``       more than ``WORDS_MAX`` words
``subject``    a sentence, but the first of its text, whose first word points back (``OPENERS``)

The texts are the docstrings of the product, its log lines and exceptions, the pages of ``docs/``, the ``FRONT_PAGES``,
and the cells of the tables of all pages.  Each folder has its bounds in ``tests/voice_bounds.toml``.  A change may
lower a bound, by ``--lower``, and never raise it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.voice import LEVELS, ROOT, files

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
    "spark",
    "storage",
)
PAGES = "docs"
FRONT, TABLES = "front", "tables"
"""Names that stand for a folder: the prose of ``FRONT_PAGES``, and the cells of the tables of all pages."""
FRONT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/helm/bmq/README.md")
BOUNDS = ROOT / "tests" / "voice_bounds.toml"
PRO_FORMS = frozenset({"that", "those", "one", "ones", "which", "each", "what", "such"})
PRO_FORMS_MAX = 1
WORDS_MAX = 30
OPENERS = frozenset({
    "how", "of", "one", "ones", "that", "them", "these", "this", "those", "what", "whatever", "which", "who", "whoever",
    "whom", "whose",
})  # fmt: skip
"""First words of a sentence that point to a thing and do not name it."""
KINDS = ("pro-forms", "long", "subject")
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_END = re.compile(r"(?<=[.!?;:])\s+(?=[A-Z`\"(*\[])|\n\s*\n|\n\s*[*-] |\n\s*\d+\. ")
_ITEM = re.compile(r"^([*-]|\d+\.) ")
_NOT_PROSE = re.compile(r"^(.*\S {3,}\S|\s*[|+]|\s*[=\-+ ]{3,}$|\s*#|\s*<!--|\s{4,}\S|\s*>>>|\s*:\w+:)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_DRAWN = re.compile(r"<!-- drawn from the code.*?<!-- end.*?-->", re.DOTALL)
_RULE = re.compile(r"^\|[-|: ]+$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, with the kinds that it is of, and how bad it is."""

    place: str
    sentence: str
    kinds: tuple[str, ...]
    badness: int

    def __str__(self) -> str:
        return f"{self.place}: {', '.join(self.kinds)}: {self.sentence}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the sentences with their bounds, print the folders that are over, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.voice_sentences", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folders", nargs="*", default=[*ROOMS, PAGES, FRONT, TABLES], help="folders to read; all by default"
    )
    parser.add_argument("--worst", type=int, metavar="N", default=0, help="print the N worst sentences")
    parser.add_argument("--lower", action="store_true", help="write today's numbers where they are below the bounds")
    options = parser.parse_args(arguments)
    bounds = tomllib.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    found = {folder: list(findings(folder)) for folder in options.folders}
    worst = sorted((each for of in found.values() for each in of), key=lambda each: (-each.badness, each.place))
    for each in worst[: options.worst]:
        sys.stdout.write(f"{each}\n")
    numbers = {folder: count(of) for folder, of in found.items()}
    over = list(exceeded(numbers, bounds))
    for line in over:
        sys.stdout.write(f"{line}\n")
    if options.lower:
        BOUNDS.write_text(_written(lowered(numbers, bounds)))
    return 1 if over else 0


def count(found: Sequence[Finding]) -> dict[str, int]:
    """Return the number of sentences of each kind."""
    kinds = Counter(kind for each in found for kind in each.kinds)
    return {kind: kinds[kind] for kind in KINDS}


def exceeded(numbers: dict[str, dict[str, int]], bounds: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield a line for each folder and kind with more sentences than its bound, which is 0 if none is written."""
    for folder, kinds in numbers.items():
        for kind, number in kinds.items():
            bound = bounds.get(folder, {}).get(kind, 0)
            if number > bound:
                yield (
                    f"{folder}: {number} sentences of the kind {kind!r}, at most {bound} may be: rewrite the new ones;"
                    f" `python -m tests.voice_sentences {folder} --worst 40` prints the worst"
                )


def lowered(numbers: dict[str, dict[str, int]], bounds: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the bounds, with today's numbers where they are lower; a folder without a bound gets today's numbers."""
    new = {folder: dict(kinds) for folder, kinds in bounds.items()}
    for folder, kinds in numbers.items():
        old = new.setdefault(folder, kinds)
        new[folder] = {kind: min(number, old.get(kind, number)) for kind, number in kinds.items()}
    return new


def findings(folder: str) -> Iterator[Finding]:
    """Yield the sentences of a folder that stop a reader."""
    for path in _paths(folder):
        for line, text in cells(path) if folder == TABLES else texts(path):
            place = f"{path.relative_to(ROOT)}:{line}"
            for number, sentence in enumerate(sentences(text)):
                kinds, badness = judge(sentence, is_first=number == 0)
                if kinds:
                    yield Finding(place, sentence, kinds, badness)


def _paths(folder: str) -> list[Path]:
    front = [ROOT / page for page in FRONT_PAGES]
    pages = sorted((ROOT / PAGES).rglob("*.md"))
    return {FRONT: front, TABLES: front + pages, PAGES: pages}.get(folder) or list(files([folder]))


def judge(sentence: str, *, is_first: bool) -> tuple[tuple[str, ...], int]:
    """Return the kinds of a sentence, and its badness: words past the bound, and ten for each pro-form past its own.

    The first sentence of a docstring is judged by ``tests.voice`` for its first word.
    """
    words = [word.lower() for word in _WORD.findall(sentence)]
    pro_forms = sum(word in PRO_FORMS for word in words)
    kinds, badness = [], 0
    if pro_forms > PRO_FORMS_MAX:
        kinds.append("pro-forms")
        badness += 10 * (pro_forms - PRO_FORMS_MAX)
    if len(words) > WORDS_MAX:
        kinds.append("long")
        badness += len(words) - WORDS_MAX
    if words and not is_first and words[0] in OPENERS:
        kinds.append("subject")
        badness += 5
    return tuple(kinds), badness


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without tables, code and headings; code within a sentence is one word."""
    prose = "\n".join("" if _NOT_PROSE.match(line) else line for line in text.split("\n"))
    prose = _LINK.sub(r"\1", _CODE.sub("Code", prose))
    found = (_ITEM.sub("", " ".join(part.split())) for part in _END.split(prose))
    return [part for part in found if _WORD.search(part)]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file, each with its line: of a page all of it, of a module docstrings, log lines, errors."""
    if path.suffix == ".md":
        yield 1, _without_code(path)
        return
    tree = ast.parse(path.read_text())
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Expr | ast.Raise | ast.Call))
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, _dedented(node.value.value)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from ((node.lineno, text) for each in node.exc.args if (text := _literal(each)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            yield from ((node.lineno, text) for each in node.args[:2] if (text := _literal(each)))


def cells(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the cells of a page's tables, each with its line, without the tables that are drawn from the code."""
    for number, line in enumerate(_without_code(page).split("\n"), 1):
        if line.startswith("|") and not _RULE.match(line):
            row = _CODE.sub("`code`", line).replace("\\|", " ").strip().strip("|")
            yield from ((number, cell.strip()) for cell in row.split("|"))


def _without_code(page: Path) -> str:
    """Return the text of a page, its code and all that is drawn replaced by empty lines."""
    text = page.read_text()
    for part in (_FENCE, _DRAWN):
        text = part.sub(lambda match: "\n" * match[0].count("\n"), text)
    return text


def _dedented(text: str) -> str:
    """Return a docstring without the indent of its lines after the first: tables and code keep theirs beyond that."""
    first, *rest = text.split("\n")
    indent = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    return "\n".join([first, *(line[indent:] for line in rest)])


def _literal(node: ast.expr) -> str:
    """Return the text of a string or an f-string, its values as one word; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(each) if isinstance(each, ast.Constant) else "Value" for each in node.values)
    return ""


def _written(bounds: dict[str, dict[str, int]]) -> str:
    lines = [
        "# Sentences that stop a reader, by folder: `python -m tests.voice_sentences --lower` lowers, nothing raises."
    ]
    for folder, kinds in sorted(bounds.items()):
        lines += ["", f"[{folder}]", *(f"{kind} = {number}" for kind, number in kinds.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
