"""``bmq consume``: records of topics on standard output, over Kafka's protocol.

The client is kafka-python's consumer.  Without a group it reads partitions that it assigns itself, from a place to a
place.  In a group offsets are committed after their records were written, and never before.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

from kafka import TopicPartition
from kafka.errors import CorruptRecordError, GroupAuthorizationFailedError, TopicAuthorizationFailedError
from kafka.protocol.consumer import OffsetSpec, OffsetTimestamp

from bmq.cli.admin_client import (
    COORDINATOR_ERRORS,
    AdminClient,
    describe_code,
    explain,
    of_coordinator,
    open_client,
)
from bmq.cli.group.offsets import ends_of, led_partitions
from bmq.cli.output import fail
from bmq.cli.records.consume_loop import ConsumeLoop, Consumer, Plan, partition_name, stop_signals
from bmq.cli.records.group_consumer import GroupConsumer
from bmq.cli.records.output import Writer, fields_writer, json_writer, raw_writer, text_writer
from bmq.cli.records.positions import (
    LogBounds,
    Position,
    PositionKind,
    end_offset,
    start_offset,
)
from bmq.cli.records.text import Encoding
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused, ServerUnreachable

FETCH_BYTES_MAX = 16 << 20
REQUEST_MS_MIN = 30_000
LEADER_WAIT_S = 0.2
_PLACE = re.compile(
    r"TopicPartition\(topic='(?P<topic>[^']+)', partition=(?P<partition>\d+)\) at offset (?P<offset>\d+)"
)
"""The place of a damaged batch: kafka-python has it in the error's text only."""


# ----------------------------------------------------------------------------------------------------------- command


