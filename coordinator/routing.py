"""Group APIs as lists of entries, with one group an entry, so that a request can be split by shard.  Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bmq.coordinator.api import ClientInfo, GroupCoordinator
from bmq.coordinator.apis.group_admin import MEMBER_BYTES, described
from bmq.coordinator.apis.membership import join_response
from bmq.coordinator.apis.offsets import PARTITION_BYTES, commit_response, single_response
from bmq.coordinator.apis.txn_offsets import txn_commit_response
from bmq.coordinator.group.messages import JoinResponse
from bmq.coordinator.routed_api import KindApis, OneKey, RoutedApi, SeveralKeys, ShardListing, ready_api
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey

KEY_TYPE = 0
"""Kafka's type of group ids in FindCoordinator."""
COPIED_ELEMENTS = 50
"""Elements that a list takes from another list in the time of an element of ``Turns``."""

Call = Callable[[GroupCoordinator, Any, ClientInfo], Any | Awaitable[Any]]


class _OneGroup(OneKey):
    """An API about one group."""

    def __init__(
        self,
        key: ApiKey,
        call: Call,
        refusal: Callable[[Any, ErrorCode], Any],
        *,
        is_repeatable: bool = True,
        may_park: bool = False,
    ) -> None:
        super().__init__(
            key, call, refusal, lambda request: request.group_id, is_repeatable=is_repeatable, may_park=may_park
        )


class _ByPartition(_OneGroup):
    """An API about one group whose response has an error a partition, and in some versions one at the top."""

    def is_elsewhere(self, result: Any) -> bool:
        if getattr(result, "error_code", ErrorCode.NONE) == ErrorCode.NOT_COORDINATOR:
            return True
        return any(each.error_code == ErrorCode.NOT_COORDINATOR for topic in result.topics for each in topic.partitions)


class _Describe(SeveralKeys):
    key = ApiKey.DESCRIBE_GROUPS

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.describe_groups(request, client)

    async def distinct(self, request: Any) -> Any:
        names = list(dict.fromkeys(request.groups))
        return request if len(names) == len(request.groups) else self._of(request, names)

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        return request.groups  # type: ignore[no-any-return]

    def size(self, result: Any) -> int:
        return sum(
            MEMBER_BYTES + len(each.member_metadata or b"") + len(each.member_assignment or b"")
            for each in result.members
        )

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return self._of(request, [request.groups[each] for each in entries])

    def _of(self, request: Any, groups: list[str]) -> Any:
        return m.DescribeGroupsRequest(
            version=request.API_VERSION,
            groups=groups,
            include_authorized_operations=request.include_authorized_operations,
        )

    def answers(self, response: Any) -> list[Any]:
        return list(response.groups)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        text = None if code is ErrorCode.GROUP_AUTHORIZATION_FAILED else _WHY
        return described(request.groups[entry], None, error_code=code, error_message=text)

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return m.DescribeGroupsResponse(groups=list(answers))


