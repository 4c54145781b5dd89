"""``bmq cluster``: a running cluster as a whole."""

from __future__ import annotations

import argparse
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from bmq.cli.admin_client import EPILOG, Admin, Unreachable, UsageError, add_command
from bmq.cli.output import print_json
from bmq.cli.tables import print_table

HTTP_BYTES_MAX = 16 << 20
"""An answer that is larger comes from no console of ours."""

_DESCRIPTION = """\
Look at a running cluster as a whole, over Kafka's protocol.
"""
_STATUS_NOTE = """\
status exits with 1 when a partition has no leader.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "cluster",
        help="show a cluster's servers, health and configs",
        description=_DESCRIPTION,
        epilog=EPILOG + _STATUS_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="status|configs", required=True)
    watching = add_command(
        actions,
        "status",
        status,
        "print the cluster's servers, and whether all partitions can be used",
        "bmq cluster status --http http://127.0.0.1:9080",
    )
    watching.add_argument(
        "--http",
        default=os.environ.get("BMQ_HTTP_URL"),
        metavar="URL",
        help="also ask a server's HTTP address; default: $BMQ_HTTP_URL",
    )
    showing = add_command(
        actions, "configs", configs, "print the servers' settings that are not defaults", "bmq cluster configs --all"
    )
    showing.add_argument("--node", type=int, metavar="ID", help="only of this server")
    showing.add_argument("--all", action="store_true", help="also those that are defaults")


# ---------------------------------------------------------------------------------------------------------- status


def status(admin: Admin, arguments: argparse.Namespace) -> int:
    """1 when a partition has no leader: its records can be neither read nor written."""
    cluster = admin.describe_cluster()
    topics = admin.describe_topics(None)
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    leaderless = sum(partition["leader_id"] < 0 for partition in partitions)
    facts: dict[str, Any] = {
        "cluster_id": cluster["cluster_id"],
        "controller_id": cluster["controller_id"],
        "brokers": [
            {"node_id": broker["broker_id"], "host": broker["host"], "port": broker["port"], "rack": broker["rack"]}
            for broker in sorted(cluster["brokers"], key=lambda broker: int(broker["broker_id"]))
        ],
        "topics": len(topics),
        "partitions": len(partitions),
        "partitions_without_leader": leaderless,
    }
    if arguments.http:
        facts["node"] = fetch_cluster(arguments.http, arguments.timeout)
    if arguments.json:
        print_json(facts)
    else:
        _print(facts)
    return 1 if leaderless else 0


def _print(facts: Mapping[str, Any]) -> None:
    print(f"cluster {facts['cluster_id']}")
    print(f"  topics       {facts['topics']}")
    without = facts["partitions_without_leader"]
    print(f"  partitions   {facts['partitions']}, {without if without else 'none'} without a leader")
    node = facts.get("node")
    if node:
        states = ", ".join(f"{count} {state}" for state, count in sorted(node["partitions_by_state"].items()))
        print(f"  node {node['node_id']}       version {node['version']}, {node['connections']} connections")
        print(f"  owns         {states or 'no partitions'}")
    print_table(
        ("NODE", "HOST", "PORT", "RACK", "CONTROLLER"),
        [
            (each["node_id"], each["host"], each["port"], each["rack"], each["node_id"] == facts["controller_id"])
            for each in facts["brokers"]
        ],
    )


def fetch_cluster(url: str, timeout_s: float) -> Mapping[str, Any]:
    """What ``/api/v1/cluster`` of a server says.  UsageError, Unreachable."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--http: {url!r} is not like http://127.0.0.1:9080")
    address = f"{url.rstrip('/')}/api/v1/cluster"
    try:
        with urllib.request.urlopen(address, timeout=timeout_s) as answer:
            node = json.loads(answer.read(HTTP_BYTES_MAX))
    except (OSError, ValueError) as error:  # no connection, an error status; no JSON
        reason = getattr(error, "reason", error)
        told = getattr(reason, "strerror", None) or reason
        raise Unreachable(f"{address}: {told}: is it the HTTP address of `bmq serve`?") from error
    if not isinstance(node, dict) or "partitions_by_state" not in node:
        raise Unreachable(f"{address} answers, but not as `bmq serve`")
    return node


# --------------------------------------------------------------------------------------------------------- configs


def configs(admin: Admin, arguments: argparse.Namespace) -> int:
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
    admin: Admin, nodes: Iterable[int], *, with_defaults: bool
) -> Iterable[tuple[int, str, str | None, str, bool]]:
    """The value of a secret is None."""
    resources = [ConfigResource(ConfigResourceType.BROKER, str(node)) for node in nodes]
    answer = admin.describe_configs(resources, config_filter="all")
    for node, by_name in sorted((int(name), found) for name, found in answer["broker"].items()):
        for name, config in sorted(by_name.items()):
            if with_defaults or config["config_source"] != "DEFAULT_CONFIG":
                yield node, name, config["value"], config["config_source"], config["read_only"]
