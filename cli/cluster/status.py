"""``bmq cluster status``: the processes of a BMQ cluster over HTTP, or any Kafka cluster over Kafka's protocol."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from bmq.cli import admin_client
from bmq.cli.admin_client import AdminClient
from bmq.cli.cluster.http_client import Console
from bmq.cli.exit_status import exit_status_of
from bmq.cli.output import format_size, print_json, print_table, printable
from bmq.cli.parsers.common import DEFAULT_HTTP
from bmq.cli.profile import profiles
from bmq.cli.topic_configs import configs_of, is_bmq_topic

_TROUBLES = (
    "unassigned",
    "unassigned_shards",
    "store_trouble",
    "shards_not_loaded",
    "quarantined",
    "partitions_not_served_total",
)
"""Fields that are 0 or empty while all is well; servers of earlier versions lack some."""
_OVER_HTTP = "of BMQ: `bmq cluster status --http HOST:PORT` shows whether all are served"
_MEMBERS = (
    "MEMBER",
    "ROLES",
    "ZONE",
    "INTERNAL",
    "KAFKA",
    "VERSION",
    "PARTITIONS",
    "SHARDS",
    "IN+OUT/S",
    "REQ/S",
    "STATE",
)


def http_url(arguments: argparse.Namespace) -> str:
    """Return the address of a server's console.  Raises UsageError if the profile cannot be read."""
    return profiles.value(arguments, "http") or DEFAULT_HTTP


