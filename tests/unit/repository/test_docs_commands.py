"""Commands that the documentation, the chart and our own messages name exist, with the flags that are given to them.

A `bmq` command in a block of shell lines must parse as it stands.  One that is quoted within a sentence may leave its
arguments out; its subcommand and flags must be there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from bmq.cli.parsers.tree import build_parser

ROOT = Path(__file__).resolve().parents[3]
ROOMS = (
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
)
_SHELL = re.compile(r"^( *)```(?:sh|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"(?<!`)(`+)(?!`)((?:[^\n]|\n(?!\n))+?)(?<!`)\1(?!`)")
_SUBSTITUTION = re.compile(r"\$\([^()]*\)")
_ENDS = re.compile(r"[|&;<>()]+")
_LEFT_OUT = ("...", "…")
_TARGET = re.compile(r"^ *(?:[A-Z_]+=\S+ )*make ([a-z][a-z-]*)", re.MULTILINE)


def pages() -> list[Path]:
    """Return what an operator or a developer reads: pages, the chart's and the packages' files."""
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".md", ".txt", ".yaml", ".service")]
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *deployed])


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of shell lines: what stands between pipes, `&&` and line ends."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(_SUBSTITUTION.sub("VALUE", line), posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if _ENDS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def of_bmq(words: list[str]) -> list[str] | None:
    """Return the arguments if this is a `bmq` command, also one with settings (`A=b bmq …`) or a folder before it."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words[1:] if words and words[0].rpartition("/")[2] == "bmq" else None


def run_in_blocks(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each `bmq` command in the page's blocks of shell lines."""
    for _, block in _SHELL.findall(page):
        for words in simple_commands(block):
            arguments = of_bmq(words)
            if arguments is not None:
                yield arguments


def quoted_in_text(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each `bmq` command between backquotes."""
    for _, text in _QUOTED.findall(_FENCE.sub("", page)):
        for words in simple_commands(text.replace("\n", " ").replace("\\|", "|").replace("'", "’")):
            arguments = of_bmq(words)
            if arguments:
                yield arguments


@cache
def _root() -> argparse.ArgumentParser:
    return build_parser()


def refusal(arguments: list[str]) -> str:
    """Return what `bmq` says against these arguments; empty if nothing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            _root().parse_args(arguments)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


def unknown_in(arguments: list[str]) -> list[str]:
    """Return the subcommands and flags among these words that there are not."""
    parser, words = _root(), list(arguments)
    while words and (commands := _commands_of(parser)) and not words[0].startswith("-"):
        names = words.pop(0).rstrip(",.:").split("|")  # `drain|balance`: one of them
        if names[0] in _LEFT_OUT or names[0].isupper():
            return []
        if missing := [name for name in names if name not in commands]:
            return missing
        parser = commands[names[0]]
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
    return [flag for flag in flags if flag not in _flags_of(parser)]


def _flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the flags of a command and of its subcommands: `bmq cluster --http` speaks of all of these."""
    below = [_flags_of(each) for each in _commands_of(parser).values()]
    return set(parser._option_string_actions).union(*below)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


IN_BLOCKS = sorted(
    {(str(page.relative_to(ROOT)), tuple(each)) for page in pages() for each in run_in_blocks(page.read_text())}
)


@pytest.mark.parametrize(("page", "arguments"), IN_BLOCKS, ids=lambda value: value if isinstance(value, str) else None)
def test_a_command_in_a_block_parses_as_it_stands(page: str, arguments: tuple[str, ...]) -> None:
    if arguments != ("serve", "..."):
        assert refusal(list(arguments)) == "", f"{page}: bmq {' '.join(arguments)}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_a_page_quotes_exists(page: Path) -> None:
    found = {" ".join(each): unknown_in(each) for each in quoted_in_text(page.read_text())}
    assert {text: unknown for text, unknown in found.items() if unknown} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_command_that_our_own_messages_quote_exists(room: str) -> None:
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text())  # adjacent literals made one
        for text in re.findall(r"`+(bmq [a-z][^`{\n]*)", joined):
            arguments = text.split()[1:]
            if unknown_in(arguments):
                found[f"{path.relative_to(ROOT)}: {text}"] = unknown_in(arguments)
    assert found == {}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_target_of_make_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    code = [*_FENCE.findall(text), *(quoted for _, quoted in _QUOTED.findall(_FENCE.sub("", text)))]
    named = {name for each in code for name in _TARGET.findall(each)}
    assert named - targets == set()


def test_what_does_not_exist_is_found() -> None:
    page = "Say `bmq topic lost` or `bmq topic list --jsn`.\n\n"
    page += "```sh\nA=b x/bmq serve --lost \\\n  1 && bmq health | cat\n```\n"
    assert [unknown_in(each) for each in quoted_in_text(page)] == [["lost"], ["--jsn"]]
    blocks = list(run_in_blocks(page))
    assert blocks == [["serve", "--lost", "1"], ["health"]]
    assert "unrecognized arguments: --lost 1" in refusal(blocks[0])
    assert refusal(blocks[1]) == ""


def test_there_are_commands() -> None:
    assert len(IN_BLOCKS) > 40
