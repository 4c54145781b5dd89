"""The owner's interface: properties, questions, notifications to FlushListeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
)

from bmq.broker.config import LogConfig
from bmq.broker.partition.owner import PartitionOwner
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv_memory import KvFaults
from bmq.proxy.handlers.delete_records import TRIED_S
from bmq.storage.memory import Faults
from tests.unit.broker.partition.logs import ROLLING, SLOW, T0, fill, offsets
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.broker.world import World, batch, idempotent, world

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from bmq.broker.assignment.assigned_partitions import AssignedPartitions
    from bmq.endpoint.partitions import Owner, Owners

    def is_an_owner(owner: PartitionOwner) -> Owner:
        """Let mypy check that a PartitionOwner satisfies the protocol."""
        return owner

    def are_owners(assigned: AssignedPartitions) -> Owners:
        return assigned


async def test_an_owners_properties_follow_its_partition() -> None:
    async with world() as w:
        w.topic(max_message_bytes="5000")
        owner = await w.owner()
        assert (owner.epoch, owner.log_start, owner.high_watermark, owner.last_stable_offset) == (1, 0, 0, 0)
        assert (owner.is_open, owner.has_room, owner.max_message_bytes) == (True, True, 5000)
        assert owner.active_segment is None
        await w.produce_one(batch(count=3))
        assert (owner.high_watermark, owner.last_stable_offset) == (3, 3)
        active = owner.active_segment
        assert active is not None
        assert (active.end_offset, active.position) == (3, len(batch(count=3)))
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        later = w.produce({("orders", 0): batch()})
        await asyncio.sleep(0.5)
        assert owner.active_segment == active, "position and end offset are those of one flush"
        await later
        assert owner.active_segment is not None
        assert owner.active_segment.end_offset == 4
        w.broker.fence_all()
        assert not owner.is_open


async def test_internal_batches_are_acknowledged_with_their_base_offset() -> None:
    """Append as a coordinator does: batches without sequence and markers are acknowledged with the base offset."""

    async with world() as w:
        w.topic()
        owner = await w.owner()
        await w.produce_one(batch(count=5))
        assert await owner.append_internal(data(-1, pid=9).data) == 5
        assert (owner.high_watermark, owner.last_stable_offset) == (6, 5)
        assert await owner.append_internal(data(-1, pid=9).data) == 6
        assert await owner.append_internal(marker(pid=9).data) == 7
        assert (owner.high_watermark, owner.last_stable_offset) == (8, 8)
        await w.broker.move(w.key())
        with pytest.raises(RequestError) as refused:
            owner.append_internal(memoryview(batch()))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_flush_listeners_are_notified_in_order() -> None:
    """Expect one notification a flush, and nothing after ``closed``, although the hand-over still flushes."""

    async with world() as w:
        w.topic()
        owner = await w.owner()
        await w.produce_one(batch(count=2))
        w.storage.faults = Faults(ack_s=(0.5, 0.5))
        sent = [w.produce({("orders", 0): batch()}) for _ in range(3)]
        await asyncio.gather(*sent)
        await owner.delete_before(3)
        late = w.produce({("orders", 0): batch()})
        await asyncio.sleep(0.01)
        await w.assigned.withdraw(w.key())
        assert (await late)[0].base_offset == 5
        assert w.flush_listener.notified == [
            ("opened", 0, 1, 0, 0),
            ("flushed", 0, [0], 2),
            ("flushed", 0, [2, 3, 4], 5),
            ("log start", 0, 3),
            ("closed", 0),
        ]
        w.assign()
        await w.owner()
        assert w.flush_listener.notified[-1] == ("opened", 0, 2, 3, 6)


async def test_list_offsets_refuses_other_versions_and_epochs() -> None:
    async with world() as w:
        w.topic()
        await w.owner()
        assert (await offsets(w, -3, version=6))[0][0] == "UNSUPPORTED_VERSION"
        assert (await offsets(w, -4, version=7))[0][0] == "UNSUPPORTED_VERSION"
        assert (await offsets(w, -5, version=8))[0][0] == "UNSUPPORTED_VERSION"
        assert (await offsets(w, -6, version=10))[0][0] == "UNSUPPORTED_VERSION"
        assert (await offsets(w, -7))[0][0] == "UNSUPPORTED_VERSION"
        assert (await offsets(w, -1, epoch=2))[0][0] == "UNKNOWN_LEADER_EPOCH"
        assert [(await offsets(w, -1, epoch=epoch))[0][0] for epoch in (-1, 0, 1)] == ["NONE"] * 3
        assert (await offsets(w, -1, partition=1))[0][0] == "UNKNOWN_TOPIC_OR_PARTITION"
        for version in range(1, 12):
            assert [each[:2] for each in await offsets(w, -1, -2, version=version)] == [("NONE", 0), ("NONE", 0)]


async def test_list_offsets_names_a_partition_once() -> None:
    async with world() as w:
        w.topic()
        Topic = ListOffsetsRequest.ListOffsetsTopic
        twice = [Topic.ListOffsetsPartition(partition_index=0, timestamp=-1) for _ in range(2)]
        request = ListOffsetsRequest(replica_id=-1, topics=[Topic(name="orders", partitions=twice)])
        response = await w.call(request, ListOffsetsResponse, 9)
        assert [each.error_code for each in response.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


async def send_two(w: World) -> PartitionOwner:
    """Produce two records that are acknowledged (acks=1) and not flushed."""
    owner = await w.owner()
    for number in range(2):
        assert (await w.produce_one(batch(base_timestamp=T0 + number), acks=1)).error_code == 0
    assert owner.high_watermark == 0, "it was flushed already: this shows nothing"
    return owner


async def test_list_offsets_gives_the_end_of_what_was_acknowledged() -> None:
    async with world(faults=SLOW) as w:
        w.topic()
        owner = await send_two(w)
        assert await offsets(w, -2) == [("NONE", 0, -1, 1)], "the beginning is told at once"
        assert owner.high_watermark == 0
        assert await offsets(w, -1) == [("NONE", 2, -1, 1)]
        await w.produce_one(batch(base_timestamp=T0 + 2), acks=1)
        assert await offsets(w, -3) == [("NONE", 2, T0 + 2, -1)]
        await w.produce_one(batch(base_timestamp=T0 + 3), acks=1)
        assert await offsets(w, T0 + 3) == [("NONE", 3, T0 + 3, -1)]


@pytest.mark.parametrize("offset", [1, 2, -1])
async def test_delete_records_reaches_what_was_acknowledged(offset: int) -> None:
    async with world(faults=SLOW) as w:
        w.topic()
        await send_two(w)
        assert await delete(w, offset, timeout_ms=10_000) == ("NONE", offset if offset > 0 else 2)


async def test_delete_records_past_what_was_acknowledged_is_out_of_range() -> None:
    async with world(faults=SLOW) as w:
        w.topic()
        owner = await send_two(w)
        assert await delete(w, 3, timeout_ms=10_000) == ("OFFSET_OUT_OF_RANGE", -1)
        assert owner.high_watermark == 2


async def test_a_wait_for_a_flush_ends_at_the_requests_time_out() -> None:
    """DeleteRecords waits for `TRIED_S` at least, whatever its time-out."""
    async with world(faults=Faults(ack_s=(2 * TRIED_S, 2 * TRIED_S))) as w:
        w.topic()
        owner = await send_two(w)
        assert await offsets(w, -1, timeout_ms=1) == [("REQUEST_TIMED_OUT", -1, -1, -1)]
        assert await delete(w, 1, timeout_ms=1) == ("REQUEST_TIMED_OUT", -1)
        assert owner.high_watermark == 0
        assert owner.log_start == 0


async def test_list_offsets_does_not_wait_for_batches_that_are_not_acknowledged() -> None:
    """The batch was sent with acks=all and is not acknowledged: ListOffsets returns the end without it."""

    async with world(faults=SLOW) as w:
        w.topic()
        owner = await w.owner()
        sent = w.produce({("orders", 0): batch()})
        assert await offsets(w, -1) == [("NONE", 0, -1, 1)]
        assert owner.high_watermark == 0
        assert (await sent)[0].error_code == 0


async def delete(w: World, offset: int, name: str = "orders", **options: Any) -> tuple[str, int]:
    Topic = DeleteRecordsRequest.DeleteRecordsTopic
    part = Topic.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[Topic(name=name, partitions=[part])], timeout_ms=options.get("timeout_ms", 1000)
    )
    response = await w.call(request, DeleteRecordsResponse, options.get("version", 2))
    ((result,),) = [topic.partitions for topic in response.topics]
    return ErrorCode(result.error_code).name, result.low_watermark


async def test_delete_records_raises_the_log_start_of_topics_that_delete() -> None:
    async with world() as w:
        w.topic()
        w.topic("__consumer_offsets")
        w.topic("compacted", cleanup_policy="compact")
        w.topic("both", cleanup_policy="compact,delete")
        await fill(w, *range(10))
        assert await delete(w, 4) == ("NONE", 4)
        assert await delete(w, 2, version=0) == ("NONE", 4), "a log start never goes back"
        assert await delete(w, 11) == ("OFFSET_OUT_OF_RANGE", -1)
        assert await delete(w, -2) == ("OFFSET_OUT_OF_RANGE", -1)
        assert await delete(w, -1, version=1) == ("NONE", 10)
        assert (await offsets(w, -2))[0][1] == 10
        assert await delete(w, 0, "missing") == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
        assert await delete(w, 0, "__consumer_offsets") == ("INVALID_TOPIC_EXCEPTION", -1)
        assert await delete(w, 0, "compacted") == ("POLICY_VIOLATION", -1)
        assert await delete(w, 0, "both") == ("NONE", 0)


async def test_delete_records_needs_the_ownership_proven() -> None:
    """The store does not respond: a retriable error, or the request's time-out (rule 10)."""

    async with world() as w:
        w.topic()
        await fill(w, 0, 1, 2)
        w.kv.faults = KvFaults(unavailable=1.0)
        assert await delete(w, 1) == ("NOT_LEADER_OR_FOLLOWER", -1)
        w.kv.faults = KvFaults(latency_s=100.0)
        assert await delete(w, 2, timeout_ms=500) == ("REQUEST_TIMED_OUT", -1)


