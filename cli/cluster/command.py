"""``bmq cluster``: a running cluster as a whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kafka.admin import ConfigResource, ConfigResourceType

from bmq.cli.admin_client import EPILOG, AdminClient, add_command
from bmq.cli.cluster import add_scram, merge_root, operations, status
from bmq.cli.doctor import command as doctor
from bmq.cli.output import print_json, print_table
from bmq.cli.rebuild import command as rebuild
from bmq.cli.usage import UsageError
from bmq.core.http_call import RequestRefused

_DESCRIPTION = """\
Show a running cluster as a whole, and act on it: drain, balance, move or log-level.

status, drain, balance, move and log-level ask a server's HTTP address (--http), any of the cluster's. A MEMBER is one
process of it: its incarnation as `bmq cluster status` prints it, the beginning of that if it is unique, or one of
its addresses as HOST:PORT. configs, and status with --bootstrap-server, work on any Kafka cluster. doctor checks
root, store and members from outside, with servers running or not. rebuild and merge-root need all servers stopped.
add-scram writes a user into the store.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "cluster",
        help="show a cluster's processes, health and configs; drain, balance, move",
        description=_DESCRIPTION,
        epilog=EPILOG + status.NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action",
        metavar="status|doctor|drain|balance|move|log-level|configs|rebuild|merge-root|add-scram",
        required=True,
    )
    status.add_parser(actions)
    doctor.add_parser(actions)
    operations.add_parsers(actions)
    rebuild.add_parser(actions)
    merge_root.add_parser(actions)
    add_scram.add_parser(actions)
    showing = add_command(
        actions, "configs", configs, "print the servers' settings that are not defaults", "bmq cluster configs --all"
    )
    showing.add_argument("--node", type=int, metavar="ID", help="only of this server")
    showing.add_argument("--all", action="store_true", help="also defaults")


def configs(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the servers' settings.  Raises UsageError if ``--node`` names no server."""
    nodes = sorted(int(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"])
    if arguments.node is not None:
        if arguments.node not in nodes:
            raise UsageError(f"there is no node {arguments.node}; there are {', '.join(map(str, nodes))}")
        nodes = [arguments.node]
    rows = list(_configs(admin, nodes, with_defaults=arguments.all))
    if arguments.json:
        for row in rows:
            print_json(dict(zip(("node_id", "config", "value", "source", "is_read_only"), row, strict=True)))
    else:
        print_table(("NODE", "CONFIG", "VALUE", "SOURCE", "READ-ONLY"), rows)
    return 0


def _configs(
    admin: AdminClient, nodes: Iterable[int], *, with_defaults: bool
) -> Iterable[tuple[int, str, str | None, str, bool]]:
    """Yield (node, config, value, source, is read-only); the value of a secret is None.

    Raises RequestRefused if this user may not see them.
    """
    resources = [ConfigResource(ConfigResourceType.BROKER, str(node)) for node in nodes]
    response = admin.describe_configs(resources, config_filter="all")
    if not any(response["broker"].values()):  # kafka-python hides the error
        raise RequestRefused("not authorised for DescribeConfigs on the cluster: no server shows a setting")
    for node, by_name in sorted((int(name), found) for name, found in response["broker"].items()):
        for name, config in sorted(by_name.items()):
            if with_defaults or config["config_source"] != "DEFAULT_CONFIG":
                yield node, name, config["value"], config["config_source"], config["read_only"]
