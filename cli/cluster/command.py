"""``bmq cluster``: a running cluster as a whole."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from kafka.admin import ConfigResource, ConfigResourceType

from bmq.cli.admin_client import AdminClient
from bmq.cli.output import print_json, print_table
from bmq.cli.usage import UsageError
from bmq.core.http_call import RequestRefused


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
