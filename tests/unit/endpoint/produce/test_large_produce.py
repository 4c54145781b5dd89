"""Produces of so many partitions that they are handed out in turns of the loop: their order, their end, their bound."""

from __future__ import annotations

import asyncio
import gc
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import CloseConnection
from bmq.core.wire.limits import PARTITIONS
from bmq.endpoint.produce.handler import PARTITIONS_AT_ONCE
from bmq.endpoint.produce.partition_produce import PartitionProduce
from bmq.storage.memory import Faults
from tests.harness.fakes import FakeClient
from tests.harness.loop import run
from tests.harness.loop_stops import without_collector
from tests.unit.broker.world import World, batch, idempotent, produced, world

pytestmark = pytest.mark.slow

MANY = 2 * PARTITIONS_AT_ONCE
Data = ProduceRequest.TopicProduceData


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[World]:
    async with world(**options) as made:
        yield made
        assert len(made.scopes.process.produce_order) == 0


def send(w: World, parts: Sequence[tuple[int, bytes | bytearray]], **options: Any) -> asyncio.Future[list[Any]]:
    """Send a request, in which one partition may be listed more than once."""
    pieces = [Data.PartitionProduceData(index=index, records=bytes(records)) for index, records in parts]
    values = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, **options}
    request = ProduceRequest(topic_data=[Data(name="orders", partition_data=pieces)], **values)
    return asyncio.ensure_future(produced(w.send(request, 9), 9))


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn while the thread that reads large requests works: virtual time does not wait for it."""
    for _ in range(1_000_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def test_a_large_produce_is_answered_in_the_requests_order() -> None:
    async with serving() as w:
        w.topic(partitions=2)
        answers = await send(w, [(number % 3, batch()) for number in range(MANY)])
        assert [each.index for each in answers] == [number % 3 for number in range(MANY)]
        assert [each.error_code for each in answers[:3]] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [each.base_offset for each in answers[0::3]] == list(range(len(answers[0::3])))
        assert [each.base_offset for each in answers[1::3]] == list(range(len(answers[1::3])))
        counters = w.metrics.topics["orders"]
        assert (counters.produces, counters.failed_produces) == (MANY, len(answers[2::3]))


async def test_rule_9_later_produces_of_the_connection_stay_behind_a_large_one() -> None:
    """A producer's next batches do not overtake those that are still to be handed out, on any path."""

    async with serving() as w:
        w.topic()
        await w.owner()
        large = send(w, [(0, idempotent(number)) for number in range(MANY)])
        small = [w.produce({("orders", 0): idempotent(MANY + number)}) for number in range(3)]
        second = send(w, [(0, idempotent(MANY + 3 + number)) for number in range(MANY)])
        last = w.produce({("orders", 0): idempotent(2 * MANY + 3)})
        found = [*await large]
        for each in (*small, second, last):
            found += await each
        assert [each.error_code for each in found] == [0] * (2 * MANY + 4)
        assert [each.base_offset for each in found] == list(range(2 * MANY + 4))


async def test_other_connections_do_not_wait_for_a_large_produce() -> None:
    async with serving() as w:
        w.topic(partitions=2)
        await w.owner(partition=1)
        large = send(w, [(0, batch()) for _ in range(4 * MANY)])
        w.client = FakeClient()
        (part,) = await w.produce({("orders", 1): batch()})
        assert part.error_code == 0
        assert not large.done()
        assert len(await large) == 4 * MANY


async def test_the_time_out_answers_the_parts_that_are_not_flushed() -> None:
    async with serving() as w:
        w.topic(partitions=2)
        await w.produce_one(batch())
        await w.produce_one(batch(), partition=1)
        w.storage.faults = Faults(ack_s=(5.0, 5.0))
        answers = await send(w, [(number % 3, batch()) for number in range(MANY)], timeout_ms=1_000)
        codes = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert {each.error_code for each in answers} == codes
        assert all(each.base_offset == -1 for each in answers)