def consume(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print records until the end that the command line names.  Returns the exit status.

    Raises UsageError, RequestRefused or ServerUnreachable.
    """
    _check(arguments)
    writer = _writer(arguments)
    keys = _keys(admin, arguments)
    plan = _plan(admin, arguments, keys)
    is_group = arguments.group is not None
    consumer: Consumer = open_client(
        GroupConsumer,
        arguments.bootstrap_server,
        arguments.timeout,
        arguments.settings,
        request_timeout_ms=max(REQUEST_MS_MIN, int(arguments.timeout * 1000)),
        group_id=arguments.group,
        enable_auto_commit=False,
        auto_offset_reset="latest" if is_group and arguments.start == Position(PositionKind.LATEST) else "earliest",
        isolation_level=arguments.isolation_level,
        fetch_max_bytes=FETCH_BYTES_MAX,
        allow_auto_create_topics=False,
        exclude_internal_topics=False,
        metrics_enabled=False,
    )
    with stop_signals() as stopped:
        has_readers = partial(_has_readers, admin, arguments, frozenset(keys), consumer) if is_group else _always
        check_group = partial(_check_coordinator, admin, arguments.group) if is_group else _nothing
        reading = ConsumeLoop(consumer, arguments, writer, sys.stdout.buffer, plan, stopped, has_readers, check_group)
        try:
            if is_group:
                consumer.subscribe(sorted(set(arguments.topics)), listener=reading)
            else:
                consumer.assign(sorted(plan.starts))
                for key, offset in plan.starts.items():
                    consumer.seek(key, offset)
                reading.has_joined = True
            with reads(arguments):
                reading.run()
        finally:
            consumer.close(autocommit=False, timeout_ms=int(arguments.timeout * 1000))
        return 128 + stopped.signal if stopped.signal else 0


@contextlib.contextmanager
def reads(arguments: argparse.Namespace) -> Iterator[None]:
    """Raise RequestRefused for errors of kafka-python: it names the missing right, or the damaged batch."""
    try:
        yield
    except GroupAuthorizationFailedError as error:
        right = f"Read on group {arguments.group}"
        raise RequestRefused(describe_code(ErrorCode.GROUP_AUTHORIZATION_FAILED, right=right)) from error
    except TopicAuthorizationFailedError as error:
        names = sorted(error.args[0]) if error.args and isinstance(error.args[0], set | frozenset) else arguments.topics
        right = f"Read on topic {', '.join(names)}"
        raise RequestRefused(describe_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED, right=right)) from error
    except CorruptRecordError as error:
        raise RequestRefused(_damage(error)) from error


def _damage(error: CorruptRecordError) -> str:
    """Return the text of a batch whose CRC is wrong: its place, and what helps."""
    name = ErrorCode.CORRUPT_MESSAGE.name
    place = _PLACE.search(str(error))
    if place is None:
        return f"a batch is damaged ({name}), another try does not help: `bmq segment verify --topic TOPIC` names it"
    topic, partition, offset = place["topic"], int(place["partition"]), place["offset"]
    return (
        f"{partition_name(TopicPartition(topic, partition))}: the batch at offset {offset} is damaged ({name}), another"
        f" try does not help: `bmq segment verify --topic {topic} --partition {partition}` shows the fault,"
        f" `bmq segment repair {topic} {partition} --all` what can be kept; to pass the batch, begin behind it (--from,"
        " of a group `bmq group reset-offsets`)"
    )


def _check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that exclude each other."""
    if arguments.json:
        if arguments.format not in (None, "json"):
            raise UsageError("--json is --format json: give one of them")
        arguments.format = "json"
    arguments.format = arguments.format or "text"
    if arguments.format != "text" and (arguments.key_separator is not None or arguments.null):
        raise UsageError("--key-separator and --null belong to --format text")
    if arguments.format == "raw" and arguments.value_encoding is not Encoding.TEXT:
        raise UsageError("--format raw writes values as they are; use --format text for an encoding")
    if arguments.group is None:
        if arguments.no_commit:
            raise UsageError("--no-commit belongs to --group; without a group nothing is committed")
    elif arguments.partition:
        raise UsageError("a group shares all partitions among its members: leave out --partition, or --group")
    elif arguments.start is not None and arguments.start.kind not in (PositionKind.EARLIEST, PositionKind.LATEST):
        raise UsageError(
            "a group continues after what it has committed; --from is earliest or latest, for where it has nothing"
            " (`bmq group reset-offsets` sets its offsets)"
        )
    if arguments.end is not None and arguments.end.kind in (PositionKind.EARLIEST, PositionKind.LAST):
        raise UsageError("--to is latest, an offset or a time")


def _writer(arguments: argparse.Namespace) -> Writer:
    encodings = {"key_encoding": arguments.key_encoding, "value_encoding": arguments.value_encoding}
    match arguments.format:
        case "raw":
            return raw_writer
        case "json":
            return json_writer(**encodings)
        case "fields":
            return fields_writer(has_topic=len(set(arguments.topics)) > 1, **encodings)
        case _:
            return text_writer(
                key_separator=arguments.key_separator,
                delimiter=arguments.delimiter,
                null=arguments.null.encode("utf-8", "surrogateescape"),
                is_terminal=sys.stdout.isatty(),
                **encodings,
            )


# -------------------------------------------------------------------------------------------------------- what to read


def _keys(admin: AdminClient, arguments: argparse.Namespace) -> list[TopicPartition]:
    """Return the partitions to be read, once each has a leader.

    Raises RequestRefused if one does not exist, or has no leader until ``--timeout``.
    """
    deadline = monotonic() + arguments.timeout
    while True:
        led = led_partitions(admin, set(arguments.topics))
        keys = _wanted(led.keys(), arguments)
        homeless = [key for key in keys if not led[key]]
        if not homeless:
            return keys
        if monotonic() > deadline:
            raise RequestRefused(
                f"{partition_name(homeless[0])} has no leader now: no live broker serves it; try again,"
                " or see which brokers live: `bmq cluster status`"
            )
        sleep(LEADER_WAIT_S)


def _wanted(known: Collection[TopicPartition], arguments: argparse.Namespace) -> list[TopicPartition]:
    numbers = None if arguments.partition is None else {number for each in arguments.partition for number in each}
    for topic in arguments.topics:
        there = {key.partition for key in known if key.topic == topic}
        if not there:
            raise RequestRefused(f"topic {topic}: {describe_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}")
        missing = sorted((numbers or set()) - there)
        if missing:
            raise RequestRefused(f"topic {topic} has no partition {missing[0]}; it has {len(there)}, from 0 up")
    return sorted(key for key in known if numbers is None or key.partition in numbers)


def _plan(admin: AdminClient, arguments: argparse.Namespace, keys: Sequence[TopicPartition]) -> Plan:
    start: Position = arguments.start or Position(PositionKind.EARLIEST)
    end: Position | None = arguments.end
    is_committed = arguments.isolation_level == "read_committed"
    # Before the last stable offset: a transaction that begins in between must not look like an open one.
    watermarks = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST)) if is_committed and end else {}
    found = ends_of(admin, keys, is_committed=is_committed)

    def bounds(place: Position) -> dict[TopicPartition, LogBounds]:
        at_time: Mapping[TopicPartition, Any] = {}
        if place.kind is PositionKind.TIME:
            at_time = admin.list_partition_offsets(dict.fromkeys(keys, OffsetTimestamp(place.number)))
        return {key: LogBounds(found[key].earliest, found[key].latest, _offset(at_time.get(key))) for key in keys}

    starts = {key: start_offset(start, each) for key, each in bounds(start).items()}
    if start.kind is PositionKind.OFFSET and arguments.group is None:
        for key, offset in starts.items():
            if offset != start.number:
                there = f"{found[key].earliest} to {found[key].latest}"
                fail(f"note: {partition_name(key)} has offsets {there}: begins at {offset}")
    if end is None:
        return Plan(starts)
    ends = {key: end_offset(end, each) for key, each in bounds(end).items()}
    least = 1 if end.kind is PositionKind.OFFSET else 0  # an offset that is the last stable one leaves out nothing
    _note_open(
        {
            key: found[key].latest
            for key, watermark in watermarks.items()
            if found[key].latest < watermark.offset and ends[key] >= found[key].latest + least
        }
    )
    return Plan(starts, ends, frozenset(key for key in keys if ends[key] <= found[key].latest))


