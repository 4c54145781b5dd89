"""A whole process with a transaction coordinator: listed, found, served, drained."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from bmq.coordinator.shard.context import CoordinatorContext, ShardContext
from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import TRANSACTION_VERSION, FeatureTable
from bmq.core.net.request import Client, Response
from bmq.core.wire import messages as m
from bmq.core.wire.codec_client import decode_response
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.meta.catalog import TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.member import CONTROLLER, Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from bmq.server import node as node_module
from bmq.server.cluster_member import ClusterMember
from bmq.server.node import Node
from bmq.server.roles.parts import Parts
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.single_node import single_node
from tests.harness.waiting import until
from tests.unit.coordinator.shard.kv_kind import ActiveKv, KvShard
from tests.unit.proxy.transactions.transactions_world import FakeTransactions, end, init, listing

pytestmark = pytest.mark.loops("asyncio")

OF_TRANSACTIONS = {22, 24, 25, 26, 27, 28, 65, 66}
SHARDS = 50
"""Kafka's default."""


class StoredShards(Shards[ActiveKv]):
    """The shards of ``__transaction_state`` in one process, over their real logs."""

    def __init__(self, context: CoordinatorContext, topic: Callable[[], Awaitable[Topic]]) -> None:
        super().__init__(TRANSACTIONS, context, topic, partitions=SHARDS, expiry_interval_s=600.0)
        self.ends: list[str] = []
        self.broken: dict[ShardId, str] = {}

    def _new_shard(self, context: ShardContext) -> KvShard:
        return KvShard(context)

    def not_loaded(self) -> dict[ShardId, str]:
        return self.broken

    def drain(self) -> None:
        super().drain()
        self.ends.append("drained")

    def close(self) -> None:
        super().close()
        self.ends.append("closed")

    async def wait_closed(self) -> None:
        await super().wait_closed()
        self.ends.append("ended")


class StoredTransactions(KindCoordinator[StoredShards], FakeTransactions):
    """A coordinator that is ready once the shard is loaded."""

    def __init__(self, parts: Parts, shards: StoredShards) -> None:
        KindCoordinator.__init__(self, shards, self._parts_closed)
        FakeTransactions.__init__(self, cast(Any, parts.joined.view), SHARDS)

    async def _parts_closed(self) -> None:
        self.shards.ends.append("parts closed")

    async def ready(self, transactional_id: str) -> None:
        await self.shards.serving(transactional_id)
        await super().ready(transactional_id)


class World:
    """A process, and the transaction coordinator that it was made with."""

    def __init__(self, node: Node, transactions: StoredTransactions) -> None:
        self.node = node
        self.transactions = transactions

    async def ask(self, message: Any, version: int) -> Any:
        key = message.API_KEY
        head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if is_flexible(key, version) else b"")
        frame = memoryview(bytearray(head + bytes(message.encode(version=version))))
        response = self.node.proxy.client_endpoints["PLAINTEXT"](frame, cast(Client, FakeClient()))
        if isinstance(response, Awaitable):
            response = await asyncio.wait_for(response, 60)
        assert isinstance(response, Response)
        data = b"".join(map(bytes, response.buffers))
        if response.release is not None:
            response.release()
        return decode_response(key, version, memoryview(data[5 if response_is_flexible(key, version) else 4 :]))


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Yield a process once the level is in force."""
    made: list[StoredTransactions] = []

    def make(parts: Parts, admin: Any, offsets_topic: Any, ids: Any, context: CoordinatorContext) -> TransactionApis:
        async def topic() -> Topic:
            found = parts.catalog.topics.get(TRANSACTIONS_TOPIC)
            if found is None:
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the proxy creates it")
            return found

        made.append(StoredTransactions(parts, StoredShards(context, topic)))
        return cast(TransactionApis, made[0])

    monkeypatch.setattr(node_module, "make_transactions", make)
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(NodeConfig(), fs, kv) as node:
        node.is_at({"PLAINTEXT": Address(host="here", port=9092)})
        await node.start()
        await until(lambda: node.view.levels.of(TRANSACTION_VERSION) == 2)
        yield World(node, made[0])


@pytest.mark.slow
async def test_a_transaction_is_found_begun_listed_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as w:
        listed = await w.ask(m.ApiVersionsRequest(client_software_name="c", client_software_version="1"), 4)
        keys = {each.api_key for each in listed.api_keys}
        assert keys >= OF_TRANSACTIONS
        assert TRANSACTIONS_TOPIC not in w.node.catalog.topics

        found = await w.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 6)
        (place,) = found.coordinators
        assert (place.error_code, place.host, place.port) == (0, "here", 9092)
        assert w.node.catalog.topics[TRANSACTIONS_TOPIC].partitions == SHARDS

        begun = await w.ask(init("tx"), 5)
        assert (begun.error_code, begun.producer_id, begun.producer_epoch) == (0, 7, 3)
        states = (await w.ask(listing(), 2)).transaction_states
        assert [each.transactional_id for each in states] == ["tx"]
        assert (await w.ask(end("tx"), 5)).error_code == 0
        shards = w.transactions.shards
        w.node.drain()
        assert shards.ends == ["drained"]
    assert shards.ends == ["drained", "closed", "ended", "parts closed"]


async def test_shards_of_transactions_that_are_not_loaded_are_reported_beside_those_of_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(monkeypatch) as w:
        role = w.node.coordinator
        assert role is not None
        assert role.shards_not_loaded() == {}
        w.transactions.shards.broken = {ShardId(TRANSACTIONS, 3): "no owner"}
        assert role.shards_not_loaded() == {ShardId(TRANSACTIONS, 3): "no owner"}
        assert set(role.shards_not_loaded_by_reason().values()) == {0}


async def test_the_groups_of_a_process_end_after_its_transactions_also_if_these_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The groups' shards take markers of the transactions that end in the meantime."""
    async with serving(monkeypatch) as w:
        role, ends = w.node.coordinator, w.transactions.shards.ends
        assert role is not None
        close_groups, close_transactions = role.coordinator.close, w.transactions.close

        async def groups_closed() -> None:
            ends.append("groups")
            await close_groups()

        async def transactions_fail() -> None:
            await close_transactions()
            raise ValueError("transactions")

        monkeypatch.setattr(role.coordinator, "close", groups_closed)
        monkeypatch.setattr(w.transactions, "close", transactions_fail)
        with pytest.raises(ValueError, match="transactions"):
            await role.close()
        assert ends == ["closed", "ended", "parts closed", "groups"]
        monkeypatch.undo()


@pytest.mark.slow
async def test_clients_wait_while_a_member_is_of_a_version_without_transactions_and_then_go_on() -> None:
    fs, store = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryStore()
    controller = NodeConfig(roles=(CONTROLLER,))
    earlier = ClusterMember(controller, fs, MemoryKeyValue(store), SystemClock(), "earlier", features=FeatureTable(()))
    await earlier.join()
    try:
        async with single_node(NodeConfig(), fs, MemoryKeyValue(store)) as node:
            node.is_at({"PLAINTEXT": Address(host="here", port=9092)})
            await node.start()
            w = World(node, cast(Any, None))
            found = await w.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 6)
            assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert (await w.ask(init("tx"), 5)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert TRANSACTIONS_TOPIC not in node.catalog.topics, "the earlier version does not know the topic"
            await earlier.leave()
            await until(lambda: node.view.levels.of(TRANSACTION_VERSION) == 2)
            found = await w.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 6)
            assert found.coordinators[0].error_code == 0
            assert (await w.ask(init("tx"), 5)).error_code == 0
    finally:
        await earlier.leave()
