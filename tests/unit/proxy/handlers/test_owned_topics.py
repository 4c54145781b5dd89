"""Bounds on what a client's user may own, as CreateTopics, CreatePartitions and Metadata tell them."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages
from bmq.meta.catalog import Owned
from bmq.proxy.handlers import alter_client_quotas, create_partitions, create_topics, describe_client_quotas, metadata
from tests.unit.proxy.handlers.admin_serving import AdminServing, serving

ANONYMOUS = "User:ANONYMOUS"


async def bound(w: AdminServing, user: str | None, **values: float | None) -> list[tuple[int, str | None]]:
    """Alter the bounds of a user, or of the default of users, and return the results."""
    entry = messages.AlterClientQuotasRequest.EntryData
    changes = [entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    entities = [entry.EntityData(entity_type="user", entity_name=user)]
    message = messages.AlterClientQuotasRequest(entries=[entry(entity=entities, ops=changes)], validate_only=False)
    found = await w.ask(alter_client_quotas.APIS[0], 1, message)
    return [(each.error_code, each.error_message) for each in found.entries]


async def create(w: AdminServing, name: str, partitions: int = 1, *, only: bool = False) -> tuple[int, str | None]:
    kind = messages.CreateTopicsRequest
    topic = kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=[])
    message = kind(topics=[topic], timeout_ms=5_000, validate_only=only)
    found = (await w.ask(create_topics.APIS[0], 7, message)).topics[0]
    return found.error_code, found.error_message


async def test_bounds_are_set_and_described_as_other_quotas() -> None:
    async with serving() as w:
        assert await bound(w, None, max_topics=3.0, max_partitions=0.0) == [(0, None)]
        assert await bound(w, "alice", max_connections=5.0, max_groups=7.0) == [(0, None)]
        message = messages.DescribeClientQuotasRequest(components=[], strict=False)
        found = await w.ask(describe_client_quotas.APIS[0], 1, message)
        shown = {each.entity[0].entity_name: {one.key: one.value for one in each.values} for each in found.entries}
        assert shown == {
            None: {"max_topics": 3.0, "max_partitions": 0.0},
            "alice": {"max_connections": 5.0, "max_groups": 7.0},
        }
        ((code, text),) = await bound(w, None, max_topics=0.5)
        assert (code, text) == (ErrorCode.INVALID_REQUEST, "max_topics cannot be a fractional value.")
        assert w.scopes.process.client_quotas.find_bound("max_topics", "User:bob") == 3
        assert w.scopes.process.client_quotas.find_bound("max_topics", "Other:bob") is None


@pytest.mark.slow
async def test_topics_past_a_users_bound_are_refused_by_policy() -> None:
    async with serving(config=NodeConfig(num_partitions=2)) as w:
        await bound(w, None, max_topics=2.0, max_partitions=4.0)
        assert await create(w, "a", 2) == (0, None)
        code, text = await create(w, "b", 3, only=True)
        assert code == ErrorCode.POLICY_VIOLATION
        assert text is not None
        assert text.startswith(f"{ANONYMOUS} may own 4 partition(s), owns 2, and this would add 3.")
        assert "max_partitions" in text
        kind = messages.CreatePartitionsRequest
        asked = kind(topics=[kind.CreatePartitionsTopic(name="a", count=5, assignments=None)], timeout_ms=5_000,
                     validate_only=False)  # fmt: skip
        (found,) = (await w.ask(create_partitions.APIS[0], 3, asked)).results
        assert found.error_code == ErrorCode.POLICY_VIOLATION
        assert await create(w, "b", 1) == (0, None)
        assert (await create(w, "c", 1))[0] == ErrorCode.POLICY_VIOLATION
        assert w.catalog.owned_by(ANONYMOUS) == Owned(2, 3)
        await bound(w, "ANONYMOUS", max_topics=3.0)
        assert await create(w, "c", 1) == (0, None), "a user's own bound counts before the default"


async def test_metadata_creates_no_topic_past_the_bound() -> None:
    async with serving() as w:
        await bound(w, None, max_topics=0.0)
        kind: Any = messages.MetadataRequest
        message = kind(topics=[kind.MetadataRequestTopic(name="t", topic_id=None)], allow_auto_topic_creation=True,
                       include_topic_authorized_operations=False)  # fmt: skip
        api = metadata.APIS[0]
        response = await w.ask_raw(api, 9, message)
        found = messages.MetadataResponse.decode(response[5:], version=9)
        assert [each.error_code for each in found.topics] == [ErrorCode.POLICY_VIOLATION]
        assert "t" not in w.catalog.topics
        await bound(w, None, max_topics=1.0)
        await w.ask_raw(api, 9, message)
        assert w.catalog.topics["t"].principal == ANONYMOUS
