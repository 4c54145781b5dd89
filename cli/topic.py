"""``bmq topic``: topics of a running cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType

from bmq.cli.admin_client import AdminClient, check, describe_code, read_error, server_timeout_ms
from bmq.cli.cleaning import CleaningReader, CleaningUnknown, print_cleaning
from bmq.cli.group.offsets import PartitionEnds, ends_of
from bmq.cli.output import fail, format_size, print_json, print_table, printable
from bmq.cli.topic_configs import configs_of, is_bmq_topic, values_of
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused

# ------------------------------------------------------------------------------------------------------------ list


def list_topics(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the topics by name."""
    topics = sorted(admin.describe_topics(None), key=lambda topic: str(topic["name"]))
    rows = [
        (topic["name"], len(topic["partitions"]), _replication(topic), topic["is_internal"])
        for topic in topics
        if not (topic["is_internal"] and arguments.exclude_internal)
    ]
    if arguments.json:
        for row in rows:
            print_json(dict(zip(("topic", "partitions", "replication_factor", "is_internal"), row, strict=True)))
    else:
        print_table(("TOPIC", "PARTITIONS", "REPLICATION", "INTERNAL"), rows, if_none="there are no topics")
    return 0


def _replication(topic: Mapping[str, Any]) -> int:
    return max((len(partition["replica_nodes"]) for partition in topic["partitions"]), default=0)


# ---------------------------------------------------------------------------------------------------------- create


