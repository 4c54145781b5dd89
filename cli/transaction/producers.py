"""``bmq transaction describe-producers``: the producers that a partition's log knows (DescribeProducers, KIP-664)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from kafka.protocol.admin.transactions import DescribeProducersRequest

from bmq.cli.admin_client import AdminClient, ask, describe_code
from bmq.cli.output import format_time, print_json, print_table
from bmq.core.http_call import RequestRefused

_TITLES = (
    "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "LAST-SEQUENCE", "LAST-TIMESTAMP",
    "CURRENT-TRANSACTION-START-OFFSET",
)  # fmt: skip


class KnownProducer(NamedTuple):
    """A producer that a partition's log knows, with Kafka's names of its fields."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """-1 before the producer's first marker."""
    last_sequence: int
    last_timestamp: int
    """Milliseconds since 1970 of the producer's last batch there."""
    current_transaction_start_offset: int
    """-1 without an open transaction."""


def describe_producers(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the producers of a partition.  Raises RequestRefused if the partition's server refuses the question."""
    key = (arguments.topic, arguments.partition)
    found, errors = known_in(admin, [key])
    if key in errors:
        raise RequestRefused(f"{key[0]}-{key[1]}: {errors[key]}")
    rows = sorted(found.get(key, ()))
    if arguments.json:
        for row in rows:
            print_json(row._asdict())
        return 0
    shown = [(*row[:4], format_time(row.last_timestamp), None if row[5] < 0 else row[5]) for row in rows]
    print_table(_TITLES, shown, if_none="the partition's log knows no producer")
    return 0


def known_in(
    admin: AdminClient, keys: Sequence[tuple[str, int]]
) -> tuple[dict[tuple[str, int], list[KnownProducer]], dict[tuple[str, int], str]]:
    """Return the known producers by partition, and the errors of partitions without a response."""
    topics: dict[str, list[int]] = {}
    for topic, partition in keys:
        topics.setdefault(topic, []).append(partition)
    of = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(topics=[of(name=name, partition_indexes=each) for name, each in topics.items()])
    found: dict[tuple[str, int], list[KnownProducer]] = {}
    errors: dict[tuple[str, int], str] = {}
    for topic in ask(admin, request).topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            if partition.error_code:
                needed = f"Read on topic {topic.name}"
                errors[key] = describe_code(partition.error_code, partition.error_message, needed)
            found[key] = [
                KnownProducer(
                    each.producer_id, each.producer_epoch, each.coordinator_epoch, each.last_sequence,
                    each.last_timestamp, each.current_txn_start_offset,
                )
                for each in partition.active_producers
            ]  # fmt: skip
    return found, errors
