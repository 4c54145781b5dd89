"""``bmq group reset-offsets``: set the offsets from which a group without members continues to read.

As in Kafka's own tool, the result is printed, and set only with ``--execute``; targets outside of a partition are moved
to its nearer end.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import OffsetAndMetadata, TopicPartition
from kafka.protocol.consumer import OffsetTimestamp

from bmq.cli.admin_client import AdminClient, describe_code, needs, of_coordinator
from bmq.cli.group.offsets import PartitionEnds, ends_of, led_partitions
from bmq.cli.output import fail, print_json, print_table
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused

EMPTY_STATES = ("Empty", "Dead")
"""States of a group whose offsets may be set; Dead is the state of one that does not exist."""


class Reset(NamedTuple):
    """The new offset of one partition; ``current`` is None if nothing was committed."""

    key: TopicPartition
    current: int | None
    new: int


# --------------------------------------------------------------------------------------------------------- command


def reset(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Set the offsets, or print what would be set.  Returns 1 if a partition's offset was not set; the others are.

    Raises RequestRefused or UsageError if nothing can be set.
    """
    with needs(f"Describe on group {arguments.group}"):
        _check_empty(admin, arguments)
        committed = of_coordinator(arguments, admin.list_group_offsets, [arguments.group])[arguments.group]
    keys = _keys(admin, arguments, committed)
    ends = ends_of(admin, keys)
    homeless = sorted(set(keys) - set(ends))
    if homeless:
        raise RequestRefused(f"{_name(homeless[0])} has no leader now; try again")
    resets = _plan(admin, arguments, keys, committed, ends)
    errors: Mapping[TopicPartition, Any] = {}
    if arguments.execute:
        offsets = {each.key: OffsetAndMetadata(each.new, "", -1) for each in resets}
        with needs(f"Read on group {arguments.group}"):
            errors = of_coordinator(arguments, admin.alter_group_offsets, arguments.group, offsets)
    return _report(arguments, resets, errors)


def _check_empty(admin: AdminClient, arguments: argparse.Namespace) -> None:
    """Raise RequestRefused if the group has members.

    A group that does not exist yet is empty: its offsets may be set first.
    """
    group = of_coordinator(arguments, admin.describe_groups, [arguments.group])[arguments.group]
    if group["error"] is None and group["group_state"] not in EMPTY_STATES:
        state, members = group["group_state"], len(group["members"])
        raise RequestRefused(f"group {arguments.group} is {state}, its members {members}; stop its consumers first")


def _keys(
    admin: AdminClient, arguments: argparse.Namespace, committed: Mapping[TopicPartition, Any]
) -> list[TopicPartition]:
    """Return the selected partitions, sorted.  Raises RequestRefused if one does not exist."""
    if arguments.all_topics:
        if not committed:
            raise RequestRefused(f"group {arguments.group} has committed nothing; name topics with --topic")
        there = led_partitions(admin, {key.topic for key in committed})
        return sorted(key for key in there if key in committed)
    there = led_partitions(admin, {name for name, _ in arguments.topic})
    keys: set[TopicPartition] = set()
    for name, numbers in arguments.topic:
        known = {key for key in there if key.topic == name}
        wanted = known if numbers is None else {TopicPartition(name, number) for number in numbers}
        missing = sorted(wanted - known)
        if not known or missing:
            what = _name(missing[0]) if known else f"topic {name}"
            raise RequestRefused(f"{what}: {describe_code(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}")
        keys |= wanted
    return sorted(keys)


def _plan(
    admin: AdminClient,
    arguments: argparse.Namespace,
    keys: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, Any],
    ends: Mapping[TopicPartition, PartitionEnds],
) -> list[Reset]:
    current = {key: committed[key].offset for key in keys if key in committed and committed[key].offset >= 0}
    targets = _targets(admin, arguments, keys, current, ends)
    return [Reset(key, current.get(key), min(max(targets[key], ends[key].earliest), ends[key].latest)) for key in keys]


def _targets(
    admin: AdminClient,
    arguments: argparse.Namespace,
    keys: Collection[TopicPartition],
    current: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, PartitionEnds],
) -> dict[TopicPartition, int]:
    """Return each partition's target, not yet limited to the partition."""
    if arguments.to_earliest:
        return {key: ends[key].earliest for key in keys}
    if arguments.to_latest:
        return {key: ends[key].latest for key in keys}
    if arguments.to_offset is not None:
        return dict.fromkeys(keys, arguments.to_offset)
    if arguments.shift_by is not None:
        fresh = sorted(set(keys) - set(current))
        if fresh:
            raise UsageError(f"{_name(fresh[0])} has no committed offset to shift; use --to-earliest or another target")
        return {key: current[key] + arguments.shift_by for key in keys}
    found = admin.list_partition_offsets(dict.fromkeys(keys, OffsetTimestamp(arguments.to_datetime)))
    return {key: found[key].offset if found[key].offset >= 0 else ends[key].latest for key in keys}


def _report(arguments: argparse.Namespace, resets: Sequence[Reset], errors: Mapping[TopicPartition, Any]) -> int:
    failed = {
        key: describe_code(error.errno, right=_right(arguments, error.errno, key))
        for key, error in errors.items()
        if error.errno
    }
    done = [each for each in resets if each.key not in failed]
    if arguments.json:
        for each in done:
            print_json(
                {
                    "group": arguments.group,
                    "topic": each.key.topic,
                    "partition": each.key.partition,
                    "current": each.current,
                    "new": each.new,
                    "executed": arguments.execute,
                }
            )
    else:
        print_table(("TOPIC", "PARTITION", "CURRENT", "NEW"), [(*each.key, each.current, each.new) for each in done])
        if not arguments.execute:
            print("nothing was changed; add --execute to do it")
    for key, text in sorted(failed.items()):
        fail(f"{_name(key)} was not set: {text}")
    return 1 if failed else 0


def _right(arguments: argparse.Namespace, code: int, key: TopicPartition) -> str:
    is_of_group = code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    return f"Read on group {arguments.group}" if is_of_group else f"Read on topic {key.topic}"


def _name(key: TopicPartition) -> str:
    return f"partition {key.partition} of topic {key.topic}"
