"""The commands of a parser and their options, as data: for completion scripts and for docs/cli.md."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Iterator
from dataclasses import dataclass


class Value(enum.Enum):
    """The values that a shell can offer for an argument, besides a list of choices."""

    OTHER = "nothing"
    FILE = "names of files"
    PROFILE = "names of profiles"


@dataclass(frozen=True, slots=True)
class Argument:
    """An option (``names`` are its flags) or a positional argument (no names)."""

    names: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    value: Value
    takes_value: bool
    action: argparse.Action


@dataclass(frozen=True, slots=True)
class Command:
    """One parser: the words that lead to it, its sub-commands with their help, its arguments."""

    path: tuple[str, ...]
    parser: argparse.ArgumentParser
    commands: tuple[tuple[str, str], ...]
    options: tuple[Argument, ...]
    positionals: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """The words that lead to the command, separated by spaces."""
        return " ".join(self.path)

    def help_of(self, argument: Argument) -> str:
        """Return an argument's help in one line, with its default and other placeholders filled in."""
        expanded = self.parser._get_formatter()._expand_help(argument.action) if argument.action.help else ""
        return " ".join(expanded.split())


def walk(parser: argparse.ArgumentParser) -> Iterator[Command]:
    """Yield every command, each before its sub-commands, once for each of its names."""
    return _walk((parser.prog,), parser)


def _walk(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Command]:
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    arguments = [
        _argument(path, action)
        for action in parser._actions
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._SubParsersAction)
    ]
    children = [(name, child) for action in subs for name, child in action.choices.items()]
    help_of = {each.dest: each.help or "" for action in subs for each in action._choices_actions}
    by_parser = {id(child): help_of[name] for name, child in children if name in help_of}
    yield Command(
        path,
        parser,
        tuple((name, by_parser[id(child)]) for name, child in children),
        tuple(each for each in arguments if each.names),
        tuple(each for each in arguments if not each.names),
    )
    for name, child in children:
        yield from _walk((*path, name), child)


def _argument(path: tuple[str, ...], action: argparse.Action) -> Argument:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest
    value = Value.OTHER
    if "FILE" in metavar or "PATH" in metavar:
        value = Value.FILE
    elif "--profile" in action.option_strings or (
        "profile" in path and metavar == "NAME" and not action.option_strings
    ):
        value = Value.PROFILE
    return Argument(
        tuple(action.option_strings),
        metavar,
        tuple(map(str, action.choices or ())),
        value,
        action.nargs != 0,
        action,
    )
