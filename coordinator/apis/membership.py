"""JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5: from Kafka's messages to the group machine and back."""

from __future__ import annotations

import random
import uuid
from collections.abc import Coroutine
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.group.members import metadata_bytes
from bmq.coordinator.group.messages import Join, JoinResponse, Sync, SyncResponse
from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.manager import GroupShards
from bmq.coordinator.record_fields import STRING_BYTES_MAX
from bmq.coordinator.settings import CoordinatorSettings
from bmq.core.aio.turns import ELEMENTS_A_TURN, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m

MEMBER_ID_PREFIX_MAX = 255
"""Characters of a client or instance id that go into a member id."""
PROTOCOLS_MAX = 100
"""Most protocols of one member.  A consumer has one for each of its assignors."""
MEMBER_METADATA_BYTES_MAX = 2 << 20
"""Most bytes of names and metadata of all protocols of one member.  A consumer that owns 100,000 partitions in 10,000
topics lists them for each of its assignors, in half a megabyte."""


async def join_group(
    shards: GroupShards, settings: CoordinatorSettings, request: m.JoinGroupRequest, client: ClientInfo
) -> m.JoinGroupResponse:
    """Serve a JoinGroup.  The response may wait for other members to join.  Errors are in the response."""
    try:
        _check_group_id(request.group_id)
        if not settings.session_min_ms <= request.session_timeout_ms <= settings.session_max_ms:
            raise RequestError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session timeout {request.session_timeout_ms} ms is not between {settings.session_min_ms} and "
                f"{settings.session_max_ms} ms",
            )
        join = _join_of(request, client.client_id, client.host)
        serving = await shards.serving_members(request.group_id)
        response = await serving.join(request.group_id, join, client.principal)
    except RequestError as error:
        response = JoinResponse(error.code, request.member_id)
    return join_response(request, response)


async def sync_group(shards: GroupShards, request: m.SyncGroupRequest) -> m.SyncGroupResponse:
    """Serve a SyncGroup.  The response may wait for the leader's assignment.  Errors are in the response."""
    try:
        if request.API_VERSION >= 5 and (request.protocol_type is None or request.protocol_name is None):
            raise RequestError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup 5 must name protocol type and protocol (KIP-559)"
            )
        _check_group_id(request.group_id)
        serving = await shards.serving_members(request.group_id)
        response = await serving.sync(
            request.group_id,
            Sync(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments=dict(
                    await map_in_turns(lambda each: (each.member_id, as_bytes(each.assignment)), request.assignments)
                ),
            ),
        )
    except RequestError as error:
        response = SyncResponse(error.code)
    return m.SyncGroupResponse(
        error_code=response.error,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol,
        assignment=response.assignment,
    )


def heartbeat(
    shards: GroupShards, request: m.HeartbeatRequest
) -> m.HeartbeatResponse | Coroutine[Any, Any, m.HeartbeatResponse]:
    """Serve a Heartbeat: at once, or after the shard has confirmed its ownership (``Freshness``)."""
    group_id = request.group_id
    if not group_id:
        return m.HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        serving = shards.loaded(group_id)
        if serving is None:  # the shard is loading: sessions begin when it is loaded (Kafka responds the same)
            return m.HeartbeatResponse(error_code=ErrorCode.NONE)
        if not serving.freshness.is_fresh:
            return _renewed_heartbeat(serving, request)
        code = _heartbeat(serving, request)
    except RequestError as error:
        code = error.code
    return m.HeartbeatResponse(error_code=code)


async def _renewed_heartbeat(serving: ActiveGroups, request: m.HeartbeatRequest) -> m.HeartbeatResponse:
    try:
        await serving.freshness.renew()
        code = _heartbeat(serving, request)
    except RequestError as error:
        code = error.code
    return m.HeartbeatResponse(error_code=code)


def _heartbeat(serving: ActiveGroups, request: m.HeartbeatRequest) -> ErrorCode:
    return serving.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)


