"""``bmq transaction find-hanging`` and ``abort``: open transactions that no coordinator ends (KIP-664).

A producer's transaction hangs in a partition under two conditions.  It is open for longer than any time-out allows, and
the coordinator of the producer's transactional id has no transaction with the partition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kafka.protocol.admin.transactions import ListTransactionsRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from bmq.cli.admin_client import (
    AdminClient,
    ask,
    check,
    describe_code,
    of_coordinator,
    raise_if_moving,
)
from bmq.cli.group.offsets import leaders_of
from bmq.cli.output import fail, format_time, print_json, print_table, printable
from bmq.cli.transaction import coordinators
from bmq.cli.transaction.producers import known_in
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused

MARGIN_S = 300.0
"""Time that a coordinator has beyond the time-out to write the markers, as in ``kafka-transactions.sh``."""
PARTITIONS_A_REQUEST = 500
IDS_A_REQUEST = 1_000
_TITLES = (
    "TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "START-OFFSET", "LAST-TIMESTAMP",
    "TRANSACTIONAL-ID",
)  # fmt: skip


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition's log."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    """Milliseconds since 1970 of the producer's last batch there."""


# ---------------------------------------------------------------------------------------------------- find-hanging


def find_hanging(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the hanging transactions.  Returns 1 if some partitions or coordinators could not be asked."""
    keys = _places(admin, arguments)
    open_since_ms = int((time.time() - arguments.max_timeout - MARGIN_S) * 1000)
    status, suspects = 0, list[OpenTransaction]()
    for first in range(0, len(keys), PARTITIONS_A_REQUEST):
        found, errors = open_in(admin, keys[first : first + PARTITIONS_A_REQUEST])
        suspects += [each for each in found if each.last_timestamp < open_since_ms]
        for (topic, partition), text in errors.items():
            status = fail(f"{topic}-{partition} was not looked at: {text}")
    ids = _transactional_ids(admin, arguments, {each.producer_id for each in suspects})
    known = _known(admin, arguments, ids.values())
    hanging = [each for each in suspects if (each.producer_id, each.topic, each.partition) not in known]
    rows = [(*each, ids.get(each.producer_id)) for each in hanging]
    if arguments.json:
        for row in rows:
            print_json(dict(zip((*OpenTransaction._fields, "transactional_id"), row, strict=True)))
    else:
        shown = [(*row[:6], format_time(row[6]), row[7]) for row in rows]
        nothing = "there are no hanging transactions"
        if not keys and arguments.broker_id is not None:
            nothing = f"server {arguments.broker_id} leads none of these partitions"
        print_table(_TITLES, shown, if_none="" if status else nothing)
    return status


def _places(admin: AdminClient, arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the sorted partitions that the command line names.

    Raises UsageError for a partition without its topic, and for an unknown server.  Raises RequestRefused for an
    unknown topic or partition.
    """
    if arguments.partition is not None and len(set(arguments.topics)) != 1:
        raise UsageError("--partition is of one topic: give its TOPIC, and no other")
    if arguments.broker_id is not None:
        nodes = sorted(int(broker["broker_id"]) for broker in admin.describe_cluster()["brokers"])
        if arguments.broker_id not in nodes:
            raise UsageError(f"there is no node {arguments.broker_id}; there are {', '.join(map(str, nodes))}")
    names = arguments.topics or [str(topic["name"]) for topic in admin.describe_topics(None)]
    leaders = leaders_of(admin, names)
    missing = sorted(set(arguments.topics) - {key.topic for key in leaders})
    if missing:
        raise RequestRefused(f"topic {missing[0]}: {describe_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}")
    if arguments.partition is not None and not any(key.partition == arguments.partition for key in leaders):
        raise RequestRefused(
            f"topic {names[0]} has no partition {arguments.partition}; it has {len(leaders)}, from 0 up"
        )
    return sorted(
        (key.topic, key.partition)
        for key, leader in leaders.items()
        if arguments.partition in (None, key.partition)
        if arguments.broker_id in (None, leader)
    )


def open_in(
    admin: AdminClient, keys: Sequence[tuple[str, int]]
) -> tuple[list[OpenTransaction], dict[tuple[str, int], str]]:
    """Return the open transactions of partitions, and the errors of partitions without a response."""
    known, errors = known_in(admin, keys)
    found = [
        OpenTransaction(
            *key, each.producer_id, each.producer_epoch, each.coordinator_epoch,
            each.current_transaction_start_offset, each.last_timestamp,
        )
        for key, producers in known.items()
        for each in producers
        if each.current_transaction_start_offset >= 0
    ]  # fmt: skip
    return found, errors


def _transactional_ids(
    admin: AdminClient, arguments: argparse.Namespace, producer_ids: Iterable[int]
) -> dict[int, str]:
    """Return the transactional ids by producer id.  Raises RequestRefused if a server could not list its ids."""
    wanted = sorted(producer_ids)
    found = list[coordinators.ListedId]()
    for first in range(0, len(wanted), IDS_A_REQUEST):
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=wanted[first : first + IDS_A_REQUEST])
        listed, silent = coordinators.list_ids(admin, arguments, request)
        found += listed
        if silent:
            servers = ", ".join(map(str, sorted(silent)))
            raise RequestRefused(f"nothing can be said while servers {servers} load their transactions; try again")
    return {each.producer_id: each.transactional_id for each in found}


