"""The parser of the whole command line: a table of commands, a module for each."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from bmq.cli.parsers.late import Late
from bmq.core.options import meant

_DESCRIPTION = """\
BMQ is a message queue that speaks Kafka's protocol and keeps its log on HDFS.

Without any setting `bmq serve` serves Kafka clients on 127.0.0.1:9092, with its data in ./bmq-data.
"""


COMMANDS: Mapping[str, str] = {
    "serve": "serve Kafka clients",
    "topic": "list, create, describe, alter or delete topics",
    "produce": "produce records from standard input or files",
    "consume": "print records of topics",
    "group": "list, describe or delete consumer groups, or set their offsets",
    "transaction": "list, describe or end transactions",
    "acl": "list, add or remove access control lists",
    "quota": "list, set or remove quotas, and bounds on what a user may own",
    "cluster": "show a cluster's processes, health and configs; drain, balance, move",
    "segment": "dump, verify, print or repair a log's files",
    "job": "a topic to a Parquet table, an audit or a compaction of it, with Spark",
    "profile": "name the clusters that you use, and choose one",
    "completion": "print a script that completes commands in bash or zsh",
    "health": "check the health of a server on this machine; for health checks that run a command",
}
"""The help of each command, in the order of ``bmq --help``.  A command's parser is in the module of its name here."""


_LIKENESS = 0.7
"""Least likeness of a command that is proposed for a wrong word: commands are short and few."""


class _Parser(argparse.ArgumentParser):
    """A parser that takes files and names before, between and after flags, and refuses unknown arguments itself.

    argparse takes all positional arguments from one place, so that ``bmq produce TOPIC --format raw FILE`` would refuse
    FILE.  And it passes a sub-command's unknown arguments up to ``bmq``, whose usage the error would then show.
    Parsers of sub-commands are of the same class.
    """

    _is_within = False
    """True while argparse calls back from parse_known_intermixed_args."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_within:
            return super().parse_known_args(args, namespace)
        if not self._takes_several_names() or "--" in args:  # after `--` everything is positional, as in argparse
            parsed, unknown = super().parse_known_args(args, namespace)
        else:
            self._is_within = True
            try:
                parsed, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_within = False
        if unknown:
            explain = self.get_default("explain_unknown") or (lambda _: "")
            self.error(f"unrecognized arguments: {' '.join(unknown)}{explain(unknown)}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError with the name of the intended command, or with the names of all commands."""
        names = action.choices
        if isinstance(action, argparse._SubParsersAction) and names is not None and value not in names:
            said = meant(str(value), names, likeness=_LIKENESS) or f"; there are {', '.join(names)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{said}")
        super()._check_value(action, value)

    def _takes_several_names(self) -> bool:
        """Return whether two positional arguments or more may be given, sub-commands not counted."""
        names = self._get_positional_actions()
        return self._subparsers is None and (len(names) > 1 or any(each.nargs in ("*", "+") for each in names))


class _PrintVersion(argparse._VersionAction):
    """The option ``--version``.  The version is read from the package's metadata only when it is printed."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        self.version = f"bmq {importlib.import_module('bmq.core.version').VERSION}"
        super().__call__(parser, namespace, None, option_string)


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line, with the options of the command ``chosen`` alone; None: of all commands.

    The other commands have a name and a help line: the modules of their parsers are not imported.
    """
    parser: argparse.ArgumentParser = _Parser(
        prog="bmq",
        description=_DESCRIPTION,
        epilog="Each command explains itself: bmq COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion)
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if chosen in (None, name):
            Late(f"bmq.cli.parsers.{name}", "add_parser")(commands, text)
        else:
            commands.add_parser(name, help=text)
    return parser


def chosen_command(words: Sequence[str]) -> str:
    """Return the first of the command line's ``words`` that is not an option; "" without such a word.

    No option of ``bmq`` itself takes a value, so this word is the name of the command.
    """
    return next((word for word in words if not word.startswith("-")), "")
