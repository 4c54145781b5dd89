"""``bmq cluster add-scram``: the command line.  The work is in ``cli.cluster.add_scram_run``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import store_command
from bmq.cli.usage import whole_number

_DESCRIPTION = """\
Write a SCRAM user into the metadata store: the first one, who can make the others by Kafka's tools, or one whose
password was lost. With etcd, servers that run know the user at once. A SQLite store is its server's alone: start that
once, stop it, and start it again afterwards.

The password is the first line of --password-file, or of standard input. Only what SCRAM computes of it is stored.
"""
_EPILOG = """\
example:
  bmq cluster add-scram --meta etcd://etcd1:2379 --mechanism SCRAM-SHA-512 --password-file /run/secrets/admin admin

exit status:
  0  done      1  refused: standard error says why      2  wrong usage, or no response of the store
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = store_command.add_command(
        actions,
        "add-scram",
        "bmq.cli.cluster.add_scram_run",
        text="write a SCRAM user, such as the first one, into the metadata store",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        root="not used",
    )
    parser.add_argument("user", metavar="USER", help="the user's name")
    parser.add_argument("--mechanism", default="SCRAM-SHA-512", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512")
    parser.add_argument("--iterations", type=whole_number, default=4096, metavar="N", help="4096 to 16384")
    parser.add_argument("--password-file", metavar="FILE", help="file with the password; standard input when left out")
