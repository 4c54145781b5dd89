"""``bmq cluster``: the command line.  The work is in ``cli.cluster``, imported when it runs."""

from __future__ import annotations

import argparse

from bmq.cli.parsers import add_scram, doctor, merge_root, rebuild
from bmq.cli.parsers.common import (
    EPILOG,
    add_bare_command,
    add_command,
    add_command_config,
    add_http,
    add_profile,
)
from bmq.cli.parsers.late import Late
from bmq.cli.usage import feature_level, partition_number

_DESCRIPTION = """\
Show a running cluster as a whole, and act on it: drain, balance, move or log-level.

status, drain, balance, move and log-level ask a server's HTTP address (--http), any of the cluster's. A MEMBER is one
process of it: its incarnation as `bmq cluster status` prints it, the beginning of that if it is unique, or one of
its addresses as HOST:PORT. configs, features, and status with --bootstrap-server, work on any Kafka cluster. doctor
checks root, store and members from outside, with servers running or not. rebuild and merge-root need all servers
stopped. add-scram writes a user into the store.
"""


_NOTE = """\
status exits with 1 when a partition or a coordinator's shard has no live owner or is not served, no controller
leads or the leader does not answer, the metadata store takes no writes, storage acknowledges nothing to a broker, or
the process that was asked cannot use a key of the metadata store or a topic's configs.
"""


ACT_S = 30.0
"""Seconds for a request, somewhat more than a server searches for a leader."""


DRAIN_S = 60.0


_DRAIN_NOTE = """
Others take over the process's partitions and shards, then it ends. Whatever runs it (systemd, Kubernetes,
`bmq serve --workers`) must not start it again, or only on purpose: it then is a new member.
"""


_LEVEL_NOTE = """
A level holds for a logger and for those below it without a level of their own, until the process ends. Then the setting
log_level counts again. `default` removes it before that.
"""


_FEATURES_NOTE = """
The cluster makes all changes of a command, or no change. A lowered level is held until a command raises it. The
cluster refuses an unsafe downgrade: processes would misread data of the higher level.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], text: str) -> None:
    """Add the command's parser; ``text`` is its line in the help of ``bmq``."""
    parser = commands.add_parser(
        "cluster",
        help=text,
        description=_DESCRIPTION,
        epilog=EPILOG + _NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action",
        metavar="status|doctor|drain|balance|move|log-level|configs|features|rebuild|merge-root|add-scram",
        required=True,
    )
    _add_status(actions)
    doctor.add_parser(actions)
    _add_operations(actions)
    rebuild.add_parser(actions)
    merge_root.add_parser(actions)
    add_scram.add_parser(actions)
    showing = add_command(
        actions,
        "configs",
        Late("bmq.cli.cluster.command", "configs"),
        "print the servers' settings that are not defaults",
        "bmq cluster configs --all",
    )
    showing.add_argument("--node", type=int, metavar="ID", help="only of this server")
    showing.add_argument("--all", action="store_true", help="also defaults")
    _add_features(actions)


def _add_status(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = add_bare_command(
        actions,
        "status",
        "print the cluster's processes with their partitions and load, and whether all partitions can be used",
        "bmq cluster status --http http://127.0.0.1:9080",
    )
    where = parser.add_mutually_exclusive_group()
    add_http(where)
    where.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="ask over Kafka's protocol instead, as any Kafka cluster allows; $BMQ_BOOTSTRAP, or the profile's, "
        "where there is no HTTP address",
    )
    add_command_config(parser)
    add_profile(parser)
    parser.set_defaults(run=Late("bmq.cli.cluster.status", "run"), command=Late("bmq.cli.cluster.status", "over_kafka"))


def _add_features(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = add_command(
        actions,
        "features",
        Late("bmq.cli.cluster.features", "features"),
        "print the levels of features, or raise and lower them",
        "bmq cluster features --downgrade transaction.version=1 --dry-run",
    )
    parser.description = f"{parser.description}\n{_FEATURES_NOTE}"
    for option, text in (("--upgrade", "raise a feature's level"), ("--downgrade", "lower a feature's level")):
        parser.add_argument(
            option,
            type=feature_level,
            action="append",
            default=[],
            metavar="NAME=LEVEL",
            help=f"{text}; may be repeated",
        )
    parser.add_argument("--dry-run", action="store_true", help="ask whether the change is allowed, and change nothing")


def _add_operations(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers of the commands."""
    draining = add_bare_command(
        actions,
        "drain",
        "hand a process's partitions and shards over to others, end it, and wait until it has ended",
        "bmq cluster drain broker-3f9a",
        timeout="seconds to wait for its end; it continues to drain after them",
        timeout_s=DRAIN_S,
    )
    draining.description = f"{draining.description}\n{_DRAIN_NOTE}"
    draining.add_argument("member", metavar="MEMBER", help="which one: see `bmq cluster --help`")
    draining.add_argument(
        "--force", action="store_true", help="also the last one of a role, whose work no process can take over"
    )
    balancing = add_bare_command(
        actions,
        "balance",
        "even the brokers out now, also if they differ little",
        "bmq cluster balance",
        timeout_s=ACT_S,
    )
    moving = add_bare_command(
        actions,
        "move",
        "assign one partition to a broker; balance may move it again later",
        "bmq cluster move orders 3 broker-3f9a",
        timeout_s=ACT_S,
    )
    moving.add_argument("topic", metavar="TOPIC", help="its topic")
    moving.add_argument("partition", type=partition_number, metavar="PARTITION", help="its number")
    moving.add_argument("member", metavar="MEMBER", help="which broker: see `bmq cluster --help`")
    levelling = add_bare_command(
        actions,
        "log-level",
        "show the levels of a process's loggers, or set one until it ends",
        "bmq cluster log-level broker-3f9a bmq.broker debug",
        timeout_s=ACT_S,
    )
    levelling.description = f"{levelling.description}\n{_LEVEL_NOTE}"
    levelling.add_argument("member", metavar="MEMBER", help="which one: see `bmq cluster --help`")
    levelling.add_argument("logger", metavar="LOGGER", nargs="?", help="show it and those below; root is above all")
    levelling.add_argument("level", metavar="LEVEL", nargs="?", help="debug, info, warning, error or default")
    acts: dict[argparse.ArgumentParser, Late] = {
        draining: Late("bmq.cli.cluster.operations", "drain"),
        balancing: Late("bmq.cli.cluster.operations", "balance"),
        moving: Late("bmq.cli.cluster.operations", "move"),
        levelling: Late("bmq.cli.cluster.operations", "log_level"),
    }
    for parser, act in acts.items():
        add_http(parser)
        add_profile(parser)
        parser.set_defaults(run=Late("bmq.cli.cluster.operations", "run"), act=act)
