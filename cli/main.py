"""The ``bmq`` command: one parser, a module for each subcommand.

A subcommand is a module with ``add_parser``, which sets ``run`` to a function from the parsed arguments to the exit
status.  What is common to all is here: the version, a reader that goes away (``bmq ... | head``), and Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bmq.cli import cluster, completion, consume, group, health, job, produce, profile, segment, serve, topic
from bmq.core.version import VERSION

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
EXIT_INTERRUPTED = 128 + signal.SIGINT

_DESCRIPTION = """\
BMQ is a message queue that speaks Kafka's protocol and keeps its log on HDFS.

Without any setting `bmq serve` serves Kafka clients on 127.0.0.1:9092, with its data in ./bmq-data.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that refuses unknown arguments itself, so that the usage in the error is the sub-command's.

    argparse passes what a sub-command does not know up to `bmq`. Parsers of sub-commands are of the same class.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bmq",
        description=_DESCRIPTION,
        epilog="Each command explains itself: bmq COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bmq {VERSION}")
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for command in (serve, topic, produce, consume, group, cluster, segment, job, profile, completion, health):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no UTF-8 still gets every line
    arguments = build_parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
