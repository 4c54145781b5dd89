"""DescribeGroups 0-6, ListGroups 0-5, DeleteGroups 0-2: from Kafka's messages to the shards and back."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from bmq.coordinator.api import GroupListing
from bmq.coordinator.group.members import GroupMember
from bmq.coordinator.group.states import GroupState
from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.manager import GroupShards
from bmq.coordinator.group_shard.offsets import OFFSET_ELEMENTS, OFFSETS_A_TURN
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.endpoint.response_room import NO_ROOM, ResponseRoom

CLASSIC = "classic"
GROUP_OPERATIONS = frozenset({3, 6, 8, 10, 11})
"""All operations on a group, each allowed: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""

SHARD_LOST = "the shard moved to another process during the request"
MEMBER_BYTES = 200
"""About the bytes of a member in a response without its metadata and assignment: ids and the client's address."""

_Describe = m.DescribeGroupsResponse.DescribedGroup
_Listed = m.ListGroupsResponse.ListedGroup
_Deleted = m.DeleteGroupsResponse.DeletableGroupResult


async def describe_groups(shards: GroupShards, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    """Serve a DescribeGroups.  A group that is named twice is described once.

    Groups past the room for one response get COORDINATOR_LOAD_IN_PROGRESS, so that the client asks for them again.
    """
    is_asked = request.API_VERSION >= 3 and request.include_authorized_operations
    operations = GROUP_OPERATIONS if is_asked else None
    names = list(dict.fromkeys(request.groups))
    found = await shards.serving_each(names)
    turns, room, answers = Turns(), ResponseRoom(), []
    for group_id, serving in zip(names, found, strict=True):
        if turns.is_over():
            await next_turn()
        if room.is_full:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answers.append(described(group_id, operations, error_code=code, error_message=NO_ROOM))
        else:
            answers.append(await _describe(serving, group_id, request.API_VERSION, operations, turns, room))
    return m.DescribeGroupsResponse(groups=answers)


async def _describe(
    serving: ActiveGroups | RequestError,
    group_id: str,
    version: int,
    operations: frozenset[int] | None,
    turns: Turns,
    room: ResponseRoom,
) -> Any:
    if isinstance(serving, RequestError):
        return described(group_id, operations, error_code=serving.code, error_message=serving.message)
    if serving.is_closed:
        return described(group_id, operations, error_code=ErrorCode.NOT_COORDINATOR, error_message=SHARD_LOST)
    group = serving.state.groups.get(group_id)
    if group is not None:
        state, protocol, members = group.state, group.protocol, []
        for each in list(group.members):
            if turns.is_over():
                await next_turn()
            shown = _member(each, state, protocol)
            members.append(shown)
            room.take(MEMBER_BYTES + len(shown.member_metadata) + len(shown.member_assignment))
        return described(
            group_id,
            operations,
            group_state=state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "" if state is GroupState.STABLE else "",
            members=members,
        )
    if version < 6:
        return described(group_id, operations, group_state=GroupState.DEAD.value)
    return described(  # KIP-1043
        group_id,
        operations,
        group_state=GroupState.DEAD.value,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {group_id} not found.",
    )


def described(group_id: str, operations: frozenset[int] | None, **fields: Any) -> Any:
    """Return a DescribedGroup with these fields, and for the others Kafka's empty values.

    ``operations`` are the authorized operations; None if the request did not ask for them.
    """
    defaults: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
    return _Describe(group_id=group_id, authorized_operations=operations, **{**defaults, **fields})


def _member(member: GroupMember, state: GroupState, protocol: str | None) -> Any:
    """Describe a member.  Its metadata is shown only while the group is Stable, as in Kafka."""
    return _Describe.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol) if state is GroupState.STABLE else b"",
        member_assignment=member.assignment,
    )


async def list_groups(shards: GroupShards, request: m.ListGroupsRequest, only: Set[int] | None = None) -> GroupListing:
    """List the groups of the shards ``only``, or of all shards of this process if it is None.

    State and type filters ignore case; an unknown value matches no group.
    """
    states = {each.lower() for each in request.states_filter} if request.API_VERSION >= 4 else set()
    types = {each.lower() for each in request.types_filter} if request.API_VERSION >= 5 else set()
    found = await shards.all_serving(only)
    missing = {number: each.code for number, each in found.items() if isinstance(each, RequestError)}
    turns, listed = Turns(), []
    for number, serving in found.items():
        if serving is None or isinstance(serving, RequestError):
            continue
        some = []
        for group in list(serving.state.groups.values()):
            if turns.is_over():
                await next_turn()
            if (not states or group.state.value.lower() in states) and (not types or CLASSIC in types):
                some.append(
                    _Listed(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=group.state.value,
                        group_type=CLASSIC,
                    )
                )
        if serving.is_closed:
            missing[number] = ErrorCode.NOT_COORDINATOR
        else:
            listed += some
    return GroupListing(listed, frozenset(found), missing)


async def delete_groups(shards: GroupShards, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
    """Serve a DeleteGroups.  A group and its offsets are deleted in one step.

    More than ``OFFSETS_A_TURN`` offsets of a group, committed or pending, are deleted first, in several turns.
    """
    names = list(dict.fromkeys(request.groups_names))
    found = await shards.serving_each(names)
    turns, codes = Turns(), dict.fromkeys(names, ErrorCode.NONE)
    written: dict[ActiveGroups, list[str]] = {}
    for group_id, serving in zip(names, found, strict=True):
        try:
            if isinstance(serving, RequestError):
                raise serving
            state = serving.state
            count = state.offsets.count_of_group(group_id) + state.pending.count_of_group(group_id)
            if count > OFFSETS_A_TURN:
                await serving.delete_many_offsets(group_id, turns)
            elif turns.is_over(1 + count * OFFSET_ELEMENTS):
                await next_turn()
            await serving.room()
            codes[group_id] = _delete(serving, group_id)
            if codes[group_id] is ErrorCode.NONE:
                written.setdefault(serving, []).append(group_id)
        except RequestError as error:
            codes[group_id] = error.code
    for each in written:
        try:
            await each.durable()
        except RequestError as error:
            codes.update(dict.fromkeys(written[each], error.code))
    results = await map_in_turns(lambda group_id: _Deleted(group_id=group_id, error_code=codes[group_id]), names)
    return m.DeleteGroupsResponse(results=results)


def _delete(serving: ActiveGroups, group_id: str) -> ErrorCode:
    group = serving.state.groups.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    serving.delete_group(group)
    return ErrorCode.NONE