async def test_describe_producers_names_clients_and_no_internal_producers() -> None:
    async with world() as w:
        w.topic("orders", 2)
        await w.produce_one(idempotent(0, 3))
        await w.produce_one(idempotent(3, 2))
        await (await w.owner()).append_internal(memoryview(batch(producer_id=-5, producer_epoch=1, base_sequence=0)))
        Topic = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(topics=[Topic(name="orders", partition_indexes=[0, 1, 2])])
        response = await w.call(request, DescribeProducersResponse, 0)
        first, second, third = response.topics[0].partitions
        (producer,) = first.active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 0, 4)
        assert producer.last_timestamp == 1_700_000_000_001, "the record's timestamp, not the time of receipt"
        assert (producer.current_txn_start_offset, second.active_producers) == (-1, [])
        assert (third.error_code, third.partition_index) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 2)


async def sizes(w: World, topics: Any = None, version: int = 4) -> dict[tuple[str, int], int]:
    response = await w.call(DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse, version)
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (0, "file:///data")
    assert (result.total_bytes, result.usable_bytes) == (-1, -1)
    return {
        (topic.name, each.partition_index): each.partition_size for topic in result.topics for each in topic.partitions
    }


async def test_describe_log_dirs_gives_each_partitions_bytes() -> None:
    async with world(broker=ROLLING) as w:
        w.topic("orders", 2)
        w.topic("other")
        size = len(batch())
        await fill(w, *range(4), rolls_every=2)
        for partition in range(2):
            await w.owner("orders", partition)
        await w.owner("other")
        everything = {("orders", 0): 4 * size, ("orders", 1): 0, ("other", 0): 0}
        for version in (1, 2, 3, 4, 5):
            assert await sizes(w, version=version) == everything
        Topic = DescribeLogDirsRequest.DescribableLogDirTopic
        assert await sizes(w, [Topic(topic="orders", partitions=[0, 9]), Topic(topic="no", partitions=[0])]) == {
            ("orders", 0): 4 * size
        }
        w.storage.faults = Faults(unavailable=1.0)
        w.topic("late")
        await w.owner("late")
        response = await w.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
        assert response.results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("rolls_every", [0, 1, 3])