def _known(
    admin: AdminClient, arguments: argparse.Namespace, transactional_ids: Iterable[str]
) -> set[tuple[int, str, int]]:
    """Return (producer id, topic, partition) of all partitions in transactions that coordinators have open."""
    known = set()
    for transactional_id in sorted(transactional_ids):
        found = coordinators.describe_id(admin, arguments, transactional_id)
        if found.transaction_state not in coordinators.ENDED:
            known |= {
                (found.producer_id, topic.topic, partition) for topic in found.topics for partition in topic.partitions
            }
    return known


# ----------------------------------------------------------------------------------------------------------- abort


def abort(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Write an abort marker for the transaction that begins at the offset.

    Raises RequestRefused if there is none, or if a coordinator has the transaction open: its producer would commit it
    with success, and lose the records in the partition.
    """
    key = (arguments.topic, arguments.partition)
    what = f"{arguments.topic}-{arguments.partition}"
    found, errors = open_in(admin, [key])
    if errors:
        raise RequestRefused(f"{what}: {errors[key]}")
    transaction = next((each for each in found if each.start_offset == arguments.start_offset), None)
    if transaction is None:
        starts = ", ".join(str(each.start_offset) for each in sorted(found, key=lambda each: each.start_offset))
        open_now = f"open ones begin at {starts}" if starts else "it has no open transaction"
        raise RequestRefused(f"{what}: no transaction begins at offset {arguments.start_offset}; {open_now}")
    ids = _transactional_ids(admin, arguments, {transaction.producer_id})
    if (transaction.producer_id, *key) in _known(admin, arguments, ids.values()):
        name = ids[transaction.producer_id]
        raise RequestRefused(
            f"{what}: the transaction is open at the coordinator of transactional id {name}, which ends it after its "
            f"time-out; `bmq transaction fence {name}` ends it now, in all its partitions"
        )
    code = of_coordinator(arguments, _write_marker, admin, transaction)
    check(code, None, f"{what}: the transaction was not aborted", "Alter on the cluster")
    if arguments.json:
        print_json({**transaction._asdict(), "aborted": True})
    else:
        print(
            printable(
                f"{what}: aborted from offset {transaction.start_offset} on, of producer id {transaction.producer_id}, "
                f"epoch {transaction.producer_epoch}"
            )
        )
    return 0


def _write_marker(admin: AdminClient, transaction: OpenTransaction) -> int:
    """Send the marker, and return the partition's error code.

    The coordinator's epoch is that of the last marker there, or 0, as in Kafka's ``AbortTransactionSpec``.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic(name=transaction.topic, partition_indexes=[transaction.partition])
    sent = marker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(transaction.coordinator_epoch, 0),
    )
    (answered,) = ask(admin, WriteTxnMarkersRequest(markers=[sent])).markers
    code: int = answered.topics[0].partitions[0].error_code
    raise_if_moving(code)
    return code
