"""Handlers over the real catalog and controller, with owners that a test opens."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.messages import DescribeConfigsResponse
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.meta.producer_ids import ProducerIds
from bmq.meta.proxy_addresses import Proxies, ProxyAddress
from bmq.meta.security.quotas_view import QuotasView
from bmq.meta.security.scram_credentials import ScramCredentials
from bmq.meta.shard_kinds import ShardId
from tests.harness.fakes import FakeClient
from tests.harness.members import OneProxy
from tests.harness.scopes import make_scopes
from tests.unit.controller.admin.world import AdminWorld

RESPONSES = {ApiKey.DESCRIBE_CONFIGS: DescribeConfigsResponse}
"""Of handlers that encode their answer themselves."""


class FakeOwner:
    """Only its epoch and its size are asked for."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    async def log_bytes(self) -> int:
        return 100 + self.epoch


class FakeOwners:
    """Epochs of the partitions in WRITE."""

    def __init__(self) -> None:
        self.epochs: dict[PartitionKey, int] = {}
        self.waited: list[PartitionKey] = []

    def get(self, key: PartitionKey) -> Owner | None:
        epoch = self.epochs.get(key)
        return None if epoch is None else cast(Owner, FakeOwner(epoch))

    def follow(self, key: PartitionKey) -> PartitionView | None:
        raise NotImplementedError

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        self.waited.append(key)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while key not in self.epochs:
            await asyncio.sleep(0.1)
            if asyncio.get_running_loop().time() > deadline:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not open")
        return cast(Owner, FakeOwner(self.epochs[key]))


class Spread:
    """Several proxies; partitions go round."""

    def __init__(self, proxies: Sequence[ProxyAddress]) -> None:
        self.version = 1
        self.addresses = list(proxies)
        self.own = self.addresses[0]

    def version_of(self, topic_id: uuid.UUID) -> int:
        return self.version

    def leader_of(self, key: PartitionKey) -> int:
        return self.addresses[key.partition % len(self.addresses)].node_id

    def coordinator_of(self, shard: ShardId) -> int:
        return self.own.node_id


class AdminServing(AdminWorld):
    """An ``AdminWorld`` with what handlers need around it."""

    def __init__(self, *, proxies: Proxies | None = None, config: NodeConfig | None = None, **kwargs: Any) -> None:
        super().__init__(config=config, bounds=self, **kwargs)
        self.owners = FakeOwners()
        self.scopes = make_scopes(
            config=self.config,
            catalog=self.catalog,
            proxies=proxies or OneProxy(ProxyAddress(self.config.node_id, "here", 9092)),
            owners=self.owners,
            admin=self.admin,
            producer_ids=ProducerIds(self.kv, "c"),
            client_quotas=QuotasView(self.kv, "c"),
            scram_users=ScramCredentials(self.kv, "c"),
        )

    def find_bound(self, kind: str, principal: str) -> int | None:
        return self.scopes.process.client_quotas.find_bound(kind, principal)

    async def start(self) -> None:
        await super().start()
        await self.scopes.process.client_quotas.start()

    async def close(self) -> None:
        await self.scopes.process.client_quotas.close()
        await self.scopes.process.producer_ids.close()
        await super().close()

    def request(self, key: int, version: int, body: bytes = b"") -> Request:
        return Request(key, version, 77, "test", memoryview(bytearray(body)), FakeClient(), 0.0)

    async def ask(self, api: Any, version: int, message: Any) -> Any:
        """Return the handler's response; request and response pass through their wire formats."""
        body = message.encode(version=version)
        message = type(message).decode(body, version=version)
        response = api.handle(self.scopes, self.request(api.key, version), message)
        if isinstance(response, Awaitable):
            response = await response
        if isinstance(response, Response):
            return decode(RESPONSES[api.key], version, b"".join(response.buffers))
        encoded = b"".join(encode_response(api.key, version, 77, response))
        return decode(type(response), version, encoded)

    async def ask_raw(self, api: Any, version: int, message: Any) -> bytes:
        decoded = decode_request(api.key, version, memoryview(message.encode(version=version)))
        response = api.handle(self.scopes, self.request(api.key, version), decoded)
        if isinstance(response, Awaitable):
            response = await response
        assert isinstance(response, Response)
        return b"".join(response.buffers)


def decode(kind: Any, version: int, data: bytes) -> Any:
    """Decode a response without its header (the correlation id, and tags in flexible versions)."""
    return kind.decode(data[5 if kind.flexible_version_q(version) else 4 :], version=version)


@asynccontextmanager
async def serving(**kwargs: Any) -> AsyncIterator[AdminServing]:
    one = AdminServing(**kwargs)
    await one.start()
    try:
        yield one
    finally:
        await one.close()
