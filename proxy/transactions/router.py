"""The transaction coordinator as this proxy's clients see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bmq.coordinator import transaction_routing as routing
from bmq.coordinator.api import ClientInfo, LocalTransactionCoordinator, TransactionListing
from bmq.core.errors import ErrorCode
from bmq.core.rpc.peers import Peers
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from bmq.proxy.shards.client import EntryRefused
from bmq.proxy.shards.router import ShardRouter


class RoutedTransactions(ShardRouter):
    """A ``coordinator.api.ClusterTransactionCoordinator`` over the transaction coordinators of all processes."""

    def __init__(
        self,
        view: ClusterView,
        proxies: Proxies,
        peers: Peers,
        catalog: Catalog,
        topic: Callable[[], Awaitable[Topic]],
        *,
        shards: int,
        local: LocalTransactionCoordinator | None = None,
    ) -> None:
        super().__init__(
            TRANSACTIONS, view, proxies, peers, catalog, topic,
            shards=shards, ready=routing.READY, key_type=routing.KEY_TYPE, local=local,
        )  # fmt: skip

    async def init_producer_id(self, request: m.InitProducerIdRequest, client: ClientInfo) -> m.InitProducerIdResponse:
        return await self._routed(routing.INIT, request, client)

    async def add_partitions(
        self, request: m.AddPartitionsToTxnRequest, client: ClientInfo
    ) -> m.AddPartitionsToTxnResponse:
        return await self._routed(routing.add_partitions_api(request), request, client)

    async def add_offsets(self, request: m.AddOffsetsToTxnRequest, client: ClientInfo) -> m.AddOffsetsToTxnResponse:
        return await self._routed(routing.ADD_OFFSETS, request, client)

    async def end_txn(self, request: m.EndTxnRequest, client: ClientInfo) -> m.EndTxnResponse:
        return await self._routed(routing.END, request, client)

    async def describe_transactions(
        self, request: m.DescribeTransactionsRequest, client: ClientInfo
    ) -> m.DescribeTransactionsResponse:
        return await self._routed(routing.DESCRIBE, request, client)  # type: ignore[no-any-return]

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListTransactionsResponse:
        """Return the transactions of the shards for which ``proxies`` send clients to this proxy."""
        return (await self._list(request, client, self._shards_at(proxies))).response()

    async def list_all_transactions(self, request: m.ListTransactionsRequest, client: ClientInfo) -> TransactionListing:
        """Return the transactions of all shards, and the shards that could not be listed."""
        return await self._list(request, client, self._all_shards())

    async def _list(
        self, request: m.ListTransactionsRequest, client: ClientInfo, shards: Sequence[ShardId]
    ) -> TransactionListing:
        error = routing.pattern_error(request)  # a cluster without a loaded shard refuses a wrong pattern too
        if error is not ErrorCode.NONE:
            return TransactionListing([], frozenset(), {}, [], error)
        states: list[Any] = []
        missing: dict[int, ErrorCode] = {}
        unknown: dict[str, None] = {}
        found = await self._list_shards(routing.LIST, request, client, shards)
        for shard, response in zip(shards, found, strict=True):
            if isinstance(response, EntryRefused):
                missing[shard.number] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif response is not None:
                states += response.transaction_states
                unknown.update(dict.fromkeys(response.unknown_state_filters))
                code = ErrorCode(response.error_code)
                if code in routing.LIST.of_request:
                    error = code
                elif code is not ErrorCode.NONE:
                    missing[shard.number] = code
        return TransactionListing(states, frozenset(shard.number for shard in shards), missing, list(unknown), error)
