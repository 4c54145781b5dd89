"""Interfaces of the coordinators for request handlers: one method an API, Kafka's request in, Kafka's response out.

``coordinator.coordinator.Coordinator`` serves the shards of its own process; ``proxy.groups.router.RoutedCoordinator``
forwards to the processes that serve the groups of a request.  Errors are returned in the response, where Kafka has
them: only ``ready`` raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Set
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.wire import messages as m
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import ShardId


class ClientInfo(NamedTuple):
    """The client that sent a request.  ``host`` is written as Kafka writes it: ``/127.0.0.1``.

    ``principal``, as ``User:alice``: the owner of a group or transactional id that the request creates.  Requests that
    create neither, as heartbeats and members' commits, do not carry it.

    ``topic_ids``: the ids that a broker means by the names of topics in its question about a transaction.
    """

    client_id: str
    host: str
    principal: str = ""
    topic_ids: Mapping[str, UUID] = MappingProxyType({})

    @classmethod
    def of(cls, request: Request) -> ClientInfo:
        return cls(request.client_id or "", f"/{request.client.host}")

    @classmethod
    def of_creator(cls, request: Request) -> ClientInfo:
        """Return the client of a request that may create a group or a transactional id."""
        return cls(request.client_id or "", f"/{request.client.host}", str(request.client.session.principal))


class GroupListing(NamedTuple):
    """Groups for ListGroups, of all ``shards`` except the ``missing`` shards, which have an error."""

    groups: list[Any]
    shards: frozenset[int]
    missing: Mapping[int, ErrorCode]

    def response(self) -> m.ListGroupsResponse:
        """Return the groups with the error of one missing shard, if there is one: NOT_COORDINATOR before others.

        Kafka's brokers send one error for all their shards too.  Clients then ignore the groups and ask again.
        """
        codes = set(self.missing.values())
        code = ErrorCode.NOT_COORDINATOR if ErrorCode.NOT_COORDINATOR in codes else min(codes, default=ErrorCode.NONE)
        return m.ListGroupsResponse(error_code=code, groups=self.groups)


class TransactionListing(NamedTuple):
    """Transactions as ListTransactions has them, of all ``shards`` except the ``missing`` shards with their errors.

    ``error``: the error of the request itself; NONE if the request is right.
    """

    transactions: list[Any]
    shards: frozenset[int]
    missing: Mapping[int, ErrorCode]
    unknown_state_filters: list[str]
    error: ErrorCode = ErrorCode.NONE

    def response(self) -> m.ListTransactionsResponse:
        """Return the transactions, or one error without any, as Kafka's brokers do.

        For a shard that no process serves now the error is COORDINATOR_LOAD_IN_PROGRESS: after every other error Java's
        client gives up (``ListTransactionsHandler``).
        """
        code = self.error or min(map(_retriable, self.missing.values()), default=ErrorCode.NONE)
        if code is not ErrorCode.NONE:
            return m.ListTransactionsResponse(error_code=code, unknown_state_filters=[], transaction_states=[])
        return m.ListTransactionsResponse(
            error_code=code, unknown_state_filters=self.unknown_state_filters, transaction_states=self.transactions
        )


_MOVING = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""Errors of a shard that another process is about to serve."""


def _retriable(code: ErrorCode) -> ErrorCode:
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code in _MOVING else code


