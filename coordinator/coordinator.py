"""The coordinator, as handlers see it: one method an API, Kafka's request in, Kafka's response out.

A request is checked in Kafka's order (``GroupCoordinatorService``, ``KafkaApis``): the group id, then the request's
other fields, then its shard, then its group.  Errors that make clients try again:

=============================  ==========================================================
COORDINATOR_LOAD_IN_PROGRESS   ask the same coordinator again
NOT_COORDINATOR                find the coordinator again
COORDINATOR_NOT_AVAILABLE      a write was not durable in time, or the topic is missing
=============================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set

from bmq.coordinator.api import ClientInfo, GroupListing
from bmq.coordinator.apis import group_admin, membership, txn_offsets
from bmq.coordinator.apis import offsets as offset_api
from bmq.coordinator.group_shard.manager import GroupShards
from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.core.errors import ErrorCode
from bmq.core.records.control import TransactionMarker
from bmq.core.transaction_answers import Verifier
from bmq.core.wire import messages as m
from bmq.meta.catalog import Topic
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import GROUPS, ShardId


class Coordinator(KindCoordinator[GroupShards]):
    """The ``api.LocalCoordinator``: groups and offsets of this process's shards."""

    kind = GROUPS

    def __init__(self, context: CoordinatorContext, topic: Callable[[], Awaitable[Topic]], verify: Verifier) -> None:
        """``topic`` returns ``__consumer_offsets`` and creates it if it is missing; it raises RequestError if that is
        not possible now.  ``verify`` asks transactions' coordinators about commits."""
        super().__init__(GroupShards(context, topic, verify))
        self._context = context

    def shard_of(self, group_id: str) -> ShardId:
        """Return the group's shard: the partition of ``__consumer_offsets`` that Kafka chooses."""
        return self.shards.shard_of(group_id)

    async def ready(self, group_id: str) -> None:
        """Wait until the group's shard is served; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        await self.shards.serving_members(group_id)

    def groups_by_state(self) -> dict[str, int]:
        """Count the loaded groups by Kafka's name of their state.  For metrics."""
        return self.shards.groups_by_state()

    @property
    def groups_refused(self) -> int:
        """The number of requests that would have created a group past ``max_groups`` of their user.  For metrics."""
        return self.shards.parts.bounds.refused

    @property
    def commits_unverified(self) -> int:
        """The number of offset commits that wait for the coordinators of their transactions.  For metrics."""
        return self.shards.parts.verifier.commits

    @property
    def oldest_pending_s(self) -> float:
        """The age of the oldest transaction with pending offsets, in seconds; else 0.  For metrics."""
        return self.shards.oldest_pending_s()

    def offsets(self) -> list[Offsets]:
        """Return the committed offsets of each loaded shard whose ownership is not in doubt: live tables, no copies."""
        return self.shards.offsets()

    async def join_group(self, request: m.JoinGroupRequest, client: ClientInfo) -> m.JoinGroupResponse:
        return await membership.join_group(self.shards, self._context.settings, request, client)

    async def sync_group(self, request: m.SyncGroupRequest, client: ClientInfo) -> m.SyncGroupResponse:
        return await membership.sync_group(self.shards, request)

    def heartbeat(
        self, request: m.HeartbeatRequest, client: ClientInfo
    ) -> m.HeartbeatResponse | Awaitable[m.HeartbeatResponse]:
        return membership.heartbeat(self.shards, request)

    async def leave_group(self, request: m.LeaveGroupRequest, client: ClientInfo) -> m.LeaveGroupResponse:
        return await membership.leave_group(self.shards, request)

    async def offset_commit(self, request: m.OffsetCommitRequest, client: ClientInfo) -> m.OffsetCommitResponse:
        return await offset_api.offset_commit(self.shards, self._context.catalog, request, client.principal)

    async def txn_offset_commit(
        self, request: m.TxnOffsetCommitRequest, client: ClientInfo
    ) -> m.TxnOffsetCommitResponse:
        return await txn_offsets.txn_offset_commit(self.shards, self._context.catalog, request, client.principal)

    async def end_transaction(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """End a producer's transaction in a partition of ``__consumer_offsets`` (``GroupShards.end_transaction``)."""
        return await self.shards.end_transaction(partition, marker)

    async def offset_fetch(self, request: m.OffsetFetchRequest, client: ClientInfo) -> m.OffsetFetchResponse:
        return await offset_api.offset_fetch(self.shards, self._context.catalog, request)

    async def offset_delete(self, request: m.OffsetDeleteRequest, client: ClientInfo) -> m.OffsetDeleteResponse:
        return await offset_api.offset_delete(self.shards, self._context.catalog, request)

    async def describe_groups(self, request: m.DescribeGroupsRequest, client: ClientInfo) -> m.DescribeGroupsResponse:
        return await group_admin.describe_groups(self.shards, request)

    async def list_groups(
        self, request: m.ListGroupsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListGroupsResponse:
        """List all groups that are served here: all groups there are, if it owns every shard."""
        return (await group_admin.list_groups(self.shards, request)).response()

    async def list_groups_of(
        self, request: m.ListGroupsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListGroupsResponse:
        """List the groups of ``shards`` only."""
        return (await group_admin.list_groups(self.shards, request, shards)).response()

    async def list_all_groups(self, request: m.ListGroupsRequest, client: ClientInfo) -> GroupListing:
        """List all groups that are served here, as ``list_groups`` does, with the shards that are missing."""
        return await group_admin.list_groups(self.shards, request)

    async def delete_groups(self, request: m.DeleteGroupsRequest, client: ClientInfo) -> m.DeleteGroupsResponse:
        return await group_admin.delete_groups(self.shards, request)
