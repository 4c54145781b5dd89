"""DescribeGroups 0-6, ListGroups 0-5, DeleteGroups 0-2: from Kafka's messages to the shards and back."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.meta.coordinator.group import Group
from bmq.meta.coordinator.members import Member
from bmq.meta.coordinator.shards import Shards
from bmq.meta.coordinator.states import State

CLASSIC = "classic"
GROUP_OPERATIONS = frozenset({3, 6, 8, 10, 11})
"""What may be done to a group while nothing is forbidden: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""

_Describe = m.DescribeGroupsResponse.DescribedGroup
_Listed = m.ListGroupsResponse.ListedGroup
_Deleted = m.DeleteGroupsResponse.DeletableGroupResult


async def describe_groups(shards: Shards, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    is_asked = request.API_VERSION >= 3 and request.include_authorized_operations
    operations = GROUP_OPERATIONS if is_asked else None
    answers = await asyncio.gather(
        *(_describe(shards, group_id, request.API_VERSION, operations) for group_id in request.groups)
    )
    return m.DescribeGroupsResponse(groups=answers)


async def _describe(shards: Shards, group_id: str, version: int, operations: frozenset[int] | None) -> Any:
    try:
        group = (await shards.serving(group_id)).state.groups.get(group_id)
    except RequestError as error:
        return described(group_id, operations, error_code=error.code, error_message=error.message)
    if group is not None:
        return described(
            group_id,
            operations,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=group.protocol or "" if group.state is State.STABLE else "",
            members=[_member(group, each) for each in group.members],
        )
    if version < 6:
        return described(group_id, operations, group_state=State.DEAD.value)
    return described(  # KIP-1043
        group_id,
        operations,
        group_state=State.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} not found.",
    )


def described(group_id: str, operations: frozenset[int] | None, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
    return _Describe(group_id=group_id, authorized_operations=operations, **{**defaults, **fields})


def _member(group: Group, member: Member) -> Any:
    """A member's metadata is shown when the group is Stable, as in Kafka."""
    return _Describe.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol) if group.state is State.STABLE else b"",
        member_assignment=member.assignment,
    )


async def list_groups(
    shards: Shards, request: m.ListGroupsRequest, only: Set[int] | None = None
) -> m.ListGroupsResponse:
    """``only``: groups of these shards, all of which must be served here.

    Filters are read without case; what no group can be matches none.
    """
    states = {each.lower() for each in request.states_filter} if request.API_VERSION >= 4 else set()
    types = {each.lower() for each in request.types_filter} if request.API_VERSION >= 5 else set()
    try:
        serving = await shards.all_serving(only)
    except RequestError as error:
        return m.ListGroupsResponse(error_code=error.code, groups=[])
    return m.ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=[
            _Listed(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC,
            )
            for each in serving
            for group in each.state.groups.values()
            if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types)
        ],
    )


async def delete_groups(shards: Shards, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    codes = await asyncio.gather(*(_delete(shards, group_id) for group_id in names))
    return m.DeleteGroupsResponse(
        results=[_Deleted(group_id=group_id, error_code=code) for group_id, code in zip(names, codes, strict=True)]
    )


async def _delete(shards: Shards, group_id: str) -> ErrorCode:
    try:
        serving = await shards.serving(group_id)
        await serving.room()
        group = serving.state.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        await serving.delete_group(group)
    except RequestError as error:
        return error.code
    return ErrorCode.NONE