class GroupCoordinator(Protocol):
    """Group coordinator of the whole cluster, in this process or reached over the network."""

    def shard_of(self, group_id: str) -> ShardId:
        """Return the group's shard: the partition of ``__consumer_offsets`` that Kafka chooses."""

    async def ready(self, group_id: str) -> None:
        """Wait until the group's shard is served; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """

    async def join_group(self, request: m.JoinGroupRequest, client: ClientInfo) -> m.JoinGroupResponse: ...

    async def sync_group(self, request: m.SyncGroupRequest, client: ClientInfo) -> m.SyncGroupResponse: ...

    def heartbeat(
        self, request: m.HeartbeatRequest, client: ClientInfo
    ) -> m.HeartbeatResponse | Awaitable[m.HeartbeatResponse]:
        """Return the response itself if it is known without I/O, else an awaitable of it."""

    async def leave_group(self, request: m.LeaveGroupRequest, client: ClientInfo) -> m.LeaveGroupResponse: ...

    async def offset_commit(self, request: m.OffsetCommitRequest, client: ClientInfo) -> m.OffsetCommitResponse: ...

    async def txn_offset_commit(
        self, request: m.TxnOffsetCommitRequest, client: ClientInfo
    ) -> m.TxnOffsetCommitResponse: ...

    async def offset_fetch(self, request: m.OffsetFetchRequest, client: ClientInfo) -> m.OffsetFetchResponse: ...

    async def offset_delete(self, request: m.OffsetDeleteRequest, client: ClientInfo) -> m.OffsetDeleteResponse: ...

    async def describe_groups(
        self, request: m.DescribeGroupsRequest, client: ClientInfo
    ) -> m.DescribeGroupsResponse: ...

    async def list_groups(
        self, request: m.ListGroupsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListGroupsResponse:
        """List the groups that clients find at this process by ``proxies``, the addresses of one listener."""

    async def list_all_groups(self, request: m.ListGroupsRequest, client: ClientInfo) -> GroupListing:
        """List the groups of the whole cluster.  Kafka's clients join the lists of all brokers instead."""

    async def delete_groups(self, request: m.DeleteGroupsRequest, client: ClientInfo) -> m.DeleteGroupsResponse: ...


class LocalCoordinator(GroupCoordinator, Protocol):
    """The coordinator in this process, for the shards that it owns.  Proxies import this module alone."""

    async def list_groups_of(
        self, request: m.ListGroupsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListGroupsResponse:
        """List the groups of ``shards`` only."""


class TransactionCoordinator(Protocol):
    """Transaction coordinator of the whole cluster, in this process or reached over the network.

    Errors are in the responses, where Kafka has them: only ``ready`` raises.  The proxy has checked the client's rights
    on topics, groups and transactional ids.
    """

    def shard_of(self, transactional_id: str) -> ShardId:
        """Return the shard of a transactional id: the partition of ``__transaction_state`` that Kafka chooses."""

    async def ready(self, transactional_id: str) -> None:
        """Wait until the shard of the transactional id is served; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """

    async def init_producer_id(
        self, request: m.InitProducerIdRequest, client: ClientInfo
    ) -> m.InitProducerIdResponse: ...

    async def add_partitions(
        self, request: m.AddPartitionsToTxnRequest, client: ClientInfo
    ) -> m.AddPartitionsToTxnResponse:
        """Add partitions to transactions, or verify that they are added.

        From version 4 on the response has a result for every transaction of the request, in the request's order.
        """

    async def add_offsets(self, request: m.AddOffsetsToTxnRequest, client: ClientInfo) -> m.AddOffsetsToTxnResponse: ...

    async def end_txn(self, request: m.EndTxnRequest, client: ClientInfo) -> m.EndTxnResponse: ...

    async def describe_transactions(
        self, request: m.DescribeTransactionsRequest, client: ClientInfo
    ) -> m.DescribeTransactionsResponse:
        """Describe transactions.  The response has a state for every id of the request, in the request's order."""

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo
    ) -> m.ListTransactionsResponse: ...


class LocalTransactionCoordinator(TransactionCoordinator, Protocol):
    """The transaction coordinator in this process, for the shards that it owns.  Proxies import this module alone."""

    async def list_transactions_of(
        self, request: m.ListTransactionsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListTransactionsResponse:
        """List the transactions of ``shards`` only.

        The error is NOT_COORDINATOR if another process has a shard of them, COORDINATOR_LOAD_IN_PROGRESS while a shard
        of them is loading.
        """


class ClusterTransactionCoordinator(TransactionCoordinator, Protocol):
    """The transaction coordinator of proxies' handlers: it forwards to the processes with the shards."""

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListTransactionsResponse:
        """List the transactions of the shards for which ``proxies``, a listener's addresses, name this process."""