async def test_log_bytes_are_counted_as_the_log_grows(rolls_every: int) -> None:
    """Right whenever asked, and no listing while nothing was registered or closed."""

    async with world(broker=ROLLING) as w:
        w.topic()
        owner = await w.owner()
        size = len(batch())
        for number in range(7):
            await fill(w, number)
            if rolls_every and number % rolls_every == 0:
                await asyncio.sleep(3)
            assert await owner.log_bytes() == (number + 1) * size
        w.storage.faults = Faults(unavailable=1.0)
        assert await owner.log_bytes() == 7 * size
        w.storage.faults = Faults()
        await owner.delete_before(7)
        newest = {0: 7, 1: 1, 3: 3}[rolls_every]  # batches of the last segment: it stays, empty as the log is
        assert await owner.log_bytes() == newest * size


async def test_a_config_reaches_the_open_partition() -> None:
    """Nothing is closed: the same owner, under the new settings."""

    async with world() as w:
        w.topic()
        owner = await w.owner()
        await w.produce_one(batch(b"x" * 500))
        segment = owner.active_segment
        assert segment is not None
        w.assigned.assign(w.path(), w.key(), LogConfig(segment_ms=5000))
        assert w.assigned.get(w.key()) is owner
        assert owner.active_segment is not None
        await asyncio.sleep(6)
        assert owner.active_segment is None, "a nearer deadline is kept"
        driver = w.broker.get(w.key())
        assert driver is not None
        assert not driver.segments.is_synced
        w.assigned.assign(w.path(), w.key(), LogConfig(flush_sync=True))
        assert driver.segments.is_synced, "an index is as durable as its records"
