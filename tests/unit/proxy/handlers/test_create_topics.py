"""CreateTopics in every version: Kafka's responses and errors, and when it is answered."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from tests.unit.proxy.handlers.admin_requests import CREATE, codes, create, new, versions
from tests.unit.proxy.handlers.admin_serving import serving


@pytest.mark.parametrize("version", versions(CREATE))
async def test_topics_are_created_in_every_version(version: int) -> None:
    async with serving() as w:
        asked = create(
            new("t", 3, configs=[("retention.ms", "5")]),
            new("twice"), new("twice"), new("a b"), new("none", 0),
            new("wrong", configs=[("retention.ms", "x")]), new("null", configs=[("retention.ms", None)]),
            new("default", -1, -1), new("manual", -1, -1, assignments=[(0, [0]), (1, [0])]),
            new("double", -1, -1, assignments=[(0, [0]), (0, [0])]),
        )  # fmt: skip
        found = (await w.ask(CREATE, version, asked)).topics
        assert codes(found) == [
            ("t", 0), ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION), ("none", ErrorCode.INVALID_PARTITIONS),
            ("wrong", ErrorCode.INVALID_CONFIG), ("null", ErrorCode.INVALID_CONFIG), ("default", 0),
            ("manual", 0), ("double", ErrorCode.INVALID_REPLICA_ASSIGNMENT), ("twice", ErrorCode.INVALID_REQUEST),
        ]  # fmt: skip
        assert set(w.catalog.topics) == {"t", "default", "manual"}
        assert w.catalog.topics["manual"].partitions == 2
        assert found[0].error_message is None
        assert "Topic name is invalid" in found[1].error_message
        if version >= 5:
            assert (found[0].num_partitions, found[0].replication_factor) == (3, 1)
            configs = {config.name: config for config in found[0].configs}
            assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
            assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("604800000", 5)
            assert found[1].num_partitions == -1
        if version >= 7:
            assert found[0].topic_id == w.catalog.topics["t"].topic_id
        again = await w.ask(CREATE, version, create(new("t")))
        assert codes(again.topics) == [("t", ErrorCode.TOPIC_ALREADY_EXISTS)]


async def test_a_creation_is_answered_when_the_partitions_take_records() -> None:
    async with serving() as w:
        loop = asyncio.get_running_loop()

        async def open_later() -> None:
            await asyncio.sleep(2)
            topic = w.catalog.topics["t"]
            for partition in range(topic.partitions):
                w.owners.epochs[PartitionKey(topic.topic_id, partition)] = 1

        opening = asyncio.create_task(open_later())
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("t", 4), timeout_ms=30_000))).topics) == [("t", 0)]
        assert 2 <= loop.time() - began < 2.5
        await opening
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("u", 4), timeout_ms=30_000))).topics) == [("u", 0)]
        assert 4.9 < loop.time() - began < 5.5, "a topic that exists is not waited for without end"
        began = loop.time()
        assert codes((await w.ask(CREATE, 7, create(new("v", 4), timeout_ms=500))).topics) == [("v", 0)]
        assert loop.time() - began < 0.7, "nor longer than the client waits"


async def test_validate_only_creates_nothing() -> None:
    async with serving() as w:
        asked = create(new("t", 3), new("a b"), validate_only=True, timeout_ms=10_000)
        found = (await w.ask(CREATE, 7, asked)).topics
        assert codes(found) == [("t", 0), ("a b", 17)]
        assert found[0].num_partitions == 3
        assert w.catalog.topics == {}
        assert w.owners.waited == []
