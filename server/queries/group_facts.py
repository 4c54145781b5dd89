"""Consumer groups of the whole cluster, for the console, read from their coordinators as clients do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from bmq.console.listing import Columns, Order, Page, cut
from bmq.console.state import (
    CommittedFacts,
    GroupDetails,
    GroupFacts,
    GroupsFacts,
    MemberFacts,
)
from bmq.coordinator.api import ClientInfo
from bmq.coordinator.group.subscription import CONSUMER, parse_assignment
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.wire import messages as m
from bmq.meta.catalog import Catalog
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS
from bmq.proxy.groups.router import RoutedCoordinator
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.shard_listing import describe_all, missing_shards
from bmq.server.roles.coordinator import CoordinatorRole

_CONSOLE = ClientInfo("console", "/127.0.0.1")
_Listed: TypeAlias = m.ListGroupsResponse.ListedGroup
_Committed: TypeAlias = m.OffsetFetchResponse.OffsetFetchResponseTopic.OffsetFetchResponsePartition
ASSIGNMENT_BYTES = 100
"""Bytes of a member's assignment for each element of a turn."""
_COLUMNS: Columns[_Listed] = {
    "group_id": lambda group: group.group_id,
    "state": lambda group: group.group_state or "",
    "protocol_type": lambda group: group.protocol_type or "",
}
"""The values of ``GROUP_COLUMNS``."""


class Groups:
    """The groups of the cluster, as any of its processes shows them."""

    def __init__(
        self, joined: ClusterMember, catalog: Catalog, groups: RoutedCoordinator, own: CoordinatorRole | None
    ) -> None:
        """Show the groups behind ``groups``; ``own`` is the role of this process, None without it."""
        self._joined = joined
        self._catalog = catalog
        self._groups = groups
        self._own = own

    async def page(
        self, search: str, order: Order, page: Page, is_visible: Callable[[str], bool] | None = None
    ) -> GroupsFacts:
        """Return a page of the whole cluster's groups, or of those for whose id ``is_visible`` returns True.

        Only groups of the page are described, since a description has all members.  Raises RequestError if no shard's
        groups can be listed.
        """
        listing = await self._groups.list_all_groups(m.ListGroupsRequest(version=4), _CONSOLE)
        missing = dict(listing.missing)
        groups = listing.groups
        if is_visible is not None:
            kept = await map_in_turns(lambda group: group if is_visible(group.group_id) else None, groups)
            groups = [group for group in kept if group is not None]
        total, listed, following = await asyncio.to_thread(_page_of, groups, search.lower(), order, page)
        shown = [group.group_id for group in listed]
        described = await describe_all(
            shown, self._described, lambda group: group.group_id, ErrorCode.GROUP_ID_NOT_FOUND
        )
        found = {group_id: _group(group) for group_id, group in described.found.items()}
        missing |= {self._shard_of(group_id): code for group_id, code in described.errors.items()}
        if missing and not found and missing.keys() >= listing.shards:
            _check(min(missing.values()))
        return GroupsFacts(
            groups=[found[group_id] for group_id in shown if group_id in found],
            total=total,
            next=following,
            shards_not_loaded=await missing_shards(GROUPS, missing, self._joined, self._own),
        )

    def _shard_of(self, group_id: str) -> int:
        return shard_of(group_id, self._catalog.topics[GROUPS.topic].partitions)

    async def group(self, group_id: str) -> GroupDetails | None:
        """Return a group with its members and offsets; None if it does not exist.  Raises RequestError."""
        found = (await self._described([group_id]))[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == "Dead":
            return None
        _check(found.error_code)
        turns, members = Turns(), list[MemberFacts]()
        for member in found.members:
            if turns.is_over(1 + len(member.member_assignment) // ASSIGNMENT_BYTES):
                await next_turn()
            members.append(
                MemberFacts(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    assignment=_assignment(found.protocol_type, member.member_assignment),
                )
            )
        return GroupDetails(
            group=_group(found),
            protocol=found.protocol_data or None,
            members=members,
            offsets=await self.committed(group_id),
        )

    async def committed(self, group_id: str) -> Sequence[CommittedFacts]:
        """Return the group's offsets; empty if the group does not exist.

        Raises RequestError if its coordinator cannot be asked, or refuses.
        """
        request = m.OffsetFetchRequest(version=7, group_id=group_id, topics=None, require_stable=False)
        offsets = await self._groups.offset_fetch(request, _CONSOLE)
        _check(offsets.error_code)
        turns, committed = Turns(), list[CommittedFacts]()
        for topic in offsets.topics:
            committed += await turns.map(partial(_committed, topic.name), topic.partitions)
        return committed

    async def _described(self, group_ids: list[str]) -> Sequence[m.DescribeGroupsResponse.DescribedGroup]:
        request = m.DescribeGroupsRequest(version=6, groups=group_ids)
        return (await self._groups.describe_groups(request, _CONSOLE)).groups  # type: ignore[no-any-return]


def _page_of(
    groups: Iterable[_Listed], search: str, order: Order, page: Page
) -> tuple[int, Sequence[_Listed], str | None]:
    """Return how many groups match, a page of them, and the ``after`` of the next page.  100,000 groups take 0.2 s."""
    # By id: a group whose shard moves meanwhile may be listed twice.
    matching = {group.group_id: group for group in groups if search in group.group_id.lower()}
    return len(matching), *cut(matching.values(), _COLUMNS, order, page)


def _committed(topic: str, part: _Committed) -> CommittedFacts:
    return CommittedFacts(
        topic=topic, partition=part.partition_index, offset=part.committed_offset, metadata=part.metadata or ""
    )


def _assignment(protocol_type: str, data: bytes | None) -> Mapping[str, Sequence[int]]:
    """Return a consumer's partitions by topic; empty if it has none, or is not a consumer."""
    if protocol_type != CONSUMER or not data:
        return {}
    try:
        return parse_assignment(data)
    except FormatError:  # a client's own format under the consumer type is legal
        return {}


def _group(group: m.DescribeGroupsResponse.DescribedGroup) -> GroupFacts:
    return GroupFacts(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        members=len(group.members),
    )


def _check(code: int) -> None:
    if code:
        raise RequestError(ErrorCode(code), "the group's coordinator cannot serve the request now")
