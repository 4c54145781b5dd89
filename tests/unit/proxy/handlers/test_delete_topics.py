"""DeleteTopics in every version, by name and by id."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import DeleteTopicsRequest
from bmq.proxy.handlers import delete_topics
from tests.unit.proxy.handlers.admin_requests import codes, versions
from tests.unit.proxy.handlers.admin_serving import serving

DELETE = delete_topics.APIS[0]


def delete(version: int, *names: str, ids: tuple[uuid.UUID, ...] = ()) -> Any:
    if version < 6:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=1000)
    state = DeleteTopicsRequest.DeleteTopicState
    topics = [state(name=name, topic_id=None) for name in names] + [state(name=None, topic_id=each) for each in ids]
    return DeleteTopicsRequest(topics=topics, timeout_ms=1000)


@pytest.mark.parametrize("version", versions(DELETE))
async def test_topics_are_deleted_in_every_version(version: int) -> None:
    async with serving() as w:
        made = await w.admin.create_topic("t")
        await w.admin.create_topic("twice")
        await w.admin.ensure_topic("__consumer_offsets")
        asked = delete(version, "t", "none", "twice", "twice", "__consumer_offsets")
        found = (await w.ask(DELETE, version, asked)).responses
        assert codes(found) == [
            ("t", 0), ("none", 3), ("twice", ErrorCode.INVALID_REQUEST),
            ("__consumer_offsets", ErrorCode.INVALID_REQUEST),
        ]  # fmt: skip
        assert set(w.catalog.topics) == {"twice", "__consumer_offsets"}
        if version >= 6:
            assert found[0].topic_id == made.topic_id
    async with serving(config=NodeConfig(delete_topic_enable=False)) as w:
        await w.admin.create_topic("t")
        wanted = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert codes((await w.ask(DELETE, version, delete(version, "t"))).responses) == [("t", wanted)]


async def test_topics_are_deleted_by_id() -> None:
    async with serving() as w:
        one, two = await w.admin.create_topic("one"), await w.admin.create_topic("two")
        unknown = uuid.uuid4()
        found = (await w.ask(DELETE, 6, delete(6, "two", ids=(one.topic_id, unknown, two.topic_id)))).responses
        assert [(r.name, r.topic_id, r.error_code) for r in found] == [
            ("two", None, ErrorCode.INVALID_REQUEST),  # named twice, by name and by id
            ("one", one.topic_id, 0),
            (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
            ("two", two.topic_id, 0),
        ]
        state = DeleteTopicsRequest.DeleteTopicState
        odd = [state(name="x", topic_id=unknown), state(name=None, topic_id=None)]
        found = (await w.ask(DELETE, 6, DeleteTopicsRequest(topics=odd, timeout_ms=1000))).responses
        assert [r.error_code for r in found] == [ErrorCode.INVALID_REQUEST] * 2
