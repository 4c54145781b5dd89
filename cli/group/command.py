"""``bmq group``: consumer groups of a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import TopicPartition

from bmq.cli.admin_client import (
    AdminClient,
    check,
    describe_code,
    needs,
    of_coordinator,
    of_each_server,
    read_error,
    tell_silent,
)
from bmq.cli.group.offsets import ends_of
from bmq.cli.output import fail, print_json, print_table, printable
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused

# ------------------------------------------------------------------------------------------------------------ list


def list_groups(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the groups, of which each server lists a part.

    Returns 1 if some servers cannot list theirs now; the groups of the others are printed.
    """
    groups: list[dict[str, Any]]
    groups, silent = of_each_server(admin, arguments, lambda server: list(admin.list_groups([server])))
    rows = [
        (group["group_id"], group.get("group_state", ""), group.get("group_type", ""), group["protocol_type"])
        for group in sorted(groups, key=lambda group: str(group["group_id"]))
    ]
    if arguments.json:
        for row in rows:
            print_json(dict(zip(("group", "state", "type", "protocol_type"), row, strict=True)))
    else:
        none = "" if silent else "there are no groups"
        print_table(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows, if_none=none)
    return tell_silent(silent, "groups", "groups")


# -------------------------------------------------------------------------------------------------------- describe


def describe(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print one block a group.  Returns 1 if one of them could not be described; the others are printed."""
    status, is_first = 0, True
    for group_id in arguments.groups:
        try:
            with needs(f"Describe on group {group_id}"):
                group = _existing(admin, arguments, group_id)
                members = [_member(member) for member in group["members"]]
                offsets = _offsets(admin, arguments, group_id, members)
        except RequestRefused as error:
            status = fail(str(error))
            continue
        if arguments.json:
            print_json(
                {
                    "group": group_id,
                    "state": group["group_state"],
                    "protocol_type": group["protocol_type"],
                    "assignor": group["protocol_data"] or None,
                    "members": members,
                    "offsets": offsets,
                }
            )
        else:
            if not is_first:
                print()
            is_first = False
            _print(group, members, offsets)
    return status


def _existing(admin: AdminClient, arguments: argparse.Namespace, group_id: str) -> Mapping[str, Any]:
    """Return the coordinator's description of a group.  Raises RequestRefused if the group does not exist.

    Before version 6 of DescribeGroups there is no error for a group that does not exist: it is Dead then.
    """
    group = of_coordinator(arguments, admin.describe_groups, [group_id])[group_id]
    code, message = read_error(group["error"]) if group["error"] is not None else (ErrorCode.NONE, "")
    if code == ErrorCode.GROUP_ID_NOT_FOUND or group["group_state"] == "Dead":
        raise RequestRefused(
            f"group {group_id}: there is no such group of the classic protocol; `bmq group list` shows all"
        )
    check(code, message, f"group {group_id}", f"Describe on group {group_id}")
    return group


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member; ``partitions`` is its assignment, empty if that is not in the consumers' format."""
    assignment = member["member_assignment"]
    assigned = assignment["assigned_partitions"] if isinstance(assignment, dict) else []
    return {
        "member_id": member["member_id"],
        "group_instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "client_host": member["client_host"],
        "partitions": [
            {"topic": each["topic"], "partition": partition} for each in assigned for partition in each["partitions"]
        ],
    }


def _offsets(
    admin: AdminClient, arguments: argparse.Namespace, group_id: str, members: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return, by topic and partition, the committed offset, the partition's end, the lag, and the member that has
    it."""
    committed = of_coordinator(arguments, admin.list_group_offsets, [group_id])[group_id]
    holders = {
        TopicPartition(each["topic"], each["partition"]): member["member_id"]
        for member in members
        for each in member["partitions"]
    }
    keys = sorted({*committed, *holders})
    ends = ends_of(admin, keys)
    rows = []
    for key in keys:
        offset = committed[key].offset if key in committed and committed[key].offset >= 0 else None
        latest = ends[key].latest if key in ends else None
        rows.append(
            {
                "topic": key.topic,
                "partition": key.partition,
                "committed": offset,
                "latest": latest,
                "lag": None if offset is None or latest is None else max(latest - offset, 0),
                "member_id": holders.get(key),
            }
        )
    return rows


def _print(
    group: Mapping[str, Any], members: Sequence[Mapping[str, Any]], offsets: Sequence[Mapping[str, Any]]
) -> None:
    lags = [row["lag"] for row in offsets if row["lag"] is not None]
    print(printable(f"group {group['group_id']}"))
    print(printable(f"  state        {group['group_state']}"))
    print(printable(f"  assignor     {group['protocol_data'] or '-'}"))
    print(f"  members      {len(members)}")
    print(f"  lag          {sum(lags) if lags else '-'}")
    titles = ("TOPIC", "PARTITION", "COMMITTED", "LATEST", "LAG", "MEMBER")
    print_table(titles, [tuple(row.values()) for row in offsets])
    print_table(
        ("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"),
        [
            (
                member["member_id"],
                member["group_instance_id"],
                member["client_id"],
                member["client_host"],
                len(member["partitions"]),
            )
            for member in members
        ],
    )


# ---------------------------------------------------------------------------------------------------------- delete


def delete(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Delete the groups.  Returns 1 if one of them could not be deleted; the others are."""
    status = 0
    for group_id, result in of_coordinator(arguments, admin.delete_groups, arguments.groups).items():
        if result == "OK":
            if arguments.json:
                print_json({"group": group_id, "deleted": True})
            else:
                print(printable(f"group {group_id} deleted"))
        else:
            reason = _REASONS.get(result, result)
            if result == "GroupAuthorizationFailedError":
                reason = describe_code(ErrorCode.GROUP_AUTHORIZATION_FAILED, right=f"Delete on group {group_id}")
            status = fail(f"group {group_id} was not deleted: {reason}")
    return status


_REASONS = {
    "GroupIdNotFoundError": "there is no such group; `bmq group list` shows what exists",
    "NonEmptyGroupError": "it has members; stop its consumers first",
}
"""Reasons by the name of kafka-python's exception, which is all that it passes on."""