async def leave_group(shards: GroupShards, request: m.LeaveGroupRequest) -> m.LeaveGroupResponse:
    """Serve a LeaveGroup.  From version 3 on it names several members, each with its own error (KIP-345)."""
    if request.API_VERSION >= 3:
        leaving = [(each.member_id, each.group_instance_id) for each in request.members]
    else:
        leaving = [(request.member_id, None)]
    try:
        _check_group_id(request.group_id)
        serving = await shards.serving(request.group_id)
    except RequestError as error:
        return m.LeaveGroupResponse(error_code=error.code, members=[])
    codes = [
        code
        for at in range(0, len(leaving), ELEMENTS_A_TURN) or (0,)
        for code in await _leave(serving, request.group_id, leaving[at : at + ELEMENTS_A_TURN], is_first=not at)
    ]
    if request.API_VERSION < 3:
        return m.LeaveGroupResponse(error_code=codes[0], members=[])
    members = await map_in_turns(
        lambda each: m.LeaveGroupResponse.MemberResponse(
            member_id=each[0][0], group_instance_id=each[0][1], error_code=each[1]
        ),
        zip(leaving, codes, strict=True),
    )
    return m.LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)


async def _leave(
    serving: ActiveGroups, group_id: str, leaving: list[tuple[str, str | None]], *, is_first: bool
) -> list[ErrorCode]:
    """Remove the members that fit into one turn of the event loop, and return their error codes."""
    if not is_first:
        await next_turn()
    if serving.is_closed:
        return [ErrorCode.NOT_COORDINATOR] * len(leaving)
    return serving.leave(group_id, leaving)


def as_bytes(data: Any) -> bytes:
    """Return a decoded bytes field, which may be a view or null, as bytes."""
    return bytes(data) if data else b""


def _check_group_id(group_id: str | None) -> None:
    if not group_id or len(group_id.encode()) > STRING_BYTES_MAX:
        raise RequestError(
            ErrorCode.INVALID_GROUP_ID, f"the group id is empty, or longer than {STRING_BYTES_MAX} bytes"
        )


def _join_of(request: m.JoinGroupRequest, client_id: str, host: str) -> Join:
    version = request.API_VERSION
    if len(request.protocols) > PROTOCOLS_MAX:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"{len(request.protocols)} protocols: at most {PROTOCOLS_MAX} are allowed"
        )
    protocols: dict[str, bytes] = {}
    for each in request.protocols:
        protocols.setdefault(each.name, as_bytes(each.metadata))
    if metadata_bytes(tuple(protocols.items())) > MEMBER_METADATA_BYTES_MAX:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"the member's protocols have more than {MEMBER_METADATA_BYTES_MAX} bytes"
        )
    texts = (request.group_instance_id or "", request.protocol_type, *protocols)
    if any(len(text.encode()) > STRING_BYTES_MAX for text in texts):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"the instance id, the protocol type or a protocol's name has more than {STRING_BYTES_MAX} bytes",
        )
    prefix = request.group_instance_id if request.group_instance_id is not None else client_id
    return Join(
        member_id=request.member_id,
        new_member_id=f"{prefix[:MEMBER_ID_PREFIX_MAX]}-{uuid.UUID(int=random.getrandbits(128), version=4)}",
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(protocols.items()),
        requires_known_id=version >= 4,
        can_skip_assignment=version >= 9,
    )


def join_response(request: m.JoinGroupRequest, response: JoinResponse) -> m.JoinGroupResponse:
    """Return the response to ``request``.  Before version 7 a missing protocol is the empty name, not null."""
    protocol = response.protocol
    return m.JoinGroupResponse(
        error_code=response.error,
        generation_id=response.generation,
        protocol_type=response.protocol_type,
        protocol_name=protocol if protocol is not None or request.API_VERSION >= 7 else "",
        leader=response.leader,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=[
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in response.members
        ],
    )
