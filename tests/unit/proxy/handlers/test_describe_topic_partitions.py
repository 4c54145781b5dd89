"""DescribeTopicPartitions: pages, cursors and their bound."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.model import PartitionKey
from bmq.core.wire.messages import DescribeTopicPartitionsRequest
from bmq.proxy.handlers import describe_topic_partitions
from tests.unit.proxy.handlers.admin_serving import serving

PARTITIONS = describe_topic_partitions.APIS[0]


def partitions_of(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    Request = DescribeTopicPartitionsRequest
    at = cursor and Request.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    return Request(
        topics=[Request.TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=at
    )


def pages(found: Any) -> tuple[list[tuple[str, int, list[int]]], tuple[str, int] | None]:
    topics = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in found.topics]
    cursor = found.next_cursor
    return topics, cursor and (cursor.topic_name, cursor.partition_index)


async def test_topic_partitions_are_described_in_pages() -> None:
    async with serving() as w:
        made = await w.admin.create_topic("b", 3)
        await w.admin.create_topic("a", 2)
        await w.admin.create_topic("c", 1)
        w.owners.epochs[PartitionKey(made.topic_id, 1)] = 9

        async def ask(*names: str, **fields: Any) -> Any:
            return pages(await w.ask(PARTITIONS, 0, partitions_of(*names, **fields)))

        everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
        assert await ask() == (everything, None)
        assert await ask("c", "a", "none", "x y") == (
            [("a", 0, [0, 1]), ("c", 0, [0]), ("none", 3, []), ("x y", 17, [])], None,
        )  # fmt: skip
        assert await ask(limit=2) == ([("a", 0, [0, 1])], ("b", 0))
        assert await ask(limit=3) == ([("a", 0, [0, 1]), ("b", 0, [0])], ("b", 1))
        assert await ask(limit=0) == ([("a", 0, [0])], ("a", 1))
        assert await ask(limit=2, cursor=("b", 1)) == ([("b", 0, [1, 2])], ("c", 0))
        assert await ask(cursor=("b", 99)) == ([("b", 0, []), ("c", 0, [0])], None)
        assert await ask(cursor=("bb", 5)) == ([("c", 0, [0])], None), "a topic that is gone"
        assert await ask("a", "b", cursor=("c", 0)) == ([("a", 42, []), ("b", 42, [])], None)
        assert await ask("a", cursor=("a", -1)) == ([("a", 42, [])], None)
        found = (await w.ask(PARTITIONS, 0, partitions_of("b"))).topics[0]
        assert found.topic_id == made.topic_id
        assert [(p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in found.partitions] == [
            (0, -1, [0], [0])
        ] * 3, "no epoch, of an open partition neither"
        assert found.partitions[0].eligible_leader_replicas == []
        cursor, seen = None, []
        while True:
            topics, cursor = await ask(limit=1, cursor=cursor)
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        assert seen == [(name, index) for name, _, indexes in everything for index in indexes]


@pytest.mark.slow
async def test_a_page_has_at_most_as_many_partitions_as_kafkas() -> None:
    async with serving() as w:
        await w.admin.create_topic("t", 5_000)
        topics, cursor = pages(await w.ask(PARTITIONS, 0, partitions_of("t", limit=1_000_000)))
        assert (len(topics[0][2]), cursor) == (2_000, ("t", 2_000))
