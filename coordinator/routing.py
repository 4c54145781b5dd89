"""Group APIs as lists of entries, so that a request can be split by group and its responses joined.  Pure.

The groups of one request may be served by several processes, so each API is seen as a list of *entries*, one a group;
most APIs have one entry.  The sender splits a request into parts and joins the results of their entries.  The receiver
serves a part like any other request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from bmq.coordinator.api import ClientInfo, GroupCoordinator
from bmq.coordinator.apis.group_admin import MEMBER_BYTES, described
from bmq.coordinator.apis.membership import join_response
from bmq.coordinator.apis.offsets import PARTITION_BYTES, commit_response, single_response
from bmq.coordinator.apis.txn_offsets import txn_commit_response
from bmq.coordinator.group.messages import JoinResponse
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey

READY_VERSION = 3
"""Version of the FindCoordinator requests by which one process waits until another serves a group's shard."""

Call = Callable[[GroupCoordinator, Any, ClientInfo], Any | Awaitable[Any]]


class GroupApi(Protocol):
    """One API as a list of entries.

    A *result* is the part of a response that belongs to one entry: for an API about one group, the whole response.
    """

    @property
    def key(self) -> ApiKey: ...
    @property
    def call(self) -> Call:
        """The call that serves a request at a coordinator."""

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be sent again when the fate of the first try is unknown."""

    @property
    def may_park(self) -> bool:
        """True if the response may wait for other members, possibly for minutes."""

    def distinct(self, request: Any) -> Any:
        """Return the request with each group once.  The other methods take only such requests."""

    def groups(self, request: Any) -> Sequence[str]:
        """Return the group of each entry."""

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        """Return a request with only these entries, in this order."""

    def answers(self, response: Any) -> list[Any]:
        """Return the result of each entry, in the order of the request that ``response`` belongs to."""

    def is_elsewhere(self, result: Any) -> bool:
        """Return True if an entry's result is NOT_COORDINATOR: its shard is not served there."""

    def size(self, result: Any) -> int:
        """Return about the bytes of an entry's result; 0 if they need no bound."""

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any | Awaitable[Any]:
        """Return the result of an entry that no process serves: ``code``, as Kafka's response has it."""

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        """Return the response to ``request``, from the results of all its entries."""


class _OneGroup:
    """An API about one group: the only entry is the whole request, its result the whole response."""

    def __init__(
        self,
        key: ApiKey,
        call: Call,
        refusal: Callable[[Any, ErrorCode], Any],
        *,
        is_repeatable: bool = True,
        may_park: bool = False,
    ) -> None:
        self.key = key
        self.call = call
        self.is_repeatable = is_repeatable
        self.may_park = may_park
        self._refusal = refusal

    def distinct(self, request: Any) -> Any:
        return request

    def size(self, result: Any) -> int:
        return 0

    def groups(self, request: Any) -> list[str]:
        return [request.group_id]

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return request

    def answers(self, response: Any) -> list[Any]:
        return [response]

    def is_elsewhere(self, result: Any) -> bool:
        return bool(result.error_code == ErrorCode.NOT_COORDINATOR)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        return self._refusal(request, code)

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return answers[0]


class _SeveralGroups:
    """An API about several groups: each element of the request is an entry, each of the response its result."""

    key: ApiKey
    is_repeatable = True
    may_park = False

    def is_elsewhere(self, result: Any) -> bool:
        return bool(result.error_code == ErrorCode.NOT_COORDINATOR)


class _Ready(_OneGroup):
    def groups(self, request: Any) -> list[str]:
        return [request.key]


class _ByPartition(_OneGroup):
    """An API about one group whose response has an error a partition, and in some versions one at the top."""

    def is_elsewhere(self, result: Any) -> bool:
        if getattr(result, "error_code", ErrorCode.NONE) == ErrorCode.NOT_COORDINATOR:
            return True
        return any(each.error_code == ErrorCode.NOT_COORDINATOR for topic in result.topics for each in topic.partitions)


class _Describe(_SeveralGroups):
    key = ApiKey.DESCRIBE_GROUPS

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.describe_groups(request, client)

    def distinct(self, request: Any) -> Any:
        names = list(dict.fromkeys(request.groups))
        return request if len(names) == len(request.groups) else self._of(request, names)

    def groups(self, request: Any) -> Sequence[str]:
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


class _FetchGroups(_SeveralGroups):
    """OffsetFetch from version 8 on."""

    key = ApiKey.OFFSET_FETCH

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.offset_fetch(request, client)

    def distinct(self, request: Any) -> Any:
        """Merge the entries of a group that is named twice: their topics together, or all topics if one wants all."""
        groups: dict[str, Any] = {}
        for each in request.groups:
            first = groups.setdefault(each.group_id, each)
            if first is not each and first.topics is not None:
                first.topics = None if each.topics is None else [*first.topics, *each.topics]
        return request if len(groups) == len(request.groups) else self._of(request, list(groups.values()))

    def groups(self, request: Any) -> Sequence[str]:
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


class _Delete(_SeveralGroups):
    """DeleteGroups.  A group that is named twice is deleted once."""

    key = ApiKey.DELETE_GROUPS
    is_repeatable = False

    def call(self, coordinator: GroupCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.delete_groups(request, client)

    def distinct(self, request: Any) -> Any:
        names = list(dict.fromkeys(request.groups_names))
        return request if len(names) == len(request.groups_names) else self._of(request, names)

    def groups(self, request: Any) -> Sequence[str]:
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


async def _ready(
    coordinator: GroupCoordinator, request: m.FindCoordinatorRequest, client: ClientInfo
) -> m.FindCoordinatorResponse:
    try:
        await coordinator.ready(request.key)
    except RequestError as error:
        return _ready_response(error.code, error.message)
    return _ready_response(ErrorCode.NONE, None)


def _ready_response(code: ErrorCode, message: str | None) -> m.FindCoordinatorResponse:
    return m.FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, host="", port=-1)


def ready_request(group_id: str) -> m.FindCoordinatorRequest:
    """Return the internal request whose response is sent once the receiver serves the group's shard."""
    return m.FindCoordinatorRequest(version=READY_VERSION, key=group_id, key_type=0)


READY = _Ready(ApiKey.FIND_COORDINATOR, _ready, lambda request, code: _ready_response(code, _WHY))
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

ROUTED: Mapping[int, GroupApi] = {
    int(api.key): api
    for api in (READY, JOIN, SYNC, HEARTBEAT, LEAVE, COMMIT, TXN_COMMIT, FETCH, DELETE_OFFSETS, DESCRIBE, DELETE)
}
"""The API of each forwarded request, by API key.  ListGroups is not one of them: it is about shards, not groups."""


def fetch_api(request: m.OffsetFetchRequest) -> GroupApi:
    """Return the API of an OffsetFetch: from version 8 on the request may name several groups (KIP-709)."""
    return FETCH_GROUPS if request.API_VERSION >= 8 else FETCH
