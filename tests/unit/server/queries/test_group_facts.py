"""Groups of the whole cluster for the console: pages, order, and shards that are not loaded."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from typing import Any, cast
from uuid import UUID

import pytest

from bmq.console.listing import Order, Page
from bmq.coordinator.api import GroupListing
from bmq.coordinator.apis.group_admin import described
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.queries.group_facts import Groups
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.server.queries.joined import catalog_of, joined, topic
from tests.unit.server.queries.roles import Coordinator

pytestmark = pytest.mark.loops("asyncio")  # pages are cut in a thread

SHARDS = 50
WHOLE = Page("", 1_000)


class FakeCoordinator:
    """Lists ``groups`` of all shards but the ``missing`` ones; a description has room for two of them."""

    def __init__(
        self,
        groups: dict[str, int],
        missing: dict[int, ErrorCode] | None = None,
        states: dict[str, str] | None = None,
    ) -> None:
        self.groups = groups
        self.states = states or {}
        self.missing = missing or {}
        self.described: list[str] = []

    async def list_all_groups(self, request: m.ListGroupsRequest, client: object) -> GroupListing:
        Listed = m.ListGroupsResponse.ListedGroup
        listed = [Listed(group_id=each, group_state=self.states.get(each, "Empty")) for each in self.groups]
        return GroupListing(listed, frozenset(range(SHARDS)), self.missing)

    async def describe_groups(self, request: m.DescribeGroupsRequest, client: object) -> m.DescribeGroupsResponse:
        answers = []
        self.described += request.groups
        for number, name in enumerate(request.groups):
            code = self.groups[name] if number < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answers.append(described(name, None, error_code=code, group_state="Empty"))
        return m.DescribeGroupsResponse(groups=answers)


async def all_of(coordinator: FakeCoordinator, search: str = "", page: Page = WHOLE, sort: str = "group_id") -> Any:
    catalog = catalog_of(topic(OFFSETS_TOPIC, UUID(int=2), SHARDS))
    membership = joined(shards={ShardId(GROUPS, 4): ShardOwner("d", 1)}, own="b")
    own = Coordinator({ShardId(GROUPS, 3): "storage is full"})
    return await Groups(membership, catalog, cast(Any, coordinator), own).page(search, Order.parse(sort), page)


async def groups_of(coordinator: FakeCoordinator) -> list[str]:
    found = await all_of(coordinator)
    assert not found["shards_not_loaded"]
    return [each["group_id"] for each in found["groups"]]


async def test_all_groups_of_the_cluster_are_described() -> None:
    names = [f"g{number}" for number in range(7)]
    assert await groups_of(FakeCoordinator(dict.fromkeys(names, 0))) == names


async def test_groups_of_other_pages_are_not_described() -> None:
    coordinator = FakeCoordinator(dict.fromkeys(["a9", "b1", "a3", "A5", "a1", "a7"], 0))
    found = await all_of(coordinator, "a", Page("a1", 2))
    assert [each["group_id"] for each in found["groups"]] == ["a3", "a7"]
    assert (found["total"], found["next"]) == (5, "a7")
    assert coordinator.described == ["a3", "a7"]
    last = await all_of(coordinator, "a", Page("a7", 2))
    assert ([each["group_id"] for each in last["groups"]], last["next"]) == (["a9"], None)


@pytest.mark.slow
async def test_a_page_of_five_thousand_groups_is_bounded() -> None:
    coordinator = FakeCoordinator({f"{number:0249}": 0 for number in range(5_000)})
    found = await all_of(coordinator, page=Page("", 25, 4_000))
    assert (len(found["groups"]), found["total"]) == (25, 5_000)
    assert len(json.dumps(found)) < 16 << 10
    assert set(coordinator.described) == {each["group_id"] for each in found["groups"]}


async def test_groups_are_searched_in_a_thread() -> None:
    """A hundred thousand take 0.2 s."""
    looked_in = set[int]()

    class Name(str):
        def lower(self) -> str:
            looked_in.add(threading.get_ident())
            return super().lower()

    assert await groups_of(FakeCoordinator({Name("g"): 0})) == ["g"]
    assert looked_in
    assert threading.get_ident() not in looked_in


async def test_groups_are_sorted_by_a_field_of_their_listing() -> None:
    coordinator = FakeCoordinator(dict.fromkeys(["a", "b", "c", "d"], 0), states={"b": "Stable", "d": "Stable"})
    found = await all_of(coordinator, sort="-state", page=Page("", 3))
    assert [each["group_id"] for each in found["groups"]] == ["d", "b", "c"]
    assert (coordinator.described, found["next"]) == (["d", "b", "c", "c"], None), "c had no room at first"
    second = await all_of(coordinator, sort="-group_id", page=Page("", 2, 2))
    assert [each["group_id"] for each in second["groups"]] == ["b", "a"]


async def test_a_group_that_was_deleted_meanwhile_is_left_out() -> None:
    assert await groups_of(FakeCoordinator({"gone": ErrorCode.GROUP_ID_NOT_FOUND, "here": 0})) == ["here"]


async def test_shards_that_are_not_loaded_are_named_beside_the_groups_of_others() -> None:
    loading, elsewhere = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
    found = await all_of(
        FakeCoordinator({"here": 0}, {3: loading, 4: elsewhere, 5: ErrorCode.COORDINATOR_NOT_AVAILABLE})
    )
    assert [each["group_id"] for each in found["groups"]] == ["here"]
    assert found["shards_not_loaded"] == [
        {"kind": "groups", "shard": 3, "coordinator": "b", "why": "storage is full"},
        {"kind": "groups", "shard": 4, "coordinator": "d", "why": "NOT_COORDINATOR"},
        {"kind": "groups", "shard": 5, "coordinator": "", "why": "COORDINATOR_NOT_AVAILABLE"},
    ]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_groups_whose_shard_is_lost_before_they_are_described_are_left_out(code: ErrorCode) -> None:
    found = await all_of(FakeCoordinator({"here": 0, "lost": code}))
    assert [each["group_id"] for each in found["groups"]] == ["here"]
    assert [each["shard"] for each in found["shards_not_loaded"]] == [shard_of("lost", SHARDS)]


async def test_a_cluster_without_groups_has_none_though_a_shard_is_not_loaded() -> None:
    found = await all_of(FakeCoordinator({}, {3: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}))
    assert (found["groups"], [each["shard"] for each in found["shards_not_loaded"]]) == ([], [3])


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_it_is_an_error_if_no_shards_groups_can_be_listed(code: ErrorCode) -> None:
    with pytest.raises(RequestError) as refused:
        await all_of(FakeCoordinator({}, dict.fromkeys(range(SHARDS), code)))
    assert refused.value.code is code


@pytest.mark.slow
async def test_a_group_of_many_members_and_offsets_is_read_without_a_stop() -> None:
    assigned = struct.pack(">hih6si10i", 0, 1, 6, b"orders", 10, *range(10))
    Group = m.DescribeGroupsResponse.DescribedGroup
    member = Group.DescribedGroupMember(
        member_id="m", group_instance_id=None, client_id="c", client_host="/h", member_assignment=assigned
    )
    Topic = m.OffsetFetchResponse.OffsetFetchResponseTopic
    parts = [Topic.OffsetFetchResponsePartition(partition_index=n, committed_offset=n, metadata="") for n in range(500)]

    class Large(FakeCoordinator):
        async def describe_groups(self, request: Any, client: object) -> m.DescribeGroupsResponse:
            found = described("g", None, group_state="Stable", protocol_type="consumer")
            found.members = [member] * 30_000
            return m.DescribeGroupsResponse(groups=[found])

        async def offset_fetch(self, request: Any, client: object) -> m.OffsetFetchResponse:
            await asyncio.sleep(0)
            return m.OffsetFetchResponse(topics=[Topic(name=f"t{n}", partitions=parts) for n in range(400)])

    groups = Groups(cast(Any, None), cast(Any, None), cast(Any, Large({})), None)
    with loop_stops() as stops:
        found = await groups.group("g")
    assert found is not None
    assert [each["assignment"] for each in found["members"][-1:]] == [{"orders": list(range(10))}]
    assert (len(found["offsets"]), found["offsets"][-1]["topic"]) == (200_000, "t399")
    assert is_short(stops.longest_s), stops.longest_s
