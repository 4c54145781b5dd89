"""``bmq health``: the command line.  The work is in ``cli.health``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers.late import Late


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "health",
        help=text,
        description="Ask the server with the same settings (BMQ_HTTP, --config) whether it is healthy, or with --ready"
        " whether it is ready for clients. Exit status 0: yes; 1: no, or no response; 2: wrong settings.",
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="the server's HTTP address (BMQ_HTTP)")
    parser.add_argument("--config", metavar="FILE.toml", help="the server's settings (BMQ_CONFIG)")
    parser.add_argument("--ready", action="store_true", help="ask /readyz instead of /healthz")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="S", help="seconds to wait [%(default)g]")
    parser.set_defaults(run=Late("bmq.cli.health", "run"))
