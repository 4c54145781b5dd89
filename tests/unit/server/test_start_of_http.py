"""The HTTP port of a process that starts: it listens before the process knows users, ACLs and topics."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from aiohttp import ClientSession

from bmq.console.http import HttpServer
from bmq.core.config import NodeConfig
from bmq.core.security.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.security.principal import user
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.security.acls import acl_key, encode_acl
from bmq.server.console_view import console_state
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node

CONFIG = NodeConfig(
    authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    allow_everyone_if_no_acl_found=True,
    super_users="User:root",
)
DENIED = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "secret", "User:*", "*", AclOperation.ALL, AclPermission.DENY
)  # fmt: skip
SECRET = "/api/v1/topics/secret"
DELETE_SECRET = (AclOperation.DELETE, ResourceType.TOPIC, "secret")


@asynccontextmanager
async def starting() -> Any:
    """Yield a node that has joined and not started, in a cluster that denies a topic to everybody."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(acl_key(CONFIG.cluster, DENIED), encode_acl(DENIED))])
    async with single_node(CONFIG, fs, kv) as node:
        yield node


@asynccontextmanager
async def serving(node: Node) -> Any:
    server = HttpServer(console_state(node), "127.0.0.1", 0)
    await server.start()
    try:
        async with ClientSession(server.url) as session:
            yield session
    finally:
        await server.stop()


@pytest.mark.loops("asyncio")
async def test_a_process_that_starts_or_ends_serves_health_alone() -> None:
    """An ACL that denies is not known yet: the request that it refuses must not be served meanwhile."""
    async with starting() as node, serving(node) as session:
        async with session.delete(SECRET) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        async with session.get("/healthz") as response:
            assert response.status == 200
        await node.start()
        async with session.delete(SECRET) as response:
            assert response.status == 403
        async with session.get("/api/v1/topics/other") as response:
            assert response.status == 404
        await node.close()
        async with session.delete(SECRET) as response:
            assert response.status == 503


async def test_before_the_acls_are_read_super_users_alone_have_rights() -> None:
    """Whichever port asks: without this, a DENY that is not read yet allows."""
    root = Session(principal=user("root"))
    async with starting() as node:
        authorizer = node.security.authorizer
        for name in ("secret", "other"):
            assert not authorizer.is_allowed(ANONYMOUS_SESSION, "h", AclOperation.DELETE, ResourceType.TOPIC, name)
        assert not authorizer.is_allowed_on_some(ANONYMOUS_SESSION, "h", AclOperation.WRITE, ResourceType.TOPIC)
        assert authorizer.is_allowed(root, "h", *DELETE_SECRET)
        await node.start()
        assert not authorizer.is_allowed(ANONYMOUS_SESSION, "h", *DELETE_SECRET)
        assert authorizer.is_allowed(ANONYMOUS_SESSION, "h", AclOperation.DELETE, ResourceType.TOPIC, "other")
        assert authorizer.is_allowed(root, "h", *DELETE_SECRET)
