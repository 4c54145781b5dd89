"""Clients that give a request up: it stays unread in a process that stands still, and they go on through another."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.response_errors import error_codes
from tests.harness.network import Disconnected
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.group_clients import assignment, subscription
from tests.simulation.kafka_clients import Refused, check, pause, produce_request

GIVES_UP_S = 3.0
"""Request time-out of these clients: short, as many set it."""
SHORT_S = 0.3, 1.0
"""The shortest time-outs that clients set."""


class Message(NamedTuple):
    """A request, with the class of its response and the version of both."""

    request: Any
    response: type[Any]
    version: int


def commit_request(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    """Return the commit of a consumer that assigns its partitions itself."""
    Topic = OffsetCommitRequest.OffsetCommitRequestTopic
    part = Topic.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[Topic(name=topic, partitions=[part])],
    )  # fmt: skip


def join_request(
    group: str, topic: str, instance: str, member: str = "", rebalance_ms: int = 20_000
) -> JoinGroupRequest:
    Protocol = JoinGroupRequest.JoinGroupRequestProtocol
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=120_000, rebalance_timeout_ms=rebalance_ms, member_id=member,
        group_instance_id=instance, protocol_type="consumer",
        protocols=[Protocol(name="range", metadata=subscription(topic))],
    )  # fmt: skip


def sync_request(
    group: str, topic: str, instance: str, member: str, generation: int, partitions: list[int]
) -> SyncGroupRequest:
    """Return the request of a member that is alone in its group, with its own assignment."""
    Assignment = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance,
        assignments=[Assignment(member_id=member, assignment=assignment(topic, partitions))],
    )  # fmt: skip


def offset_request(topic: str, partition: int, timestamp: int) -> ListOffsetsRequest:
    Topic = ListOffsetsRequest.ListOffsetsTopic
    part = Topic.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[Topic(name=topic, partitions=[part])])


def leave_request(group: str, instance: str) -> LeaveGroupRequest:
    """Return the request that removes a static member, by its instance alone."""
    leaving = LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance)
    return LeaveGroupRequest(group_id=group, members=[leaving])


def delete_request(topic: str, offset: int) -> DeleteRecordsRequest:
    Topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = Topic.DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(topics=[Topic(name=topic, partitions=[part])], timeout_ms=20_000)


def plain_request(topic: str, timestamp: int, count: int) -> Any:
    """Return a produce of records with this timestamp, without a producer id."""
    return produce_request(topic, 0, bytes(build_batch([Record(value=b"v")] * count, base_timestamp=timestamp)), -1)


async def abandon(
    client: ClusterClient, message: Message, gives_up_s: float = GIVES_UP_S, *, may_respond: bool = False
) -> None:
    """Send a request to a process that stands still, and give it up with its connection.

    ``may_respond``: the process stands still from the moment at which it reads a client's request.  It may respond to
    this request in the same turn of its loop.
    """
    try:
        reply = await client.call(*message, gives_up_s)
    except Disconnected:
        return
    assert may_respond, f"a process that stands still has responded {reply}"


async def insist(world: ClusterWorld, client: ClusterClient, ask: Any) -> Any:
    """Return what ``ask`` returns, asked again after each retriable error."""
    for _ in range(200):
        try:
            return await ask(client)
        except Disconnected:
            await pause(world)
        except Refused as refused:
            if not refused.code.is_retriable:
                raise
            await pause(world)
    raise AssertionError("no response that is not an error")


async def respond(client: ClusterClient, message: Message, done: Collection[ErrorCode] = ()) -> Any:
    """Return the response.  Raises Refused for any error in it that is not in ``done``, which a repetition may get."""
    response = await client.call(*message)
    for code in error_codes(response):
        if code not in done:
            check(code)
    return response


async def commit(client: ClusterClient, group: str, topic: str, offset: int) -> None:
    response = await client.call(commit_request(group, topic, offset), OffsetCommitResponse, 7)
    check(response.topics[0].partitions[0].error_code)


async def committed(client: ClusterClient, group: str, topic: str) -> int:
    Topic = OffsetFetchRequest.OffsetFetchRequestTopic
    request = OffsetFetchRequest(group_id=group, topics=[Topic(name=topic, partition_indexes=[0])], require_stable=True)
    response = await client.call(request, OffsetFetchResponse, 7)
    check(response.error_code)
    check(response.topics[0].partitions[0].error_code)
    return int(response.topics[0].partitions[0].committed_offset)


async def join(client: ClusterClient, group: str, topic: str, instance: str) -> tuple[str, int]:
    """Join as a static member that is alone in its group; return its member id and the generation."""
    joined = await client.call(join_request(group, topic, instance), JoinGroupResponse, 5, timeout_s=60)
    check(joined.error_code)
    request = sync_request(group, topic, instance, joined.member_id, joined.generation_id, [0])
    code = ErrorCode((await client.call(request, SyncGroupResponse, 3, timeout_s=60)).error_code)
    if code is ErrorCode.UNKNOWN_MEMBER_ID:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # the group has another coordinator: the client joins again
    check(code)
    return joined.member_id, joined.generation_id


async def heartbeat(client: ClusterClient, group: str, instance: str, member: str, generation: int) -> ErrorCode:
    request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)
    return ErrorCode((await client.call(request, HeartbeatResponse, 3)).error_code)


async def offset_for(client: ClusterClient, topic: str, partition: int, timestamp: int) -> int:
    response = await client.call(offset_request(topic, partition, timestamp), ListOffsetsResponse, 7)
    found = response.topics[0].partitions[0]
    check(found.error_code)
    return int(found.offset)


async def settle() -> None:
    """Let everything that was left behind arrive, and what it causes happen."""
    await asyncio.sleep(10)
