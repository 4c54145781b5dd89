"""The transaction coordinator as this proxy's clients see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bmq.coordinator import transaction_routing as routing
from bmq.coordinator.api import ClientInfo, LocalTransactionCoordinator
from bmq.core.errors import ErrorCode
from bmq.core.rpc.peers import Peers
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import TRANSACTIONS
from bmq.proxy.shards.client import EntryRefused
from bmq.proxy.shards.router import ShardRouter

_MOVING = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors of a shard that another process is about to serve."""


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
        return await self._routed(routing.DESCRIBE, request, client)

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListTransactionsResponse:
        """Return the transactions of the shards for which ``proxies`` send clients to this proxy.

        With an error there are no transactions, as from Kafka.  If no process serves one of the shards now, the error
        is COORDINATOR_LOAD_IN_PROGRESS: after every other error Java's client gives up (``ListTransactionsHandler``).
        """
        found = await self._list_shards(routing.LIST, request, client, self._shards_at(proxies))
        codes: set[ErrorCode] = set()
        unknown: dict[str, None] = {}
        states: list[Any] = []
        for response in found:
            if isinstance(response, EntryRefused):
                codes.add(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            elif response is not None:
                codes.add(ErrorCode(response.error_code))
                unknown.update(dict.fromkeys(response.unknown_state_filters))
                states += response.transaction_states
        code = _most_urgent(codes - {ErrorCode.NONE})
        if code is not ErrorCode.NONE:
            return m.ListTransactionsResponse(error_code=code, unknown_state_filters=[], transaction_states=[])
        return m.ListTransactionsResponse(
            error_code=code, unknown_state_filters=list(unknown), transaction_states=states
        )


def _most_urgent(codes: set[ErrorCode]) -> ErrorCode:
    """Return the error for the client: errors of the request itself go before errors of shards; NONE without any."""
    if codes & _MOVING:
        codes = codes - _MOVING | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    return min(codes & routing.LIST.of_request or codes, default=ErrorCode.NONE)