async def test_held_parts_are_dropped_with_their_connection() -> None:
    async with serving() as w:
        w.topic("orders", assign=False)
        for turns in (1, 2, 5, 20, 200):
            large = send(w, [(0, batch()) for _ in range(MANY)])
            behind = send(w, [(0, batch()) for _ in range(MANY)])
            for _ in range(turns):
                await asyncio.sleep(0)
            large.cancel()
            behind.cancel()
            await asyncio.wait([large, behind])
            assert len(w.scopes.process.produce_order) == 0
            assert w.scopes.process.produce_queue.held_bytes == 0
        w.assign()
        (part,) = await w.produce({("orders", 0): batch()})
        assert part.base_offset == 0, "nothing of what was dropped is written"


def test_a_request_that_is_given_up_leaves_nothing_to_the_collector() -> None:
    """Parts and their request refer to each other: a hundred thousand of them would stop the loop at its next run."""

    async def story() -> None:
        async with serving() as w:
            w.topic("orders", assign=False)
            for turns in (5, 200):  # while it is handed out, and when it waits
                large = send(w, [(0, batch()) for _ in range(MANY)])
                for _ in range(turns):
                    await asyncio.sleep(0)
                large.cancel()
                await asyncio.wait([large])
            del large
            await asyncio.sleep(1)  # virtual: the thread that frees them has been waited for

    def parts() -> int:
        return sum(isinstance(each, PartitionProduce) for each in gc.get_objects())

    with without_collector():
        gc.collect()
        before = parts()
        run(story())
        assert parts() == before


async def test_a_large_produce_without_acks_fails_by_closing_the_connection() -> None:
    async with serving() as w:
        w.topic()
        assert await send(w, [(0, batch()) for _ in range(MANY)], acks=0) == []
        with pytest.raises(CloseConnection, match="acks=0 failed"):
            await send(w, [(number // (MANY - 1), batch()) for number in range(MANY)], acks=0)


async def test_more_than_the_limit_closes_the_connection() -> None:
    async with serving() as w:
        w.topic()
        head = struct.pack(">hhih hhi i h6s i", 0, 3, 1, -1, -1, -1, 1000, 1, 6, b"orders", PARTITIONS)
        frame = bytearray(head + struct.pack(">ii", 0, 0) * PARTITIONS)  # and their topic
        with pytest.raises(CloseConnection, match=f"more than {PARTITIONS} partitions"):
            await w.endpoint(memoryview(frame), w.client)  # type: ignore[misc]


async def test_large_produces_in_flight_are_bounded_and_the_next_one_waits() -> None:
    async with serving() as w:
        w.topic("orders", assign=False)
        w.scopes.process.large._produced.limit = MANY + 1
        first = send(w, [(0, batch()) for _ in range(MANY)])
        w.client = FakeClient()
        second = send(w, [(0, batch()) for _ in range(MANY)])
        await until(lambda: bool(w.scopes.process.large._produced.waiting))
        held = w.scopes.process.produce_queue.held_bytes
        w.assign()
        assert [each.base_offset for each in await first] == list(range(MANY))
        assert [each.base_offset for each in await second] == list(range(MANY, 2 * MANY))
        assert held <= MANY * len(batch())
        assert (w.scopes.process.large._produced.used, w.scopes.process.large._produced.waiting) == (0, 0)


async def test_a_malformed_large_produce_closes_the_connection() -> None:
    async with serving() as w:
        w.topic()
        pieces = [Data.PartitionProduceData(index=0, records=bytes(batch())) for _ in range(MANY)]
        request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[Data(name="orders", partition_data=pieces)])
        request.with_header(correlation_id=1, client_id="test")
        frame = bytearray(request.encode(version=9, header=True, framed=False))[:-100]
        with pytest.raises(CloseConnection, match="where"):
            await w.endpoint(memoryview(frame), w.client)  # type: ignore[misc]
        (part,) = await w.produce({("orders", 0): batch()})
        assert part.base_offset == 0


async def test_a_large_produce_finds_topics_by_id() -> None:
    async with serving() as w:
        topic = w.topic()
        pieces = [Data.PartitionProduceData(index=0, records=bytes(batch())) for _ in range(MANY)]
        topics = [Data(topic_id=each, partition_data=pieces) for each in (topic.topic_id, uuid.UUID(int=99))]
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=topics)
        answers = await produced(w.send(request, 13), 13)
        assert [each.error_code for each in answers] == [0] * MANY + [ErrorCode.UNKNOWN_TOPIC_ID] * MANY
