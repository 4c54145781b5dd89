"""What handlers ask of the groups' coordinator, wherever it runs: one method an API, Kafka's request in, its response
out.

``service.Coordinator`` answers for the shards of its own process; ``proxy.groups.router.RoutedCoordinator`` asks the
processes that serve the groups of a request.  An error is answered where Kafka's response has it: only ``ready``
raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Set
from typing import Any, NamedTuple, Protocol

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.wire import messages as m
from bmq.meta.members import Members


class ClientInfo(NamedTuple):
    """Who asks.  ``host`` as Kafka prints it: ``/127.0.0.1``."""

    client_id: str
    host: str

    @classmethod
    def of(cls, request: Request) -> ClientInfo:
        return cls(request.client_id or "", f"/{request.client.host}")


class GroupListing(NamedTuple):
    """Groups as ListGroups has them, of all of ``shards`` but those that are ``missing``, each with its error."""

    groups: list[Any]
    shards: frozenset[int]
    missing: Mapping[int, ErrorCode]

    def response(self) -> m.ListGroupsResponse:
        """Return the groups with one shard's error, if there is one: NOT_COORDINATOR before others.

        Kafka's brokers send one error for all their shards too.  Clients pass over the groups then, and ask again.
        """
        codes = set(self.missing.values())
        code = ErrorCode.NOT_COORDINATOR if ErrorCode.NOT_COORDINATOR in codes else min(codes, default=ErrorCode.NONE)
        return m.ListGroupsResponse(error_code=code, groups=self.groups)


class GroupCoordinator(Protocol):
    """See the module's head."""

    def shard_of(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that Kafka would choose."""

    async def ready(self, group_id: str) -> None:
        """Until the group's shard serves; makes the topic when it is missing.

        RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR.
        """

    async def join_group(self, request: m.JoinGroupRequest, client: ClientInfo) -> m.JoinGroupResponse: ...

    async def sync_group(self, request: m.SyncGroupRequest, client: ClientInfo) -> m.SyncGroupResponse: ...

    def heartbeat(
        self, request: m.HeartbeatRequest, client: ClientInfo
    ) -> m.HeartbeatResponse | Awaitable[m.HeartbeatResponse]:
        """At once, when nothing has to be asked."""

    async def leave_group(self, request: m.LeaveGroupRequest, client: ClientInfo) -> m.LeaveGroupResponse: ...

    async def offset_commit(self, request: m.OffsetCommitRequest, client: ClientInfo) -> m.OffsetCommitResponse: ...

    async def offset_fetch(self, request: m.OffsetFetchRequest, client: ClientInfo) -> m.OffsetFetchResponse: ...

    async def offset_delete(self, request: m.OffsetDeleteRequest, client: ClientInfo) -> m.OffsetDeleteResponse: ...

    async def describe_groups(
        self, request: m.DescribeGroupsRequest, client: ClientInfo
    ) -> m.DescribeGroupsResponse: ...

    async def list_groups(
        self, request: m.ListGroupsRequest, client: ClientInfo, members: Members | None = None
    ) -> m.ListGroupsResponse:
        """Those that clients are sent to this process for, as `members` sends them: those of one listener."""

    async def list_all_groups(self, request: m.ListGroupsRequest, client: ClientInfo) -> GroupListing:
        """Those of the whole cluster, which Kafka's clients put together from what each broker lists."""

    async def delete_groups(self, request: m.DeleteGroupsRequest, client: ClientInfo) -> m.DeleteGroupsResponse: ...


class LocalCoordinator(GroupCoordinator, Protocol):
    """The coordinator in this process: it answers for the shards that it serves."""

    async def list_groups_of(
        self, request: m.ListGroupsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListGroupsResponse:
        """List the groups of these shards only."""
