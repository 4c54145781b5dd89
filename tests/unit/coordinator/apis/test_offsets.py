"""Commits and fetches of offsets: by topic name and by topic id, and of partitions that do not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from bmq.meta.catalog import Topic
from tests.unit.coordinator.fakes import AGAIN, CLIENT, World, commit_request, running, topic


async def test_fetches_by_name_by_id_and_of_all_topics_agree() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 7) == 0
        assert await world.commit("g", 3, topic="events") == 0
        old = world.catalog.topics["orders"]
        assert await _by_id(world, "g", old) == (0, 7)
        world.catalog.topics["orders"] = AGAIN  # before any process sees it
        assert await world.fetch("g") == -1
        assert await _by_id(world, "g", AGAIN) == (0, -1)
        assert await _by_id(world, "g", old) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        group = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", member_id=None, member_epoch=-1, topics=None)
        request = m.OffsetFetchRequest(version=9, groups=[group], require_stable=False)
        response = await world.coordinator.offset_fetch(request, CLIENT)
        assert [each.name for each in response.groups[0].topics] == ["events"]


async def _by_id(world: World, group_id: str, wanted: Topic) -> tuple[int, int]:
    group_class = m.OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [group_class.OffsetFetchRequestTopics(topic_id=wanted.topic_id, partition_indexes=[0])]
    group = group_class(group_id=group_id, member_id=None, member_epoch=-1, topics=topics)
    request = m.OffsetFetchRequest(version=10, groups=[group], require_stable=False)
    response = await world.coordinator.offset_fetch(request, CLIENT)
    (part,) = response.groups[0].topics[0].partitions
    return part.error_code, part.committed_offset


@pytest.mark.parametrize("version", [2, 9, 10])
async def test_each_partition_that_does_not_exist_is_refused_by_itself(version: int) -> None:
    async with running(World()) as world:
        world.catalog.topics["orders"] = replace(topic("orders"), partitions=2)
        wanted = [0, 1, 2, 99, -1, -5, 2**31 - 1]
        assert await _commit(world, version, wanted) == [0, 0, 3, 3, 3, 3, 3]
        assert sorted(world.offsets()) == [("g", "orders", 0), ("g", "orders", 1)]


async def _commit(world: World, version: int, partitions: list[int]) -> list[int]:
    request: Any = commit_request("g", [("orders", 0, 5)], version=version)
    (part,) = request.topics
    part.topic_id = world.catalog.topics["orders"].topic_id
    made = type(part.partitions[0])
    part.partitions = [
        made(partition_index=each, committed_offset=5, committed_leader_epoch=-1, committed_metadata="")
        for each in partitions
    ]
    response = await world.coordinator.offset_commit(request, CLIENT)
    return [each.error_code for each in response.topics[0].partitions]
