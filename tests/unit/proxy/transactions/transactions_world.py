"""Transaction coordinators a and b that only remember, and proxies p1 and p2, over a network of futures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

from bmq.coordinator.api import ClientInfo, LocalTransactionCoordinator
from bmq.coordinator.server import Forwarding
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.peers import Peers
from bmq.core.wire import messages as m
from bmq.meta.catalog import TRANSACTIONS_TOPIC, Topic
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from bmq.proxy.transactions.router import RoutedTransactions
from tests.unit.coordinator.cluster_world import FakePeers, Network, TwoProxies, View
from tests.unit.coordinator.fakes import MemoryCatalog, topic

SHARDS = 4
CLIENT = ClientInfo("client", "/10.0.0.1")


def id_of(shard: int, number: int = 0) -> str:
    """Return a transactional id of the shard."""
    ids = (each for each in map("tx-{}".format, count()) if shard_of(each, SHARDS) == shard)
    return next(each for at, each in enumerate(ids) if at == number)


class FakeTransactions:
    """A ``LocalTransactionCoordinator``: shards that the view gives to its process; ids with what was added to them."""

    kind = TRANSACTIONS

    def __init__(self, view: View, shards: int = SHARDS) -> None:
        self.calls: list[str] = []
        self.known: dict[str, list[Any]] = {}
        self.creators: list[str] = []
        """The principals of InitProducerIds."""
        self.error = ErrorCode.NONE
        """Error of requests about ids."""
        self.list_error = ErrorCode.NONE
        self.loading: set[int] = set()
        """Shards that are not loaded."""
        self._view = view
        self._shards = shards

    def _code(self, transactional_id: str) -> ErrorCode:
        owner = self._view.shard(self.shard_of(transactional_id))
        if owner is None or owner.incarnation != self._view.own:
            return ErrorCode.NOT_COORDINATOR
        return self.error

    def _take(self, call: str, transactional_id: str, what: Any = None) -> ErrorCode:
        self.calls.append(call)
        code = self._code(transactional_id)
        if code is ErrorCode.NONE:
            self.known.setdefault(transactional_id, []).append(what)
        return code

    def shard_of(self, transactional_id: str) -> ShardId:
        return ShardId(TRANSACTIONS, shard_of(transactional_id, self._shards))

    async def ready(self, transactional_id: str) -> None:
        self.calls.append("ready")
        code = self._code(transactional_id)
        if code is not ErrorCode.NONE:
            raise RequestError(code, "not ready")

    async def init_producer_id(self, request: m.InitProducerIdRequest, client: ClientInfo) -> m.InitProducerIdResponse:
        self.creators.append(client.principal)
        code = self._take("init", request.transactional_id, client.client_id)
        return m.InitProducerIdResponse(throttle_time_ms=0, error_code=code, producer_id=7, producer_epoch=3)

    async def add_partitions(
        self, request: m.AddPartitionsToTxnRequest, client: ClientInfo
    ) -> m.AddPartitionsToTxnResponse:
        response = m.AddPartitionsToTxnResponse
        if request.API_VERSION < 4:
            topics = self._add(request.v3_and_below_transactional_id, request.v3_and_below_topics)
            return response(results_by_topic_v3_and_below=topics)
        results = [
            response.AddPartitionsToTxnResult(
                transactional_id=each.transactional_id, topic_results=self._add(each.transactional_id, each.topics)
            )
            for each in request.transactions
        ]
        return response(error_code=0, results_by_transaction=results)

    def _add(self, transactional_id: str, topics: Any) -> list[Any]:
        result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        added = [(each.name, list(each.partitions)) for each in topics]
        code = self._take("add", transactional_id, added)
        return [
            result(
                name=each.name,
                results_by_partition=[
                    result.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                    for index in each.partitions
                ],
            )
            for each in topics
        ]

    async def add_offsets(self, request: m.AddOffsetsToTxnRequest, client: ClientInfo) -> m.AddOffsetsToTxnResponse:
        code = self._take("offsets", request.transactional_id, request.group_id)
        return m.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)

    async def end_txn(self, request: m.EndTxnRequest, client: ClientInfo) -> m.EndTxnResponse:
        code = self._take("end", request.transactional_id, request.committed)
        return m.EndTxnResponse(throttle_time_ms=0, error_code=code, producer_id=7, producer_epoch=4)

    async def describe_transactions(
        self, request: m.DescribeTransactionsRequest, client: ClientInfo
    ) -> m.DescribeTransactionsResponse:
        self.calls.append(f"describe {len(request.transactional_ids)}")
        state = m.DescribeTransactionsResponse.TransactionState
        states = [
            state(
                error_code=self._code(each), transactional_id=each, transaction_state="Ongoing",
                transaction_timeout_ms=1000, transaction_start_time_ms=5, producer_id=7, producer_epoch=3,
                topics=[
                    state.TopicData(topic=name, partitions=[0], marker_error_of=[place])
                    for place, name in enumerate(("t", "secret"))
                ],
                marker_errors=["error of t", "error of secret"],
            )
            for each in request.transactional_ids
        ]  # fmt: skip
        return m.DescribeTransactionsResponse(transaction_states=states)

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo
    ) -> m.ListTransactionsResponse:
        return await self.list_transactions_of(request, client, set(range(self._shards)))

    async def list_transactions_of(
        self, request: m.ListTransactionsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListTransactionsResponse:
        self.calls.append(f"list {sorted(shards)}")
        state = m.ListTransactionsResponse.TransactionState
        is_loading = bool(self.loading & shards)
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loading else self.list_error
        listed = [
            state(transactional_id=each, producer_id=7, transaction_state="Ongoing")
            for each in self.known
            if self.shard_of(each).number in shards and code is ErrorCode.NONE
        ]
        unknown = [each for each in request.state_filters if each != "Ongoing"]
        return m.ListTransactionsResponse(error_code=code, unknown_state_filters=unknown, transaction_states=listed)


class CoordinatorProcess:
    def __init__(self, network: Network, name: str) -> None:
        self.view = View(name)
        self.transactions = FakeTransactions(self.view)
        local: LocalTransactionCoordinator = self.transactions
        self.forwarding = Forwarding((cast(TransactionApis, local),), self.view)
        self.forwarding.register(network.join(name))


class TransactionsWorld:
    """Shard n of ``__transaction_state`` is a's if n is even, b's if it is odd."""

    def __init__(self) -> None:
        self.network = Network()
        self.topic = topic(TRANSACTIONS_TOPIC, SHARDS)
        self.catalog = MemoryCatalog()
        self.created = 0
        self.truth = View("")
        self.coordinators = {name: CoordinatorProcess(self.network, name) for name in ("a", "b")}
        self.views: list[View] = [each.view for each in self.coordinators.values()]
        self.proxies = [self._proxy(node_id) for node_id in (1, 2)]
        for name in self.coordinators:
            self.truth.members[name] = Member(incarnation=name, roles=frozenset())
        for shard in range(SHARDS):
            self.truth.shards[ShardId(TRANSACTIONS, shard)] = ShardOwner("ab"[shard % 2], 1)
        self.tell()

    def _proxy(self, node_id: int) -> RoutedTransactions:
        view = View(f"p{node_id}")
        self.views.append(view)
        peers = cast(Peers, FakePeers(self.network, view.own))
        return RoutedTransactions(view, TwoProxies(node_id), peers, self.catalog, self._create, shards=SHARDS)

    async def _create(self) -> Topic:
        await asyncio.sleep(0.01)
        if TRANSACTIONS_TOPIC not in self.catalog.topics:
            self.catalog.topics[TRANSACTIONS_TOPIC] = self.topic
            self.created += 1
        return self.topic

    @property
    def a(self) -> FakeTransactions:
        return self.coordinators["a"].transactions

    @property
    def b(self) -> FakeTransactions:
        return self.coordinators["b"].transactions

    def give(self, shard: int, name: str) -> None:
        """Move a shard in the store; no view shows it yet."""
        each = ShardId(TRANSACTIONS, shard)
        self.truth.shards[each] = ShardOwner(name, self.truth.shards[each].number + 1)

    def tell(self, *views: View) -> None:
        """Have these views, or all of them, show the store as it is."""
        for view in views or self.views:
            view.show(self.truth)


@asynccontextmanager
async def transactions() -> AsyncIterator[TransactionsWorld]:
    world = TransactionsWorld()
    try:
        yield world
    finally:
        for proxy in world.proxies:
            proxy.close()
        for coordinator in world.coordinators.values():
            coordinator.forwarding.close()


# --------------------------------------------------------------------------------------------------------- the requests


def init(transactional_id: str, version: int = 5) -> m.InitProducerIdRequest:
    return m.InitProducerIdRequest(
        version=version, transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip


def add(transactional_id: str, *topics: tuple[str, list[int]], version: int = 3) -> m.AddPartitionsToTxnRequest:
    named = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return m.AddPartitionsToTxnRequest(
        version=version, v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=7,
        v3_and_below_producer_epoch=3,
        v3_and_below_topics=[named(name=name, partitions=partitions) for name, partitions in topics],
    )  # fmt: skip


def add_several(*transactions: tuple[str, str, list[int]], version: int = 5) -> m.AddPartitionsToTxnRequest:
    """Return a request of a broker; each transaction has an id, and a topic with partitions."""
    transaction = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
    return m.AddPartitionsToTxnRequest(
        version=version,
        transactions=[
            transaction(
                transactional_id=each, producer_id=7, producer_epoch=3, verify_only=True,
                topics=[transaction.AddPartitionsToTxnTopic(name=name, partitions=partitions)],
            )
            for each, name, partitions in transactions
        ],
    )  # fmt: skip


def add_offsets(transactional_id: str, group_id: str = "g", version: int = 4) -> m.AddOffsetsToTxnRequest:
    return m.AddOffsetsToTxnRequest(
        version=version, transactional_id=transactional_id, producer_id=7, producer_epoch=3, group_id=group_id
    )


def end(transactional_id: str, version: int = 5) -> m.EndTxnRequest:
    return m.EndTxnRequest(
        version=version, transactional_id=transactional_id, producer_id=7, producer_epoch=3, committed=True
    )


def describe(*ids: str) -> m.DescribeTransactionsRequest:
    return m.DescribeTransactionsRequest(version=0, transactional_ids=list(ids))


def listing(*states: str, pattern: str | None = None) -> m.ListTransactionsRequest:
    return m.ListTransactionsRequest(
        version=2,
        state_filters=list(states),
        producer_id_filters=[],
        duration_filter=-1,
        transactional_id_pattern=pattern,
    )


def codes(response: Any) -> list[tuple[str, int, ErrorCode]]:
    """Return topic, partition and error of each partition in an AddPartitionsToTxn response up to version 3."""
    return codes_of(response.results_by_topic_v3_and_below)


def codes_of(topics: Any) -> list[tuple[str, int, ErrorCode]]:
    return [
        (topic.name, each.partition_index, ErrorCode(each.partition_error_code))
        for topic in topics
        for each in topic.results_by_partition
    ]
