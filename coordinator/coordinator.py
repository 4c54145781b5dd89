"""The coordinator, as handlers see it: one method an API, Kafka's request in, Kafka's response out.

The order in which a request is refused is Kafka's (``GroupCoordinatorService``, ``KafkaApis``): the group id, then
what the request says by itself, then its shard, then its group.  Errors that clients know what to do with:
COORDINATOR_LOAD_IN_PROGRESS (the same coordinator again), NOT_COORDINATOR (look for it again), and, of writes that take
long, COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set

from bmq.coordinator.api import ClientInfo, GroupListing
from bmq.coordinator.group import admin_api, membership_api
from bmq.coordinator.offsets import api as offset_api
from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.manager import Shards
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.members import Members


class Coordinator:
    """An ``api.GroupCoordinator``: groups and offsets of this process's shards."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        logs: ShardLogs,
        topic: Callable[[], Awaitable[Topic]],
        catalog: Catalog,
        *,
        settings: CoordinatorSettings | None = None,
        view: ClusterView | None = None,
    ) -> None:
        """``topic`` gives ``__consumer_offsets``, created when it is missing; RequestError when that cannot be now.
        ``view`` says which shards are this process's; without one, all are."""
        self._settings = settings or CoordinatorSettings.of(config)
        self._catalog = catalog
        self._shards = Shards(self._settings, clock, logs, topic, catalog, view)

    async def start(self) -> None:
        """Returns at once; shards load behind requests that wait for them."""
        await self._shards.start()

    def drain(self) -> None:
        """Answer parked requests, and park none from here on; heartbeats and offsets are served until ``close``."""
        self._shards.drain()

    async def close(self) -> None:
        """Parked requests are answered NOT_COORDINATOR.  Writes in flight may become durable unanswered."""
        self._shards.close()
        await self._shards.wait_closed()

    def abandon(self) -> None:
        """As if the process had died here: for simulations, where nothing may be awaited."""
        self._shards.close()

    def shard_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that Kafka would choose."""
        return self._shards.shard_of(group_id)

    async def ready(self, group_id: str) -> None:
        """Until the group's shard serves; makes the topic when it is missing.

        RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """
        await self._shards.serving_members(group_id)

    def groups_by_state(self) -> dict[str, int]:
        """Loaded groups, counted by Kafka's names of their states: for metrics."""
        return self._shards.groups_by_state()

    def shards_not_loaded(self) -> dict[int, str]:
        """Shards of this process whose groups are not served, and why: what an operator must see."""
        return self._shards.not_loaded()

    def shards_not_loaded_by_reason(self) -> Mapping[LoadFailure, int]:
        """Count them by the kind of the reason, kinds with none included: for metrics."""
        return self._shards.not_loaded_by_reason()

    def offsets(self) -> list[Offsets]:
        """Return the committed offsets of each shard that is loaded here, as they change."""
        return self._shards.offsets()

    async def join_group(self, request: m.JoinGroupRequest, client: ClientInfo) -> m.JoinGroupResponse:
        return await membership_api.join_group(self._shards, self._settings, request, client.client_id, client.host)

    async def sync_group(self, request: m.SyncGroupRequest, client: ClientInfo) -> m.SyncGroupResponse:
        return await membership_api.sync_group(self._shards, request)

    def heartbeat(
        self, request: m.HeartbeatRequest, client: ClientInfo
    ) -> m.HeartbeatResponse | Awaitable[m.HeartbeatResponse]:
        return membership_api.heartbeat(self._shards, request)

    async def leave_group(self, request: m.LeaveGroupRequest, client: ClientInfo) -> m.LeaveGroupResponse:
        return await membership_api.leave_group(self._shards, request)

    async def offset_commit(self, request: m.OffsetCommitRequest, client: ClientInfo) -> m.OffsetCommitResponse:
        return await offset_api.offset_commit(self._shards, self._catalog, request)

    async def offset_fetch(self, request: m.OffsetFetchRequest, client: ClientInfo) -> m.OffsetFetchResponse:
        return await offset_api.offset_fetch(self._shards, self._catalog, request)

    async def offset_delete(self, request: m.OffsetDeleteRequest, client: ClientInfo) -> m.OffsetDeleteResponse:
        return await offset_api.offset_delete(self._shards, self._catalog, request)

    async def describe_groups(self, request: m.DescribeGroupsRequest, client: ClientInfo) -> m.DescribeGroupsResponse:
        return await admin_api.describe_groups(self._shards, request)

    async def list_groups(
        self, request: m.ListGroupsRequest, client: ClientInfo, members: Members | None = None
    ) -> m.ListGroupsResponse:
        """All that are served here, which is all there are when this process is alone."""
        return (await admin_api.list_groups(self._shards, request)).response()

    async def list_groups_of(
        self, request: m.ListGroupsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListGroupsResponse:
        """List the groups of these shards only."""
        return (await admin_api.list_groups(self._shards, request, shards)).response()

    async def list_all_groups(self, request: m.ListGroupsRequest, client: ClientInfo) -> GroupListing:
        """All that are served here, as `list_groups`."""
        return await admin_api.list_groups(self._shards, request)

    async def delete_groups(self, request: m.DeleteGroupsRequest, client: ClientInfo) -> m.DeleteGroupsResponse:
        return await admin_api.delete_groups(self._shards, request)
