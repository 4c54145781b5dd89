"""The group coordinator as this proxy's clients see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bmq.coordinator import routing
from bmq.coordinator.api import ClientInfo, GroupListing, LocalCoordinator
from bmq.core.errors import ErrorCode
from bmq.core.rpc.peers import Peers
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.proxy_addresses import Proxies
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.proxy.shards.client import EntryRefused
from bmq.proxy.shards.router import ShardRouter


class RoutedCoordinator(ShardRouter):
    """A ``coordinator.api.GroupCoordinator`` over the coordinators of all processes."""

    def __init__(
        self,
        view: ClusterView,
        proxies: Proxies,
        peers: Peers,
        catalog: Catalog,
        topic: Callable[[], Awaitable[Topic]],
        *,
        shards: int,
        local: LocalCoordinator | None = None,
    ) -> None:
        super().__init__(
            GROUPS, view, proxies, peers, catalog, topic,
            shards=shards, ready=routing.READY, key_type=routing.KEY_TYPE, local=local,
        )  # fmt: skip

    async def join_group(self, request: m.JoinGroupRequest, client: ClientInfo) -> m.JoinGroupResponse:
        return await self._routed(routing.JOIN, request, client)

    async def sync_group(self, request: m.SyncGroupRequest, client: ClientInfo) -> m.SyncGroupResponse:
        return await self._routed(routing.SYNC, request, client)

    async def heartbeat(self, request: m.HeartbeatRequest, client: ClientInfo) -> m.HeartbeatResponse:
        return await self._routed(routing.HEARTBEAT, request, client)

    async def leave_group(self, request: m.LeaveGroupRequest, client: ClientInfo) -> m.LeaveGroupResponse:
        return await self._routed(routing.LEAVE, request, client)

    async def offset_commit(self, request: m.OffsetCommitRequest, client: ClientInfo) -> m.OffsetCommitResponse:
        return await self._routed(routing.COMMIT, request, client)

    async def txn_offset_commit(
        self, request: m.TxnOffsetCommitRequest, client: ClientInfo
    ) -> m.TxnOffsetCommitResponse:
        return await self._routed(routing.TXN_COMMIT, request, client)

    async def offset_fetch(self, request: m.OffsetFetchRequest, client: ClientInfo) -> m.OffsetFetchResponse:
        return await self._routed(routing.fetch_api(request), request, client)

    async def offset_delete(self, request: m.OffsetDeleteRequest, client: ClientInfo) -> m.OffsetDeleteResponse:
        return await self._routed(routing.DELETE_OFFSETS, request, client)

    async def describe_groups(self, request: m.DescribeGroupsRequest, client: ClientInfo) -> m.DescribeGroupsResponse:
        return await self._routed(routing.DESCRIBE, request, client)

    async def delete_groups(self, request: m.DeleteGroupsRequest, client: ClientInfo) -> m.DeleteGroupsResponse:
        return await self._routed(routing.DELETE, request, client)

    async def list_groups(
        self, request: m.ListGroupsRequest, client: ClientInfo, proxies: Proxies | None = None
    ) -> m.ListGroupsResponse:
        """Return the groups of the shards for which ``proxies`` send clients to this proxy."""
        return (await self._list(request, client, self._shards_at(proxies))).response()

    async def list_all_groups(self, request: m.ListGroupsRequest, client: ClientInfo) -> GroupListing:
        """Return the groups of all shards, and the shards that could not be listed."""
        return await self._list(request, client, self._all_shards())

    async def _list(self, request: m.ListGroupsRequest, client: ClientInfo, shards: Sequence[ShardId]) -> GroupListing:
        groups: list[Any] = []
        missing: dict[int, ErrorCode] = {}
        found = await self._list_shards(routing.LIST, request, client, shards)
        for shard, response in zip(shards, found, strict=True):
            if isinstance(response, EntryRefused):
                missing[shard.number] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif response is not None:
                groups += response.groups
                if response.error_code != ErrorCode.NONE:
                    missing[shard.number] = ErrorCode(response.error_code)
        return GroupListing(groups, frozenset(shard.number for shard in shards), missing)