def create(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Create the topic, or only check that it could be.  Raises RequestRefused if the server refuses it."""
    wanted = {
        "num_partitions": arguments.partitions,
        "replication_factor": arguments.replication_factor,
        "configs": dict(arguments.config),
    }
    response = admin.create_topics(
        {arguments.name: wanted},
        timeout_ms=server_timeout_ms(arguments),
        validate_only=arguments.validate_only,
        raise_errors=False,
    )
    (result,) = response["topics"]
    if arguments.if_not_exists and result["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS:
        return _say(arguments, f"topic {arguments.name} exists already", topic=arguments.name, created=False)
    check(
        result["error_code"],
        result.get("error_message"),
        f"topic {arguments.name} was not created",
        f"Create on topic {arguments.name}, or on the cluster",
    )
    is_created = not arguments.validate_only
    configs = values_of(result.get("configs") or {})
    copies = result["replication_factor"]
    replication = (
        _count(copies, "copy", "copies") + " of its files" if is_bmq_topic(configs) else f"replication factor {copies}"
    )
    return _say(
        arguments,
        f"topic {arguments.name} {'created' if is_created else 'could be created'}: "
        f"{_count(result['num_partitions'], 'partition')}, {replication}",
        topic=arguments.name,
        created=is_created,
        topic_id=str(result["topic_id"]) if is_created else None,
        partitions=result["num_partitions"],
        replication_factor=result["replication_factor"],
    )


# -------------------------------------------------------------------------------------------------------- describe


def describe(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print one block a topic.  Returns 1 if one of those named could not be described; the others are printed."""
    status = 0
    topics = admin.describe_topics(arguments.names or None)
    is_first, is_bmq, reader = True, False, CleaningReader(arguments)
    for topic in sorted(topics, key=lambda topic: str(topic["name"])):
        if topic["error_code"] != ErrorCode.NONE:
            right = f"Describe on topic {topic['name']}"
            status = fail(f"topic {topic['name']}: {describe_code(topic['error_code'], right=right)}")
            continue
        partitions = _partitions(admin, topic)
        in_force = configs_of(admin, topic["name"], "all")
        configs = _overrides(admin, topic["name"], in_force)
        is_bmq = is_bmq or is_bmq_topic(in_force)
        unknown = _add_cleaning(topic, partitions, in_force, reader)
        if configs is None:
            status = fail(f"configs of topic {topic['name']}: not authorised for DescribeConfigs on it")
        if arguments.json:
            _print_json(topic, partitions, configs)
            if unknown:
                print(f"bmq: warning: {unknown}", file=sys.stderr)
            continue
        if not is_first:
            print()
        is_first = False
        _print(topic, partitions, configs, is_bmq=is_bmq)
        if unknown:
            print(printable(f"note: {unknown}"))
        elif _is_cleaned(topic, in_force):
            print_cleaning(partitions)
    return status


def _add_cleaning(
    topic: Mapping[str, Any],
    partitions: Sequence[dict[str, Any]],
    in_force: Mapping[str, str | None],
    reader: CleaningReader,
) -> str:
    """Add the state of cleaning to each partition: None if it is not known, or the topic is not compacted by BMQ.

    Return the reason if it is not known; "" otherwise.
    """
    found, unknown = {}, ""
    if _is_cleaned(topic, in_force):
        try:
            found = reader.read(topic["name"], str(topic["topic_id"]))
        except CleaningUnknown as error:
            unknown = f"the cleaning of topic {topic['name']} is not known: {error}"
    for each in partitions:
        each["cleaning"] = found.get(each["partition"])
    return unknown


def _is_cleaned(topic: Mapping[str, Any], in_force: Mapping[str, str | None]) -> bool:
    """Return whether BMQ cleans the topic: it is compacted, and not one of the coordinators' topics."""
    policies = (in_force.get("cleanup.policy") or "").replace(" ", "").split(",")
    return "compact" in policies and is_bmq_topic(in_force) and not topic["is_internal"]


def _partitions(admin: AdminClient, topic: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the partitions by number; of one without a leader, offsets and size are None."""
    name = topic["name"]
    led = [TopicPartition(name, each["partition_index"]) for each in topic["partitions"] if each["leader_id"] >= 0]
    ends = ends_of(admin, led)
    sizes = _sizes(admin.describe_log_dirs({name: [each.partition for each in led]})) if led else {}
    rows = []
    for each in sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"])):
        key = TopicPartition(name, each["partition_index"])
        rows.append(
            {
                "partition": key.partition,
                "leader": each["leader_id"] if each["leader_id"] >= 0 else None,
                "leader_epoch": _leader_epoch(each["leader_epoch"], ends.get(key)),
                "replicas": each["replica_nodes"],
                "isr": each["isr_nodes"],
                "earliest": ends[key].earliest if key in ends else None,
                "latest": ends[key].latest if key in ends else None,
                "bytes": sizes.get((each["leader_id"], *key)),
            }
        )
    return rows


def _leader_epoch(listed: int, ends: PartitionEnds | None) -> int | None:
    """Return Metadata's epoch; if it has none, as with BMQ, the epoch that the leader sends; else None."""
    epoch = ends.leader_epoch if listed < 0 and ends is not None else listed
    return epoch if epoch >= 0 else None


def _sizes(answers: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str, int], int]:
    """Return (broker, topic, partition) to bytes; the copy of a move, in another folder, is left out."""
    sizes: dict[tuple[int, str, int], int] = {}
    for response in answers:
        for folder in response["log_dirs"]:
            check(folder["error_code"], None, f"sizes on broker {response['broker']}, {folder['log_dir']}")
            for topic in folder["topics"]:
                for each in topic["partitions"]:
                    if not each["is_future_key"]:
                        sizes[response["broker"], topic["name"], each["partition_index"]] = each["partition_size"]
    return sizes


def _overrides(admin: AdminClient, name: str, in_force: Mapping[str, str | None]) -> dict[str, str | None] | None:
    """Return the configs that were set for this topic; None for a value that the server does not show.

    ``in_force`` are all of its configs.  Return None if the server shows no config at all, as to a user who lacks the
    right: kafka-python hides the error.
    """
    return configs_of(admin, name, "modified") or ({} if in_force else None)


def _print(
    topic: Mapping[str, Any],
    partitions: Sequence[Mapping[str, Any]],
    configs: Mapping[str, Any] | None,
    *,
    is_bmq: bool,
) -> None:
    servers = _replication(topic)
    replication = f"replication factor {servers}"
    if is_bmq:  # its replicas, in Kafka's sense, are servers; the copies are storage's
        replication = f"each served by {_count(servers, 'server')}; /api/v1/topics shows the copies of its files"
    print(printable(f"topic {topic['name']}{' (internal)' if topic['is_internal'] else ''}"))
    print(f"  id           {topic['topic_id']}")
    print(f"  partitions   {len(partitions)}, {replication}")
    shown = ", ".join(f"{name}={value}" for name, value in (configs or {}).items())
    print(printable(f"  configs      {shown or ('-' if configs is None else 'defaults')}"))
    rows = [
        (
            each["partition"],
            each["leader"],
            each["leader_epoch"],
            ",".join(map(str, each["replicas"])),
            ",".join(map(str, each["isr"])),
            each["earliest"],
            each["latest"],
            format_size(each["bytes"]),
        )
        for each in partitions
    ]
    print_table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "EARLIEST", "LATEST", "SIZE"), rows)