class _FetchGroups(SeveralKeys):
    """OffsetFetch from version 8 on."""

    key = ApiKey.OFFSET_FETCH

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.offset_fetch(request, client)

    async def distinct(self, request: Any) -> Any:
        """Merge the entries of a group that is named twice: their topics together, or all topics if one wants all."""
        groups: dict[str, Any] = {}
        merged: dict[str, list[Any] | None] = {}
        turns = Turns()
        for each in request.groups:
            if turns.is_over():
                await next_turn()
            first = groups.setdefault(each.group_id, each)
            if first is each:
                continue
            topics = merged.setdefault(each.group_id, None if first.topics is None else list(first.topics))
            if each.topics is None:
                merged[each.group_id] = None
            elif topics is not None:
                if turns.is_over(len(each.topics) // COPIED_ELEMENTS):
                    await next_turn()
                topics += each.topics  # in place: a group may be named a hundred thousand times
        for group_id, topics in merged.items():
            if turns.is_over():
                await next_turn()
            groups[group_id].topics = topics
        return request if not merged else self._of(request, list(groups.values()))

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        return [each.group_id for each in request.groups]

    def size(self, result: Any) -> int:
        return sum(PARTITION_BYTES + len(each.metadata or "") for topic in result.topics for each in topic.partitions)

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return self._of(request, [request.groups[each] for each in entries])

    def _of(self, request: Any, groups: list[Any]) -> Any:
        return m.OffsetFetchRequest(version=request.API_VERSION, groups=groups, require_stable=request.require_stable)

    def answers(self, response: Any) -> list[Any]:
        return list(response.groups)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        group_class = m.OffsetFetchResponse.OffsetFetchResponseGroup
        return group_class(group_id=request.groups[entry].group_id, topics=[], error_code=_of_fetch(code))

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return m.OffsetFetchResponse(groups=list(answers))


class _Delete(SeveralKeys):
    """DeleteGroups.  A group that is named twice is deleted once."""

    key = ApiKey.DELETE_GROUPS
    is_repeatable = False

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.delete_groups(request, client)

    async def distinct(self, request: Any) -> Any:
        names = list(dict.fromkeys(request.groups_names))
        return request if len(names) == len(request.groups_names) else self._of(request, names)

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        return request.groups_names  # type: ignore[no-any-return]

    def size(self, result: Any) -> int:
        return 0

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return self._of(request, [request.groups_names[each] for each in entries])

    def _of(self, request: Any, names: list[str]) -> Any:
        return m.DeleteGroupsRequest(version=request.API_VERSION, groups_names=names)

    def answers(self, response: Any) -> list[Any]:
        return list(response.results)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        return m.DeleteGroupsResponse.DeletableGroupResult(group_id=request.groups_names[entry], error_code=code)

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return m.DeleteGroupsResponse(results=list(answers))


_WHY = "no process serves the group now"


def _of_fetch(code: ErrorCode) -> ErrorCode:
    """Return the code for OffsetFetch: consumers before 3.9 handle COORDINATOR_NOT_AVAILABLE in commits only."""
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.COORDINATOR_NOT_AVAILABLE else code


READY = ready_api(_WHY)
JOIN = _OneGroup(
    ApiKey.JOIN_GROUP,
    lambda coordinator, request, client: coordinator.join_group(request, client),
    lambda request, code: join_response(request, JoinResponse(code, request.member_id)),
    is_repeatable=False,
    may_park=True,
)
SYNC = _OneGroup(
    ApiKey.SYNC_GROUP,
    lambda coordinator, request, client: coordinator.sync_group(request, client),
    lambda request, code: m.SyncGroupResponse(error_code=code, protocol_type=None, protocol_name=None, assignment=b""),
    may_park=True,
)
HEARTBEAT = _OneGroup(
    ApiKey.HEARTBEAT,
    lambda coordinator, request, client: coordinator.heartbeat(request, client),
    lambda request, code: m.HeartbeatResponse(error_code=code),
)
LEAVE = _OneGroup(
    ApiKey.LEAVE_GROUP,
    lambda coordinator, request, client: coordinator.leave_group(request, client),
    lambda request, code: m.LeaveGroupResponse(error_code=code, members=[]),
    is_repeatable=False,
)
COMMIT = _ByPartition(
    ApiKey.OFFSET_COMMIT,
    lambda coordinator, request, client: coordinator.offset_commit(request, client),
    lambda request, code: commit_response(request, {}, code),
)
TXN_COMMIT = _ByPartition(
    ApiKey.TXN_OFFSET_COMMIT,
    lambda coordinator, request, client: coordinator.txn_offset_commit(request, client),
    lambda request, code: txn_commit_response(request, {}, code),
)
FETCH = _ByPartition(
    ApiKey.OFFSET_FETCH,
    lambda coordinator, request, client: coordinator.offset_fetch(request, client),
    lambda request, code: single_response(request, _of_fetch(code), []),
)
FETCH_GROUPS = _FetchGroups()
DELETE_OFFSETS = _OneGroup(
    ApiKey.OFFSET_DELETE,
    lambda coordinator, request, client: coordinator.offset_delete(request, client),
    lambda request, code: m.OffsetDeleteResponse(error_code=code, topics=[]),
)
DESCRIBE = _Describe()
DELETE = _Delete()

ROUTED: Mapping[int, RoutedApi] = {
    int(api.key): api
    for api in (READY, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, TXN_COMMIT, FETCH, DELETE_OFFSETS, DESCRIBE, DELETE)
}
"""The API of each forwarded request, by API key.  ListGroups is not one of them: it is about shards, not groups."""
LIST = ShardListing(
    ApiKey.LIST_GROUPS, lambda coordinator, request, client, shards: coordinator.list_groups_of(request, client, shards)
)
GROUP_APIS = KindApis(ROUTED, LIST)


def fetch_api(request: m.OffsetFetchRequest) -> RoutedApi:
    """Return the API of an OffsetFetch: from version 8 on the request may name several groups (KIP-709)."""
    return FETCH_GROUPS if request.API_VERSION >= 8 else FETCH