def _note_open(stable: Mapping[TopicPartition, int]) -> None:
    """Print a note about partitions that end at an open transaction, given with their last stable offsets."""
    if not stable:
        return
    first = min(stable)
    more = f" and {len(stable) - 1} more" if len(stable) > 1 else ""
    fail(
        f"note: {partition_name(first)}{more}: a transaction is open from offset {stable[first]} on, and holds back the"
        " records behind it: --isolation-level read_uncommitted shows them; `bmq transaction` ends the transaction"
    )


def _offset(found: Any) -> int | None:
    return None if found is None or found.offset < 0 else int(found.offset)


def _has_readers(
    admin: AdminClient, arguments: argparse.Namespace, keys: frozenset[TopicPartition], consumer: Consumer
) -> bool:
    """Return whether ``consumer`` and the group's other members have all of ``keys`` among them.

    A member may get no partitions at first, from a leader that does not have the topic's metadata yet; the group then
    rebalances again.  The coordinator has the new assignment before ``consumer`` has it, so for this member the
    consumer's own view counts.
    """
    group = of_coordinator(arguments, admin.describe_groups, [arguments.group])[arguments.group]
    if group["error"] is not None or group["group_state"] != "Stable":
        return False
    own, held = consumer.group_metadata().member_id, set(consumer.assignment())
    for member in group["members"]:
        if member["member_id"] == own:
            continue
        assignment = member["member_assignment"]
        for each in assignment["assigned_partitions"] if isinstance(assignment, dict) else ():
            held.update(TopicPartition(each["topic"], number) for number in each["partitions"])
    return keys <= held


def _check_coordinator(admin: AdminClient, group: str) -> None:
    """Raise ServerUnreachable if no coordinator serves the group, so that this member cannot join it."""
    try:
        admin.describe_groups([group])
    except COORDINATOR_ERRORS as error:
        raise ServerUnreachable(f"cannot join group {group}: {explain(error)}") from error


def _always() -> bool:
    return True


def _nothing() -> None:
    return None
