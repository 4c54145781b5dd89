"""The group APIs from bytes to bytes, in every version that is advertised: a life of one member, and the errors."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.codec_client import decode_response, encode_response_body
from bmq.core.wire.header import response_is_flexible
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer
from bmq.meta.catalog import Topic
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tests.harness.audit import HeldAudit
from tests.harness.fakes import FakeCatalog, FakeClient
from tests.harness.members import OneProxy
from tests.harness.scopes import make_scopes
from tests.unit.coordinator.fakes import World, commit_request, join_request, running, sync_request

MODULES = (
    delete_groups, describe_groups, find_coordinator, heartbeat, join_group, leave_group, list_groups, offset_commit,
    offset_delete, offset_fetch, sync_group,
)  # fmt: skip
APIS: dict[int, Api[Any]] = {int(api.key): api for module in MODULES for api in module.APIS}


class Caller:
    """Sends requests of one version each, through the bytes, as one client."""

    def __init__(self, world: World) -> None:
        members = OneProxy(ProxyAddress(7, "proxy", 9092))
        self.audit = HeldAudit()
        self.scopes = make_scopes(coordinator=world.coordinator, proxies=members, audit=self.audit)
        self.client = FakeClient()

    async def __call__(self, message: Any, version: int) -> Any:
        api = APIS[message.API_KEY]
        version = max(api.min_version, min(version, api.max_version))
        body = memoryview(bytes(message.encode(version=version)))
        request = Request(int(api.key), version, 1, "client", body, self.client, 0.0)
        assert api.handle is not None
        response = api.handle(self.scopes, request, decode_request(int(api.key), version, body))
        if inspect.isawaitable(response):
            response = await response
        head = 5 if response_is_flexible(int(api.key), version) else 4
        data = b"".join(encode_response(int(api.key), version, 1, response))[head:]
        return type(response).decode(data, version=version)


def test_group_apis_are_registered_in_kafkas_versions() -> None:
    """Kafka 4.x's."""
    ranges = {ApiKey(key).name: (api.min_version, api.max_version) for key, api in APIS.items()}
    assert ranges == {
        "FIND_COORDINATOR": (0, 6),
        "JOIN_GROUP": (0, 9),
        "SYNC_GROUP": (0, 5),
        "HEARTBEAT": (0, 4),
        "LEAVE_GROUP": (0, 5),
        "OFFSET_COMMIT": (2, 10),
        "OFFSET_FETCH": (1, 10),
        "OFFSET_DELETE": (0, 0),
        "DESCRIBE_GROUPS": (0, 6),
        "LIST_GROUPS": (0, 5),
        "DELETE_GROUPS": (0, 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize("version", range(11))
async def test_a_group_lives_in_every_version(version: int) -> None:
    async with running(World()) as world:
        call = Caller(world)
        await _find(call, version)
        member_id, generation = await _join(call, version)
        beat = m.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
        assert (await call(beat, version)).error_code == 0
        await _offsets(world, call, version, member_id, generation)
        await _admin(call, version, member_id)
        await _leave(call, version, member_id)
        described = (await call(m.DescribeGroupsRequest(groups=["g"]), version)).groups[0]
        assert described.group_state == "Empty"
        deleted = await call(m.DeleteGroupsRequest(groups_names=["g", "none"]), version)
        codes = {each.group_id: each.error_code for each in deleted.results}
        assert codes == {"g": 0, "none": ErrorCode.GROUP_ID_NOT_FOUND}
        assert (await call(m.ListGroupsRequest(), version)).groups == []


class _TwoGroups:
    """Bounds of a cluster where a user may own two groups."""

    def find_bound(self, kind: str, principal: str) -> int | None:
        assert (kind, principal) == ("max_groups", "User:ANONYMOUS")
        return 2


@pytest.mark.parametrize("version", range(11))
async def test_a_group_past_the_bound_of_the_clients_user_is_refused_in_every_version(version: int) -> None:
    async with running(World(bounds=_TwoGroups())) as world:
        call = Caller(world)

        async def commit(group: str) -> int:
            message = commit_request(group, [("gone", 0, 1), ("orders", 1, 42)])
            message.topics[1].topic_id = world.catalog.topics["orders"].topic_id
            return int((await call(message, version)).topics[1].partitions[0].error_code)

        await _join(call, version)
        assert await commit("simple") == 0
        assert call.audit.entries() == []
        assert (await call(join_request("more"), version)).error_code == ErrorCode.POLICY_VIOLATION
        assert await commit("more") == ErrorCode.POLICY_VIOLATION
        assert await commit("simple") == 0
        refused = ("denied", "more")
        assert call.audit.entries() == [("denial", act, *refused) for act in ("JOIN_GROUP", "OFFSET_COMMIT")]
        assert {each.reason for each in call.audit.events} == {"max_groups of the user is reached"}


async def _find(call: Caller, version: int) -> None:
    found = await call(m.FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g", "h"]), version)
    for each in found.coordinators if min(version, 6) >= 4 else [found]:
        assert (each.error_code, each.node_id, each.host, each.port) == (0, 7, "proxy", 9092)


async def _join(call: Caller, version: int) -> tuple[str, int]:
    joined = await call(join_request("g"), version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert joined.member_id.startswith("client-")
        joined = await call(join_request("g", joined.member_id), version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert [each.member_id for each in joined.members] == [joined.leader] == [joined.member_id]
    synced = await call(sync_request("g", joined.member_id, 1, {joined.member_id: b"all"}), version)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
    return joined.member_id, joined.generation_id


async def _offsets(world: World, call: Caller, version: int, member_id: str, generation: int) -> None:
    orders = world.catalog.topics["orders"]
    commit = commit_request("g", [("orders", 1, 42)], member_id=member_id, generation=generation, leader_epoch=3)
    for each in commit.topics:
        each.topic_id = orders.topic_id
    response = (await call(commit, version)).topics[0]
    assert response.partitions[0].error_code == 0
    assert response.topic_id == orders.topic_id if version >= 10 else response.name == "orders"
    for wants_all in (False, True) if version >= 2 else (False,):
        error, topics = await _fetch(world, call, version, wants_all=wants_all)
        assert error == 0
        assert len(topics) == 1
        assert topics[0].topic_id == orders.topic_id if version >= 10 else topics[0].name == "orders"
        shown = {each.partition_index: each.committed_offset for each in topics[0].partitions}
        assert shown == ({1: 42} if wants_all else {1: 42, 2: -1})
        assert topics[0].partitions[0].committed_leader_epoch == (3 if version >= 6 else -1)


async def _fetch(world: World, call: Caller, version: int, *, wants_all: bool) -> tuple[int, Any]:
    request_class = m.OffsetFetchRequest
    if version < 8:
        topics = [request_class.OffsetFetchRequestTopic(name="orders", partition_indexes=[1, 2])]
        request = request_class(group_id="g", topics=None if wants_all else topics, groups=[])
        response = await call(request, version)
        return (response.error_code if version >= 2 else 0), response.topics
    group_class = request_class.OffsetFetchRequestGroup
    orders = world.catalog.topics["orders"].topic_id
    wanted = [group_class.OffsetFetchRequestTopics(name="orders", topic_id=orders, partition_indexes=[1, 2])]
    group = group_class(group_id="g", member_id=None, member_epoch=-1, topics=None if wants_all else wanted)
    response = await call(request_class(group_id="", topics=[], groups=[group]), version)
    return response.groups[0].error_code, response.groups[0].topics


async def _admin(call: Caller, version: int, member_id: str) -> None:
    described = await call(m.DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=False), version)
    group, none = described.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert [(each.member_id, each.client_host) for each in group.members] == [(member_id, "/10.0.0.1")]
    assert bytes(group.members[0].member_assignment) == b"all"
    assert none.group_state == "Dead"
    assert none.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    for states, types, found in (
        ([], [], ["g"]), (["stable"], ["Classic"], ["g"]), (["Empty"], [], [] if version >= 4 else ["g"]),
        ([], ["share"], [] if version >= 5 else ["g"]),
    ):  # fmt: skip
        listed = await call(m.ListGroupsRequest(states_filter=states, types_filter=types), version)
        assert [each.group_id for each in listed.groups] == found
    busy = await call(m.DeleteGroupsRequest(groups_names=["g"]), version)
    assert busy.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    topic_class = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
    topics = [
        topic_class(name=name, partitions=[topic_class.OffsetDeleteRequestPartition(partition_index=1)])
        for name in ("orders", "events", "none")
    ]
    response = await call(m.OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert [each.partitions[0].error_code for each in response.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip


async def _leave(call: Caller, version: int, member_id: str) -> None:
    identity = m.LeaveGroupRequest.MemberIdentity
    leaving = [identity(member_id=each, group_instance_id=None, reason=None) for each in (member_id, "x")]
    left = await call(m.LeaveGroupRequest(group_id="g", member_id=member_id, members=leaving), version)
    assert left.error_code == 0
    if version >= 3:
        assert [each.error_code for each in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    else:
        left = await call(m.LeaveGroupRequest(group_id="g", member_id=member_id), version)
        assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_wrong_requests_are_refused_before_any_group_is_read() -> None:
    async with running(World()) as world:
        call = Caller(world)
        for version in (0, 6, 9):
            empty = await call(join_request(""), version)
            assert (empty.error_code, empty.generation_id) == (ErrorCode.INVALID_GROUP_ID, -1)
            for timeout_ms in (0, 1_800_001):
                refused = await call(join_request("g", session_timeout_ms=timeout_ms), version)
                assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
        for request in (
            sync_request("", "m", 1), m.HeartbeatRequest(group_id="", generation_id=1, member_id="m"),
            m.LeaveGroupRequest(group_id="", member_id="m", members=[]),
            m.OffsetDeleteRequest(group_id="", topics=[]),
        ):  # fmt: skip
            assert (await call(request, 99)).error_code == ErrorCode.INVALID_GROUP_ID
        sync = sync_request("g", "m", 1)
        sync.protocol_type = None
        assert (await call(sync, 5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await call(sync, 4)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for key_type, code in ((1, ErrorCode.COORDINATOR_NOT_AVAILABLE), (2, ErrorCode.INVALID_REQUEST)):
            request = m.FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])
            for version in (1, 3, 4, 6):
                found = await call(request, version)
                found = found.coordinators[0] if version >= 4 else found
                assert (found.error_code, found.node_id, found.port) == (code, -1, -1)
        long = await call(join_request("g" * 32_768), 9)
        assert long.error_code == ErrorCode.INVALID_GROUP_ID
        long = await call(join_request("g", group_instance_id="i" * 32_768), 9)
        assert long.error_code == ErrorCode.INVALID_REQUEST


async def test_the_empty_group_id_is_a_group_of_offsets() -> None:
    """KIP-289 keeps it for old clients in these four requests, and has the others refuse it."""
    async with running(World()) as world:
        call = Caller(world)
        committed = await call(commit_request("", [("orders", 0, 7)]), 2)
        assert committed.topics[0].partitions[0].error_code == 0
        topic = m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        fetched = await call(m.OffsetFetchRequest(group_id="", topics=[topic]), 1)
        assert fetched.topics[0].partitions[0].committed_offset == 7
        described = await call(m.DescribeGroupsRequest(groups=[""]), 0)
        assert (described.groups[0].error_code, described.groups[0].group_state) == (0, "Empty")
        refused = await call(m.OffsetDeleteRequest(group_id="", topics=[]), 0)
        assert refused.error_code == ErrorCode.INVALID_GROUP_ID
        deleted = await call(m.DeleteGroupsRequest(groups_names=[""]), 0)
        assert deleted.results[0].error_code == 0


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_wrong_commit_has_kafkas_errors(version: int) -> None:
    async with running(World()) as world:
        call = Caller(world)

        async def code(group: str, topic: str = "orders", **fields: Any) -> int:
            request = commit_request(group, [(topic, 0, 1)], **fields)
            known = world.catalog.topics.get(topic)
            for each in request.topics:
                each.topic_id = known.topic_id if known is not None else None
            return int((await call(request, version)).topics[0].partitions[0].error_code)

        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        assert await code("", "none") == unknown
        assert await code("g", "none") == unknown
        assert await code("g", generation=1, member_id="m") == missing
        assert await code("g", metadata="x" * 4_097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await code("g", metadata="x" * 4_096) == 0
        assert await code("g", retention_ms=(1 << 63) - 1) == 0


@pytest.mark.parametrize("version", [1, 2, 7, 8, 10])
async def test_a_failed_offset_fetch_has_its_error_where_the_version_has_a_field(version: int) -> None:
    world = World()
    world.logs.fail_opens = 99
    async with running(world):
        call = Caller(world)
        error, topics = await _fetch(world, call, version, wants_all=False)
        if version == 1:
            error = topics[0].partitions[0].error_code
        assert error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        found = await call(m.FindCoordinatorRequest(key="g"), 3)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_concurrent_searches_for_coordinators_create_the_topic_once() -> None:
    async with running(World()) as world:
        call = Caller(world)
        answers = await asyncio.gather(*(call(m.FindCoordinatorRequest(key=f"g{n}"), 3) for n in range(50)))
        assert {each.error_code for each in answers} == {0}
        assert world.log.epoch == 1


@pytest.mark.parametrize("version", [7, 9, 10])
async def test_all_offsets_of_another_proxys_group_are_those_of_topics_that_the_client_may_describe(
    version: int,
) -> None:
    """The coordinator's response comes in bytes, which have ids in place of names from version 10 on."""
    ids = {"orders": UUID(int=1), "secret": UUID(int=2), "deleted": UUID(int=3)}
    asked = (
        m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)])
        if version >= 8
        else m.OffsetFetchRequest(group_id="g", topics=None)
    )
    single, several = m.OffsetFetchResponse.OffsetFetchResponseTopic, m.OffsetFetchResponse.OffsetFetchResponseGroup
    kept = several(
        group_id="g",
        topics=[several.OffsetFetchResponseTopics(name=name, topic_id=ids[name], partitions=[]) for name in ids],
    )

    async def elsewhere(request: Any, client: Any) -> Any:
        response = (
            m.OffsetFetchResponse(groups=[kept])
            if version >= 8
            else m.OffsetFetchResponse(topics=[single(name=name, partitions=[]) for name in ids])
        )
        return decode_response(ApiKey.OFFSET_FETCH, version, memoryview(encode_response_body(response, version)))

    everything = Acl(
        ResourceType.TOPIC, PatternType.LITERAL, "*", "User:ANONYMOUS", "*", AclOperation.READ, AclPermission.ALLOW
    )
    denied = [
        everything._replace(name=name, operation=AclOperation.ALL, permission=AclPermission.DENY)
        for name in ("secret", "deleted")
    ]
    acls = AclIndex([everything, *denied, everything._replace(resource_type=ResourceType.GROUP)])
    authorizer = CachedAuthorizer(acls, (), allows_without_acls=False, are_loaded=lambda: True)
    topics = [Topic(name=name, topic_id=ids[name], partitions=1) for name in ("orders", "secret")]
    scopes = make_scopes(
        coordinator=SimpleNamespace(offset_fetch=elsewhere),
        catalog=FakeCatalog(*topics),
        authorizer=authorizer,
    )
    body = memoryview(bytes(asked.encode(version=version)))
    request = Request(int(ApiKey.OFFSET_FETCH), version, 1, "client", body, FakeClient(), 0.0)
    response = await offset_fetch.handle(scopes, request, decode_request(ApiKey.OFFSET_FETCH, version, body))
    if version >= 10:
        assert [topic.topic_id for topic in response.groups[0].topics] == [ids["orders"]]
    else:
        found = response.groups[0].topics if version >= 8 else response.topics
        assert [topic.name for topic in found] == ["orders"]
