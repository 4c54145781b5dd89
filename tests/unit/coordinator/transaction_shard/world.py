"""Processes with shards of transactions on logs in memory, and partitions that take markers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.manager import TransactionShards
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.security.client_quotas import Bounds, NoBounds
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.unit.coordinator.cluster_world import View
from tests.unit.coordinator.fakes import CLIENT, MemoryCatalog, MemoryLogs, context_of, settings, topic

Producer = tuple[int, int]
SHARD = ShardId(TRANSACTIONS, 0)
ORDERS = topic("orders", 10)


class Partitions:
    """Partitions of the whole cluster: the markers that each has taken, and how the next ones are refused."""

    def __init__(self) -> None:
        self.taken: list[tuple[TransactionMarker, PartitionKey]] = []
        self.calls = 0
        self.codes: dict[PartitionKey, list[ErrorCode]] = {}
        """Results of the next markers of a partition; then NONE."""
        self.bugs: list[Exception] = []
        """Exceptions of the next calls."""
        self.open = asyncio.Event()
        """While it is not set, no call gets a response."""
        self.open.set()
        self.silent: set[PartitionKey] = set()
        """Partitions that take no marker until the broker ``heals``; a call with one has marked its others before."""
        self.heals = asyncio.Event()

    async def write(self, marker: TransactionMarker, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, ErrorCode]:
        self.calls += 1
        await self.open.wait()
        if self.bugs:
            raise self.bugs.pop(0)
        results = self._take(marker, [each for each in keys if each not in self.silent])
        if len(results) < len(keys):
            await self.heals.wait()
            results |= self._take(marker, [each for each in keys if each in self.silent])
        return results

    def _take(self, marker: TransactionMarker, keys: Sequence[PartitionKey]) -> dict[PartitionKey, ErrorCode]:
        results = {}
        for key in keys:
            codes = self.codes.get(key)
            results[key] = codes.pop(0) if codes else ErrorCode.NONE
            if results[key] is ErrorCode.NONE:
                self.taken.append((marker, key))
        return results


class Process:
    """A process with the shards that its view assigns to it."""

    def __init__(
        self, name: str, logs: MemoryLogs, partitions: Partitions, ids: list[int], bounds: Bounds, **changes: Any
    ) -> None:
        self.view = View(name)
        transactions = topic(TRANSACTIONS_TOPIC, len(logs.partitions))
        self.catalog = MemoryCatalog(topic(OFFSETS_TOPIC, 3), transactions, ORDERS)
        self.ids = ids
        self.no_ids = False
        self.are_parts_closed = False

        async def transactions_topic() -> Topic:
            return self.catalog.topics[TRANSACTIONS_TOPIC]

        async def offsets_topic() -> Topic:
            return self.catalog.topics[OFFSETS_TOPIC]

        context = context_of(settings(**changes), logs, self.catalog, self.view, bounds)
        self.shards = TransactionShards(
            context, transactions_topic, producer_ids=self._next_id, write_markers=partitions.write
        )
        self.apis = TransactionApis(context, self.shards, offsets_topic, self._close_parts)

    async def _close_parts(self) -> None:
        self.are_parts_closed = True

    async def _next_id(self) -> int:
        if self.no_ids:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id")
        await asyncio.sleep(0.001)
        self.ids.append(1_000 + len(self.ids))
        return self.ids[-1]

    def show(self, owner: str, number: int, shards: int = 1) -> None:
        shown = View(self.view.own)
        shown.shards = {ShardId(TRANSACTIONS, each): ShardOwner(owner, number) for each in range(shards)}
        self.view.show(shown)

    async def serving(self) -> ActiveTransactions:
        return await self.shards.serving("any")

    # ------------------------------------------------------------------------------------------------- requests

    async def init(
        self,
        tid: str | None = "tx",
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        producer_id: int = -1,
        epoch: int = -1,
        client: ClientInfo = CLIENT,
    ) -> Any:
        request = m.InitProducerIdRequest(
            version=version, transactional_id=tid, transaction_timeout_ms=timeout_ms, producer_id=producer_id,
            producer_epoch=epoch,
        )  # fmt: skip
        return await self.apis.init_producer_id(request, client)

    async def add(
        self, producer: tuple[int, int], *numbers: int, tid: str = "tx", version: int = 3, name: str = "orders",
        verify: bool = False,
    ) -> list[ErrorCode]:  # fmt: skip
        added = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=list(numbers))
        if version < 4:
            request = m.AddPartitionsToTxnRequest(
                version=version, v3_and_below_transactional_id=tid, v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1], v3_and_below_topics=[added],
            )  # fmt: skip
            topics = (await self.apis.add_partitions(request, CLIENT)).results_by_topic_v3_and_below
        else:
            one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=tid, producer_id=producer[0], producer_epoch=producer[1], verify_only=verify,
                topics=[added],
            )  # fmt: skip
            request = m.AddPartitionsToTxnRequest(version=version, transactions=[one])
            topics = (await self.apis.add_partitions(request, CLIENT)).results_by_transaction[0].topic_results
        return [ErrorCode(each.partition_error_code) for each in topics[0].results_by_partition]

    async def end(self, producer: tuple[int, int], *, commit: bool, version: int = 3, tid: str = "tx") -> Any:
        request = m.EndTxnRequest(
            version=version, transactional_id=tid, producer_id=producer[0], producer_epoch=producer[1], committed=commit
        )
        return await self.apis.end_txn(request, CLIENT)

    async def describe(self, tid: str = "tx") -> Any:
        request = m.DescribeTransactionsRequest(version=0, transactional_ids=[tid])
        return (await self.apis.describe_transactions(request, CLIENT)).transaction_states[0]

    async def state(self, tid: str = "tx") -> str:
        return str((await self.describe(tid)).transaction_state)

    async def list(self, **fields: Any) -> Any:
        version = fields.pop("version", 2)
        defaults = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        request = m.ListTransactionsRequest(version=version, **{**defaults, **fields})
        return await self.apis.list_transactions(request, CLIENT)

    async def begin(
        self, *numbers: int, tid: str = "tx", version: int = 3, timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """Initialize a producer and add partitions; return its id and epoch."""
        made = await self.init(tid, timeout_ms=timeout_ms)
        assert made.error_code == 0, ErrorCode(made.error_code)
        producer = (made.producer_id, made.producer_epoch)
        assert set(await self.add(producer, *numbers, tid=tid, version=version)) == {ErrorCode.NONE}
        return producer


class World:
    """Two processes over the logs of all shards."""

    def __init__(self, shards: int = 1, bounds: Bounds | None = None, **changes: Any) -> None:
        self.logs = MemoryLogs(shards)
        bounds = bounds or NoBounds()
        self.partitions = Partitions()
        ids: list[int] = []
        self.a = Process("a", self.logs, self.partitions, ids, bounds, **changes)
        self.b = Process("b", self.logs, self.partitions, ids, bounds, **changes)

    def isolate(self, process: Process) -> None:
        """Let the process not open again what it loses: two that reload would take turns for ever."""
        nowhere = MemoryLogs()
        nowhere.fail_opens = 1 << 30
        for shard in process.shards._shards.values():
            shard.context = replace(shard.context, logs=nowhere)

    @property
    def log(self) -> Any:
        return self.logs.partitions[0]

    def show(self, owner: str, number: int) -> None:
        for process in (self.a, self.b):
            process.show(owner, number, len(self.logs.partitions))


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    world.show("a", 1)
    for process in (world.a, world.b):
        await process.shards.start()
    try:
        yield world
    finally:
        world.partitions.open.set()
        for process in (world.a, world.b):
            await process.apis.close()
            assert process.are_parts_closed


def key(number: int) -> PartitionKey:
    return PartitionKey(ORDERS.topic_id, number)