def run(arguments: argparse.Namespace) -> int:
    """Print the status over HTTP, or over Kafka's protocol if only such an address is given; return the exit status."""
    return exit_status_of(arguments, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    found = profiles.find(arguments, "http", "bootstrap_server")
    if found is not None and found[0] == "bootstrap_server":
        arguments.bootstrap_server = found[1]
        return admin_client.run(arguments)
    url = DEFAULT_HTTP if found is None else found[1]
    return over_http(Console(url, arguments.timeout), arguments)


# ------------------------------------------------------------------------------------------------------- over HTTP


def over_http(console: Console, arguments: argparse.Namespace) -> int:
    """Print the status.  Returns 1 if something is not served, or cannot be used."""
    status = console.status()
    if arguments.json:
        print_json(status)
    else:
        _print_status(status)
    is_led = status["leader"] and status["is_from_leader"]
    is_stalled = any(member.get("storage_trouble") for member in status["members"])
    return 0 if is_led and not is_stalled and not any(status.get(name) for name in _TROUBLES) else 1


def _print_status(status: Mapping[str, Any]) -> None:
    print(printable(f"cluster {status['cluster']} ({status['cluster_id']})"))
    print(f"  topics       {status['topics']}")
    print(f"  partitions   {status['partitions']}, {status['unassigned'] or 'none'} without an owner")
    if "unassigned_shards" in status:  # servers of earlier versions lack it
        print(f"  shards       {status['unassigned_shards'] or 'none'} without an owner")
    print(printable(f"  leader       {status['leader'] or 'none'}"))
    if not status["leader"]:
        print("  no controller leads: nothing is assigned and no topic is created; `bmq cluster doctor` shows why")
    if not status["is_from_leader"]:
        why = "the leader does not answer: " if status["leader"] else ""
        print(printable(f"  {why}this is the view of {status['asked']}"))
    if status.get("store_trouble"):
        print(printable(f"  the metadata store: {status['store_trouble']}"))
    for what, role in (("unassigned", "broker"), ("unassigned_shards", "coordinator")):
        if status.get(what) and not any(role in member["roles"] for member in status["members"]):
            print(f"  no {role} lives: start one, nothing is lost meanwhile")
    features = [each for each in status.get("features", ()) if each["level"] or each["highest"] or each["intended"]]
    if features:
        print(printable(f"  features     {', '.join(map(_feature, features))}"))
    if status["is_balancing"]:
        print("  balancing")
    print_table(_MEMBERS, [_row(member) for member in status["members"]])
    for member in status["members"]:
        if member.get("storage_trouble"):
            print(printable(f"{member['incarnation']}: {member['storage_trouble']}"))
    partitions = status.get("partitions_not_served")
    if partitions:
        total = status["partitions_not_served_total"]
        some = f", {len(partitions)} of them" if total > len(partitions) else ""
        print(f"{total} partitions are not served{some}:")
        print_table(
            ("TOPIC", "PARTITION", "BROKER", "WHY"),
            [[each[name] for name in ("topic", "partition", "broker", "why")] for each in partitions],
        )
    failures = status.get("shards_not_loaded")  # servers of earlier versions lack it
    if failures:
        print(f"{len(failures)} shards are not loaded: their groups or transactions are not served")
        print_table(  # servers of earlier versions have one kind, and do not name it
            ("KIND", "SHARD", "COORDINATOR", "WHY"),
            [[each.get("kind", "groups"), each["shard"], each["coordinator"], each["why"]] for each in failures],
        )
    quarantined = status.get("quarantined")
    if quarantined:
        total = status.get("quarantined_total", len(quarantined))
        some = f", {len(quarantined)} of them" if total > len(quarantined) else ""
        print(printable(f"{total} keys or topics cannot be used by {status['asked']}{some}"))
        print_table(("WHAT", "WHY"), [[each["what"], each["why"]] for each in quarantined])
    if status.get("silent"):
        print(printable(f"no answer to what they cannot serve: {', '.join(status['silent'])}"))
    if status["moves_under_way"]:
        print(f"{len(status['moves_under_way'])} moves under way")
        print_table(
            ("TOPIC", "PARTITION", "FROM", "TO", "WHY"),
            [
                [move[name] for name in ("topic", "partition", "from", "to", "why")]
                for move in status["moves_under_way"]
            ],
        )


def _feature(facts: Mapping[str, Any]) -> str:
    """Return a feature's level in words."""
    raised = f", {facts['intended']} is about to be" if facts["intended"] else ""
    held = ", held there" if facts["is_held"] else ""
    supported = f"{facts['lowest']} to {facts['highest']}"
    return f"{facts['feature']} {facts['level']} ({supported} supported{held}{raised})"


def _row(member: Mapping[str, Any]) -> list[object]:
    bytes_per_s = member["bytes_per_s"]
    return [
        member["incarnation"],
        ",".join(member["roles"]),
        member["zone"] or None,
        member["internal"] or None,
        member["kafka"] or None,
        member["version"],
        member["partitions"],
        member["shards"],
        None if bytes_per_s is None else format_size(bytes_per_s),
        member["requests_per_s"],
        _state(member),
    ]


def _state(member: Mapping[str, Any]) -> str:
    words = []
    if member["is_leader"]:
        words.append("leads")
    if member["is_draining"]:
        words.append("draining")
    if member["unreachable_for"]:
        words.append(f"unreachable for {member['unreachable_for']}")
    return ", ".join(words) or "-"


# ------------------------------------------------------------------------------------------------------ over Kafka


def over_kafka(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the status that any Kafka cluster has.  Returns 1 if a partition has no leader.

    A partition without a leader can be neither read nor written.  Over Kafka's protocol BMQ does not tell of any.
    """
    cluster = admin.describe_cluster()
    topics = admin.describe_topics(None)
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    leaderless: int | None = sum(partition["leader_id"] < 0 for partition in partitions)
    if topics and is_bmq_topic(configs_of(admin, topics[0]["name"], "all")):
        leaderless = None  # BMQ names a proxy for each partition, whether or not a broker owns it
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
    if arguments.json:
        print_json(facts)
    else:
        _print_facts(facts)
    return 1 if leaderless else 0


def _print_facts(facts: Mapping[str, Any]) -> None:
    print(printable(f"cluster {facts['cluster_id']}"))
    print(f"  topics       {facts['topics']}")
    leaderless = facts["partitions_without_leader"]
    state = _OVER_HTTP if leaderless is None else f"{leaderless or 'none'} without a leader"
    print(f"  partitions   {facts['partitions']}, {state}")
    print_table(
        ("NODE", "HOST", "PORT", "RACK", "CONTROLLER"),
        [
            (each["node_id"], each["host"], each["port"], each["rack"], each["node_id"] == facts["controller_id"])
            for each in facts["brokers"]
        ],
    )
