"""A produce's bytes are free when nobody needs them any more, without the help of the cyclic garbage collector.

The collector runs after so many objects, not after so many bytes: a cycle that holds a frame of 100 MB may wait for
thousands of requests.  So the collector is off here, and a frame that somebody still holds fails the test.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest

from bmq.core.net.request import CloseConnection, Response
from tests.unit.broker.world import World, batch, idempotent, world

Data = ProduceRequest.TopicProduceData


class Frame(bytearray):
    """The memory of one request, which can be referred to weakly."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def frame_of(records: bytes | bytearray | None, *, acks: int, topic: str, partition: int, timeout_ms: int) -> Frame:
    piece = Data.PartitionProduceData(index=partition, records=None if records is None else bytes(records))
    request = ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[Data(name=topic, partition_data=[piece])],
    )
    request.with_header(correlation_id=1, client_id="test")
    return Frame(request.encode(version=9, header=True, framed=False))


async def send(
    w: World,
    records: bytes | bytearray | None,
    *,
    acks: int = -1,
    topic: str = "orders",
    partition: int = 0,
    timeout_ms: int = 500,
) -> weakref.ref[Frame]:
    """Produce, drop the response, and return a weak reference to the request's memory."""
    frame = frame_of(records, acks=acks, topic=topic, partition=partition, timeout_ms=timeout_ms)
    reference = weakref.ref(frame)
    try:
        outcome: Any = w.endpoint(memoryview(frame), w.client)
        del frame
        if not isinstance(outcome, Response):
            await asyncio.ensure_future(outcome)
    except CloseConnection:
        pass  # how a refused produce without acknowledgement ends
    return reference


STORIES: dict[str, Callable[[World], Awaitable[list[weakref.ref[Frame]]]]] = {}


def story(call: Callable[[World], Awaitable[list[weakref.ref[Frame]]]]) -> None:
    STORIES[call.__name__] = call


@story
async def refused_at_once(w: World) -> list[weakref.ref[Frame]]:
    bad = bytearray(batch(b"x" * 5_000))
    bad[-1] ^= 1
    return [await send(w, bytes(bad), acks=acks) for acks in (-1, 1, 0)]


@story
async def refused_by_the_topic(w: World) -> list[weakref.ref[Frame]]:
    return [
        await send(w, batch(b"x" * 5_000), topic="missing"),
        await send(w, batch(b"x" * 5_000), partition=9),
        await send(w, batch(b"x" * 2_000_000)),
        await send(w, None),
        await send(w, idempotent(5)),
        await send(w, batch(), acks=7),
    ]


@story
async def accepted(w: World) -> list[weakref.ref[Frame]]:
    return [await send(w, batch(b"x" * 5_000), acks=acks) for acks in (-1, 1, 0, -1)]


@story
async def repeated(w: World) -> list[weakref.ref[Frame]]:
    return [await send(w, idempotent(0)) for _ in range(3)]


@story
async def timed_out_without_an_owner(w: World) -> list[weakref.ref[Frame]]:
    w.topic("unowned", assign=False)
    return [await send(w, batch(b"x" * 5_000), topic="unowned") for _ in range(2)]


@story
async def client_gone(w: World) -> list[weakref.ref[Frame]]:
    """Hold a produce for a partition without owner, then close the connection, which cancels the request."""
    w.topic("unowned", assign=False)
    frame = frame_of(batch(b"x" * 5_000), acks=-1, topic="unowned", partition=0, timeout_ms=30_000)
    reference = weakref.ref(frame)
    outcome: Any = w.endpoint(memoryview(frame), w.client)
    del frame
    waiting = asyncio.ensure_future(outcome)
    await asyncio.sleep(0.01)
    waiting.cancel()
    w.client.close()
    w.client.is_closed = False
    return [reference]


@story
async def accepted_by_the_other_codec(w: World) -> list[weakref.ref[Frame]]:
    w.topic("packed", compression_type="lz4")
    return [await send(w, batch(b"x" * 5_000), topic="packed") for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
async def test_a_frame_is_free_when_its_produce_is_over(name: str) -> None:
    async with world() as w:
        w.topic()
        await w.owner()
        await send(w, batch())
        frames = await STORIES[name](w)
        await send(w, batch())  # what was flushed last may stay until the next flush
        await asyncio.sleep(2.0)
        kept = [number for number, frame in enumerate(frames) if frame() is not None]
        assert not kept, f"of {len(frames)} frames these are still held: {kept}"
