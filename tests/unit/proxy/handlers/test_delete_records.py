"""DeleteRecords: the new low watermark of each partition, and topics whose records may not be deleted."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.messages import DeleteRecordsRequest
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.proxy.handlers import delete_records
from bmq.proxy.handlers.delete_records import NO_WATERMARK
from tests.harness.waiting import now
from tests.unit.proxy.handlers.owned_topic import FakeOwner, scopes_of

Wanted = DeleteRecordsRequest.DeleteRecordsTopic
TOPICS = {
    OFFSETS_TOPIC: Topic(name=OFFSETS_TOPIC, topic_id=UUID(int=2), partitions=4),
    "compacted": Topic(name="compacted", topic_id=UUID(int=3), partitions=4, configs={"cleanup.policy": "compact"}),
    "both": Topic(name="both", topic_id=UUID(int=4), partitions=4, configs={"cleanup.policy": "compact, delete"}),
}


async def ask(owner: FakeOwner, *wanted: tuple[str, int, int], timeout_ms: int = 1_000) -> list[tuple[ErrorCode, int]]:
    """Return error and low watermark of each (topic, partition, offset)."""
    topics = [
        Wanted(name=name, partitions=[Wanted.DeleteRecordsPartition(partition_index=index, offset=offset)])
        for name, index, offset in wanted
    ]
    message: Any = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
    unused: Any = None
    response = await delete_records.handle(scopes_of({0: owner}, topics=TOPICS), unused, message)
    assert [topic.name for topic in response.topics] == [name for name, _, _ in wanted]
    found = [topic.partitions[0] for topic in response.topics]
    assert [each.partition_index for each in found] == [index for _, index, _ in wanted]
    return [(ErrorCode(each.error_code), each.low_watermark) for each in found]


async def test_the_owner_deletes_up_to_the_offset_and_returns_the_low_watermark() -> None:
    owner = FakeOwner(delete_before=30)
    assert await ask(owner, ("t", 0, 30)) == [(ErrorCode.NONE, 30)]
    assert owner.calls == [("delete_before", 30)]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (OFFSETS_TOPIC, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("compacted", ErrorCode.POLICY_VIOLATION),
        ("both", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_records_of_internal_and_compacted_topics_stay(topic: str, code: ErrorCode) -> None:
    owner = FakeOwner(delete_before=30)
    watermark = 30 if code is ErrorCode.NONE else NO_WATERMARK
    assert await ask(owner, (topic, 0, 30)) == [(code, watermark)]
    assert bool(owner.calls) == (code is ErrorCode.NONE)


async def test_a_partition_that_fails_does_not_fail_the_others() -> None:
    owner = FakeOwner(delete_before=5)
    wanted = [("t", 1, 5), ("t", 0, 5), ("t", 9, 5)]
    assert await ask(owner, *wanted) == [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_WATERMARK),
        (ErrorCode.NONE, 5),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_WATERMARK),
    ]


async def test_an_offset_that_the_owner_refuses_has_its_error() -> None:
    owner = FakeOwner(delete_before=RequestError(ErrorCode.OFFSET_OUT_OF_RANGE, "past the high watermark"))
    assert await ask(owner, ("t", 0, 99)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, NO_WATERMARK)]


@pytest.mark.parametrize("timeout_ms", [0, -1, 1])
async def test_a_delete_without_time_is_tried_all_the_same(timeout_ms: int) -> None:
    """Kafka deletes before it looks at the time; the owner here takes a few turns of the loop, or a call to storage."""

    async def delete() -> int:
        await asyncio.sleep(0.5)
        return 5

    assert await ask(FakeOwner(delete_before=delete), ("t", 0, 5), timeout_ms=timeout_ms) == [(ErrorCode.NONE, 5)]


@pytest.mark.parametrize(("timeout_ms", "waited_s"), [(2_500, 2.5), (0, 2.0), (-1, 2.0)])
async def test_a_delete_that_takes_longer_than_the_clients_time_out_is_timed_out(
    timeout_ms: int, waited_s: float
) -> None:
    owner = FakeOwner(delete_before=asyncio.Event().wait)
    found = await ask(owner, ("t", 0, 5), timeout_ms=timeout_ms)
    assert found == [(ErrorCode.REQUEST_TIMED_OUT, NO_WATERMARK)]
    assert now() == waited_s
