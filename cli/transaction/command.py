"""``bmq transaction``: transactions of a running cluster."""

from __future__ import annotations

import argparse
import time
from typing import Any

from kafka.protocol.admin.transactions import ListTransactionsRequest
from kafka.protocol.producer import InitProducerIdRequest

from bmq.cli.admin_client import (
    AdminClient,
    ask,
    check,
    of_coordinator,
    raise_if_moving,
    tell_silent,
)
from bmq.cli.output import fail, format_time, print_json, print_table, printable
from bmq.cli.transaction import coordinators
from bmq.core.http_call import RequestRefused
from bmq.core.wire.describe_transactions_message import errors_of

FENCE_TIMEOUT_MS = 60_000
"""The ``transaction.timeout.ms`` that a fenced id keeps until its next producer: Kafka's default of producers."""
_TITLES = ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE")


# ------------------------------------------------------------------------------------------------------------ list


def list_transactions(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the transactional ids, of which each server lists a part.

    Returns 1 if some servers cannot list theirs now; the ids of the others are printed.
    """
    rows, silent = coordinators.list_ids(admin, arguments, _list_request(arguments))
    is_filtered = (
        bool(arguments.state or arguments.producer_id)
        or arguments.running_longer_than is not None
        or arguments.pattern is not None
    )
    nothing = "no transactional id matches" if is_filtered else "there are no transactional ids"
    if arguments.json:
        for row in rows:
            print_json(row._asdict())
    else:
        print_table(_TITLES, rows, if_none="" if silent else nothing)
    return tell_silent(silent, "transactional ids", "transactions")


def _list_request(arguments: argparse.Namespace) -> Any:
    wanted: dict[str, Any] = {"state_filters": arguments.state, "producer_id_filters": arguments.producer_id}
    version = 0
    if arguments.running_longer_than is not None:
        wanted["duration_filter"], version = int(arguments.running_longer_than * 1000), 1
    if arguments.pattern is not None:
        wanted["transactional_id_pattern"], version = arguments.pattern, 2
    return ListTransactionsRequest(min_version=version, **wanted)


# -------------------------------------------------------------------------------------------------------- describe


def describe(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print one block an id.  Returns 1 if one of them could not be described; the others are printed."""
    status, is_first = 0, True
    for transactional_id in arguments.ids:
        try:
            found = coordinators.describe_id(admin, arguments, transactional_id)
        except RequestRefused as error:
            status = fail(str(error))
            continue
        fields = {
            "transactional_id": transactional_id,
            "state": found.transaction_state,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "transaction_timeout_ms": found.transaction_timeout_ms,
            "started_ms": found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
            **_partitions(found),
        }
        if arguments.json:
            print_json(fields)
        else:
            if not is_first:
                print()
            is_first = False
            _print(fields)
    return status


def _partitions(found: Any) -> dict[str, Any]:
    """Return the partitions of a description, sorted, and the different errors of their markers.

    A partition has the place of its error, None without one: 100,000 partitions may share an error.
    """
    rows = sorted(
        (str(topic.topic), partition, error)
        for topic in found.topics
        for partition, error in zip(topic.partitions, errors_of(found, topic), strict=True)
    )
    places: dict[str, int] = {}
    partitions = [
        {"topic": topic, "partition": number, "marker_error": places.setdefault(error, len(places)) if error else None}
        for topic, number, error in rows
    ]
    return {"marker_errors": list(places), "partitions": partitions}


def _print(fields: dict[str, Any]) -> None:
    started = fields["started_ms"] if fields["state"] not in coordinators.ENDED else None
    print(printable(f"transactional id {fields['transactional_id']}"))
    print(f"  state        {fields['state']}")
    print(f"  producer     id {fields['producer_id']}, epoch {fields['producer_epoch']}")
    print(f"  timeout      {fields['transaction_timeout_ms'] / 1000:g} s")
    if started is not None:
        print(f"  began        {format_time(started)}, {max(0.0, time.time() - started / 1000):.0f} s ago")
    if fields["state"] in coordinators.ENDING:
        print("  waits for    the markers of these partitions; the id's page in the console names their processes")
    for place, error in enumerate(fields["marker_errors"]):
        print(printable(f"  {'last try     ' if not place else ' ' * 13}{_mark(place)} {error}"))
    titles = ("TOPIC", "PARTITION", "LAST TRY")
    columns = 3 if fields["marker_errors"] else 2
    rows = [(each["topic"], each["partition"], _mark(each["marker_error"]))[:columns] for each in fields["partitions"]]
    print_table(titles[:columns], rows)


def _mark(place: int | None) -> str:
    """Return the number that stands for an error in the table, "" for none."""
    return "" if place is None else f"[{place + 1}]"


# ----------------------------------------------------------------------------------------------------------- fence


def fence(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Fence the producers of the ids, as Kafka's ``Admin.fenceProducers``.  Returns 1 if one could not be fenced."""
    status = 0
    for transactional_id in arguments.ids:
        try:
            coordinators.describe_id(admin, arguments, transactional_id)  # an id that does not exist would be created
            producer_id, epoch = _fenced(admin, arguments, transactional_id)
        except RequestRefused as error:
            status = fail(str(error))
            continue
        if arguments.json:
            print_json({"transactional_id": transactional_id, "producer_id": producer_id, "producer_epoch": epoch})
        else:
            print(printable(f"{transactional_id}: fenced, now producer id {producer_id}, epoch {epoch}"))
    return status


def _fenced(admin: AdminClient, arguments: argparse.Namespace, transactional_id: str) -> tuple[int, int]:
    """Return producer id and epoch after the fence.  CONCURRENT_TRANSACTIONS says that the abort is under way."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
    )

    def init() -> Any:
        response = ask(admin, request)
        raise_if_moving(response.error_code)
        return response

    response = of_coordinator(arguments, init)
    what = f"transactional id {transactional_id}"
    check(response.error_code, None, f"{what} was not fenced", f"Write on {what}")
    return response.producer_id, response.producer_epoch
