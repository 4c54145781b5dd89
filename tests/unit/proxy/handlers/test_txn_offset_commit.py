"""TxnOffsetCommit from bytes to bytes, in every version: what is stored, and the rights."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acl_index import AclIndex
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.header import response_is_flexible
from bmq.core.wire.messages import TxnOffsetCommitResponse
from bmq.endpoint.authorization.cached_authorizer import CachedAuthorizer
from bmq.meta.cluster.levels import FeatureLevels
from bmq.proxy.handlers import txn_offset_commit
from tests.harness.fakes import FakeClient
from tests.harness.scopes import make_scopes
from tests.unit.coordinator.fakes import World, running
from tests.unit.coordinator.txn_requests import end, stable, txn_request

KEY = ApiKey.TXN_OFFSET_COMMIT
RIGHTS = {
    (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "t"),
    (AclOperation.READ, ResourceType.GROUP, "g"),
    (AclOperation.READ, ResourceType.TOPIC, "orders"),
}


async def send(world: World, message: Any, version: int, **scope: Any) -> list[ErrorCode]:
    """Return the code of each partition in the response."""
    levels = FeatureLevels(levels={"transaction.version": 1})
    scopes = make_scopes(coordinator=world.coordinator, levels=lambda: levels, **scope)
    body = memoryview(bytes(message.encode(version=version)))
    request = Request(int(KEY), version, 1, "client", body, FakeClient(), 0.0)
    response = await txn_offset_commit.handle(scopes, request, decode_request(KEY, version, body))
    data = b"".join(encode_response(int(KEY), version, 1, response))[5 if response_is_flexible(KEY, version) else 4 :]
    topics = TxnOffsetCommitResponse.decode(data, version=version).topics
    return [ErrorCode(part.error_code) for topic in topics for part in topic.partitions]


@pytest.mark.parametrize("version", range(6))
async def test_offsets_are_pending_in_every_version(version: int) -> None:
    async with running(World()) as world:
        message = txn_request("g", [("orders", 1, 42), ("nowhere", 0, 1)], version=version)
        assert await send(world, message, version) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await stable(world, "g", 1) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert await end(world) is ErrorCode.NONE
        assert await stable(world, "g", 1) == (ErrorCode.NONE, 42)


@pytest.mark.parametrize("version", range(6))
async def test_a_shard_that_loads_is_not_available_to_old_producers(version: int) -> None:
    async with running(World(load_timeout_s=0.01)) as world:
        world.logs.fail_opens = 100
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await send(world, txn_request("g", [("orders", 0, 1)], version=version), version) == [code]


@pytest.mark.parametrize(
    ("lost", "code"),
    [
        (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (None, ErrorCode.NONE),
    ],
)
async def test_rights(lost: ResourceType | None, code: ErrorCode) -> None:
    acls = [
        Acl(kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, AclPermission.ALLOW)
        for operation, kind, name in RIGHTS
        if kind is not lost
    ]
    authorizer = CachedAuthorizer(AclIndex(acls), (), allows_without_acls=False, are_loaded=lambda: True)
    async with running(World()) as world:
        message = txn_request("g", [("orders", 0, 1), ("events", 0, 2)])
        other = code if lost is not ResourceType.TOPIC and lost is not None else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answers = await send(world, message, 3, authorizer=authorizer)
        assert sorted(answers) == sorted([code, other])
        assert (await stable(world, "g") == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)) is (code is ErrorCode.NONE)