def _print_json(
    topic: Mapping[str, Any], partitions: Sequence[Mapping[str, Any]], configs: Mapping[str, Any] | None
) -> None:
    print_json(
        {
            "topic": topic["name"],
            "topic_id": str(topic["topic_id"]),
            "is_internal": topic["is_internal"],
            "configs": configs,
            "partitions": partitions,
        }
    )


# ----------------------------------------------------------------------------------------------------------- alter


def alter(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Change configs and the number of partitions, configs first: they can be undone, partitions cannot.

    Raises UsageError or RequestRefused.
    """
    configs: dict[str, tuple[AlterConfigOp, str | None]] = {
        name: (AlterConfigOp.SET, value) for name, value in arguments.config
    }
    twice = set(configs) & set(arguments.delete_config)
    if twice:
        raise UsageError(f"{', '.join(sorted(twice))}: either --config or --delete-config")
    configs.update(dict.fromkeys(arguments.delete_config, (AlterConfigOp.DELETE, None)))
    if not configs and arguments.partitions is None:
        raise UsageError("nothing to change: give --partitions, --config or --delete-config")
    done = []
    if configs:
        resource = ConfigResource(ConfigResourceType.TOPIC, arguments.name, configs)
        response = admin.alter_configs([resource], raise_on_unknown=False, incremental=True)
        outcome = response["topic"][arguments.name]
        if outcome != "OK":
            outcome = describe_code(*read_error(outcome), f"AlterConfigs on topic {arguments.name}")
            raise RequestRefused(f"the configs of topic {arguments.name} were not changed: {outcome}")
        done.append(_count(len(configs), "config"))
    if arguments.partitions is not None:
        added = admin.create_partitions(
            {arguments.name: arguments.partitions},
            timeout_ms=server_timeout_ms(arguments),
            validate_only=False,
            raise_errors=False,
        )
        (result,) = added.results
        what, right = f"topic {arguments.name} got no more partitions", f"Alter on topic {arguments.name}"
        check(result.error_code, result.error_message, what, right)
        done.append(f"now {_count(arguments.partitions, 'partition')}")
    return _say(arguments, f"topic {arguments.name} altered: {', '.join(done)}", topic=arguments.name, altered=True)


# ---------------------------------------------------------------------------------------------------------- delete


def delete(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Delete the topics.  Returns 1 if one of them could not be deleted; the others are."""
    status = 0
    response = admin.delete_topics(arguments.names, timeout_ms=server_timeout_ms(arguments), raise_errors=False)
    for result in response["topics"]:
        name, code = result["name"], result["error_code"]
        if code == ErrorCode.NONE:
            _say(arguments, f"topic {name} deleted", topic=name, deleted=True)
        elif code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and arguments.if_exists:
            _say(arguments, f"topic {name} did not exist", topic=name, deleted=False)
        else:
            reason = describe_code(code, result.get("error_message"), f"Delete on topic {name}")
            status = fail(f"topic {name} was not deleted: {reason}")
    return status


def _say(arguments: argparse.Namespace, text: str, **fields: object) -> int:
    """Print what was done, for people or for programs, and return status 0."""
    if arguments.json:
        print_json(fields)
    else:
        print(printable(text))
    return 0


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
