"""The ``bmq`` command: one parser, a module for each subcommand.

A subcommand is a module with ``add_parser``, which sets ``run`` to a function from the parsed arguments to the exit
status.  Here is the part that all commands share: the version, a reader that goes away (``bmq ... | head``), and
Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bmq.cli.output import fail
from bmq.core.options import meant
from bmq.core.version import VERSION

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_NOT_WRITTEN = 1
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_DESCRIPTION = """\
BMQ is a message queue that speaks Kafka's protocol and keeps its log on HDFS.

Without any setting `bmq serve` serves Kafka clients on 127.0.0.1:9092, with its data in ./bmq-data.
"""


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


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line.  Imports the sub-commands, which takes half a second."""
    from bmq.cli import acl, completion, health, job, quota, serve, topic
    from bmq.cli.cluster import command as cluster
    from bmq.cli.group import command as group
    from bmq.cli.profile import command as profile
    from bmq.cli.records import consume, produce
    from bmq.cli.segment import command as segment
    from bmq.cli.transaction import command as transaction

    parser: argparse.ArgumentParser = _Parser(
        prog="bmq",
        description=_DESCRIPTION,
        epilog="Each command explains itself: bmq COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bmq {VERSION}")
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for command in (serve, topic, produce, consume, group, transaction, acl, quota, cluster, segment, job, profile):
        command.add_parser(commands)
    completion.add_parser(commands, parser)
    health.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (None: the process's) and return the exit status."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 still gets every line
    try:
        arguments = build_parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        _discard_output()
        return fail(f"cannot write: {error.strerror}", status=EXIT_NOT_WRITTEN)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def _discard_output() -> None:
    """Point standard output to /dev/null: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Open standard streams that the caller has closed (``<&-``) as /dev/null; Python has None in their place."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - open as long as the process
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
