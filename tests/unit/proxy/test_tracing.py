"""Spans of traced requests, over real brokers on memory: their makers, their parents, and that each ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Client, CloseConnection, Response
from bmq.core.tracing import CURRENT, ENTRIES_MAX, SampledRecords, Span, SpanKind, Value, parse_entries
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from bmq.endpoint.api import Api
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.fetch import handler as fetch
from bmq.endpoint.produce import handler as produce
from bmq.proxy.tracing import TracedEndpoint, Tracing
from tests.harness.loop import run
from tests.harness.scopes import make_endpoint
from tests.unit.proxy.cluster import Cluster, cluster, plain

APIS = (*produce.APIS, *fetch.APIS)
_HEAD = struct.Struct(">hhih")


class FakeSpan:
    """A ``Span`` that remembers."""

    def __init__(self, tracer: FakeTracer, name: str, kind: SpanKind, parent: bytes | None, began: float) -> None:
        self.tracer = tracer
        self.name = name
        self.kind = kind
        self.parent = parent
        self.began = began
        self.ended = -1.0
        self.error = ""
        self.attributes: dict[str, Value] = {}
        trace = parent[:16] if parent else len(tracer.spans).to_bytes(16, "big")
        self.context = trace + (len(tracer.spans) + 1).to_bytes(8, "big") + b"\1"

    def __repr__(self) -> str:
        return f"<{self.name} of {self.of} {self.began:.4f}..{self.ended:.4f} {self.error}>"

    @property
    def of(self) -> str:
        """The name of the span that this one is a part of."""
        return next((each.name for each in self.tracer.spans if each.context == self.parent), "")

    def set(self, name: str, value: Value) -> None:
        self.attributes[name] = value

    def fail(self, error: str) -> None:
        self.error = error

    def end(self) -> None:
        assert self.ended < 0, f"{self.name} ends twice"
        self.ended = asyncio.get_running_loop().time()


class FakeTracer:
    """A ``Tracer`` in memory."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.ratio = ratio
        self.spans: list[FakeSpan] = []

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: Span | bytes | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> FakeSpan:
        above = parent if isinstance(parent, bytes) else parent.context if parent is not None else None
        span = FakeSpan(self, name, kind, above, asyncio.get_running_loop().time())
        span.attributes.update(attributes or {})
        self.spans.append(span)
        return span

    def stage(self, name: str, seconds: float, attributes: Mapping[str, Value] | None = None) -> None:
        parent = CURRENT.get()
        if parent is not None:
            span = self.start(name, SpanKind.INTERNAL, parent, attributes)
            span.began -= seconds
            span.end()

    def close(self) -> None:
        """Nothing is exported."""

    def tree(self) -> list[tuple[str, str]]:
        """Each span's name, and that of the one above; all have ended."""
        assert [each for each in self.spans if each.ended < 0] == []
        return [(each.name, each.of) for each in self.spans]

    def one(self, name: str, of: str | None = None) -> FakeSpan:
        (found,) = [each for each in self.spans if each.name == name and of in (None, each.of)]
        return found


class World:
    """A cluster whose processes trace, and a client of its proxy, for whose ``apis`` it has an endpoint."""

    def __init__(self, world: Cluster, tracer: FakeTracer, apis: Sequence[Api[Any]] = APIS) -> None:
        assert world.tracing is not None
        self.cluster = world
        self.tracer = tracer
        endpoint = make_endpoint(world.scopes, apis)
        self.endpoint = world.tracing.of_clients(endpoint)
        self._number = 0

    def frame(self, key: int, version: int, body: bytes) -> memoryview:
        self._number += 1
        return memoryview(bytearray(_HEAD.pack(key, version, self._number, 2) + b"me\0" + body))

    async def respond(self, frame: memoryview) -> bytes:
        response = self.endpoint(frame, cast(Client, self.cluster.client))
        if not isinstance(response, Response):
            response = await response
        data = b"".join(response.buffers)
        await asyncio.sleep(0.001)  # until the kernel has it
        if response.release is not None:
            response.release()
        return data[5:]

    async def produce(
        self, records: bytes | bytearray, *partitions: int, acks: int = -1, timeout_ms: int = 30_000
    ) -> list[int]:
        """Return the error code of each partition."""
        topics = [(self.cluster.topic.topic_id, [(each, memoryview(bytearray(records))) for each in partitions])]
        body = b"".join(encode_produce_request(acks, timeout_ms, topics))
        data = await self.respond(self.frame(ApiKey.PRODUCE, PRODUCE_VERSION, body))
        if not data:
            return []
        return [each.error_code for topic in decode_produce_response(memoryview(data)) for each in topic.partitions]


def story(main: Any, *, ratio: float = 1.0, **options: Any) -> FakeTracer:
    tracer = FakeTracer(ratio)

    async def go() -> None:
        async with cluster(tracing=Tracing(tracer), **options) as world:
            for partition in range(world.topic.partitions):  # all are open
                assert (await world.send(plain(), partition)).error_code == 0
            await main(World(world, tracer))

    run(go())
    return tracer


def test_a_produce_is_traced_from_the_request_to_the_flush_on_its_broker() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 0) == [0]

    tracer = story(main)
    assert sorted(tracer.tree()) == sorted(
        [
            ("Produce", ""),
            ("route", "Produce"),
            ("Produce", "route"),
            ("append", "Produce"),
            ("flush", "Produce"),
            ("acknowledge", "Produce"),
            ("acknowledge", "Produce"),
        ]
    )
    assert len({each.context[:16] for each in tracer.spans}) == 1, "one trace"
    request, route = tracer.one("Produce", ""), tracer.one("route")
    assert (request.kind, route.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert request.attributes["messaging.client.id"] == "me"
    assert request.attributes["network.peer.address"] == "10.0.0.1"
    assert route.attributes["bmq.member"] == "b1"
    flush, inside = tracer.one("flush"), tracer.one("Produce", "route")
    assert flush.attributes["messaging.destination.name"] == "orders"
    assert flush.attributes["messaging.destination.partition.id"] == "0"
    assert flush.attributes["messaging.kafka.offset"] == 1
    assert flush.parent == inside.context
    assert request.began <= route.began <= inside.began <= flush.began <= flush.ended < route.ended < request.ended


def test_partitions_of_a_request_have_spans_of_their_own_under_one_trace() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 0, 1) == [0, 0]

    tracer = story(main)
    tracer.tree()
    flushes = [each for each in tracer.spans if each.name == "flush"]
    assert {each.attributes["messaging.destination.partition.id"] for each in flushes} == {"0", "1"}
    assert len({each.context[:16] for each in tracer.spans}) == 1


def large_produce() -> Api[Any]:
    """Return Produce with a bound that makes every request large: a task of its own hands its partitions out."""
    (api,) = produce.APIS
    return api._replace(rule=replace(api.rule, partitions=0))


def test_a_large_produce_is_traced_like_a_small_one() -> None:
    async def main(w: World) -> None:
        w = World(w.cluster, w.tracer, [large_produce()])
        assert await w.produce(plain(), 0, 1) == [0, 0]

    tracer = story(main)
    found = tracer.tree()
    assert [each for each in found if each[0] == "route"] == [("route", "Produce")] * 2
    assert sum(name == "flush" for name, _ in found) == 2
    assert len({each.context[:16] for each in tracer.spans}) == 1


def test_traced_requests_share_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Endpoint] = []
    make = Endpoint.__init__

    def counting(self: Endpoint, *args: Any) -> None:
        made.append(self)
        make(self, *args)

    async def main(w: World) -> None:
        monkeypatch.setattr(Endpoint, "__init__", counting)
        for _ in range(3):
            assert await w.produce(plain(), 0) == [0]

    story(main).tree()
    assert made == []


def test_clients_whose_batches_share_a_request_to_the_broker_keep_their_traces_apart() -> None:
    async def main(w: World) -> None:
        first, second = await asyncio.gather(w.produce(plain(), 0), w.produce(plain(), 1))
        assert (first, second) == ([0], [0])
        assert w.cluster.network.links

    tracer = story(main)
    tracer.tree()
    by_trace: dict[bytes, set[str]] = {}
    for each in tracer.spans:
        by_trace.setdefault(each.context[:16], set()).add(each.name)
    assert len(by_trace) == 2
    assert all({"route", "append", "flush"} <= names for names in by_trace.values())


def test_nothing_of_a_request_that_is_not_drawn_is_traced() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 0) == [0]
        assert w.cluster.tracing is not None
        assert len(w.cluster.tracing.sampled) == 0

    assert story(main, ratio=0.0).spans == []


def test_of_two_clients_only_the_one_that_is_drawn_is_traced_to_the_broker() -> None:
    """The trace goes with its own batch, though both are carried by one request."""

    async def main(w: World) -> None:
        untraced = w.cluster.send(plain(), 1)
        assert await w.produce(plain(), 0) == [0]
        assert (await untraced).error_code == 0

    tracer = story(main)
    tracer.tree()
    flush = tracer.one("flush")
    assert flush.attributes["messaging.destination.partition.id"] == "0"


def test_a_broker_that_does_not_trace_serves_what_carries_a_trace() -> None:
    """Send traced requests to a broker that, like one of an earlier version, skips the header's tagged fields."""

    async def main(w: World) -> None:
        broker = w.cluster.broker("b1")
        broker.endpoint.register_kafka(broker.inside)
        assert await w.produce(plain(), 0, 1) == [0, 0]

    tracer = story(main)
    tracer.tree()
    assert sum(each.name == "route" for each in tracer.spans) == 2
    assert not any(each.name in ("append", "flush") for each in tracer.spans)


def test_acks_0_and_1_end_all_their_spans() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 0, acks=1) == [0]
        assert await w.produce(plain(), 0, acks=0) == []
        await asyncio.sleep(1)

    tracer = story(main)
    assert ("acknowledge", "Produce") in tracer.tree()


@pytest.mark.parametrize("is_large", [False, True])
def test_a_held_produce_is_traced_when_its_partition_has_an_owner_again(*, is_large: bool) -> None:
    async def main(w: World) -> None:
        if is_large:
            w = World(w.cluster, w.tracer, [large_produce()])
        assert await w.produce(plain(), 0) == [0]
        w.tracer.spans.clear()
        w.cluster.broker("b1").assigned.withdraw(w.cluster.key())
        waiting = asyncio.ensure_future(w.produce(plain(), 0))
        await asyncio.sleep(1)
        w.cluster.open(0, "b2")
        w.cluster.view.assign("b2", w.cluster.key())
        assert await waiting == [0]

    tracer = story(main)
    tracer.tree()
    *refused, route = [each for each in tracer.spans if each.name == "route"]
    held = [each for each in tracer.spans if each.name == "held"]
    assert len(held) >= len(refused) > 1
    assert all(each.error.startswith("refused") for each in refused)
    assert route.error == ""
    flush = tracer.one("flush")
    assert flush.began > route.began > refused[0].began + 1


def test_a_produce_that_fails_says_why() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 7) != [0]
        w.cluster.isolate("b1")
        (code,) = await w.produce(plain(), 0, timeout_ms=500)
        assert code
        await asyncio.sleep(10)

    tracer = story(main)
    tracer.tree()
    assert tracer.one("held").error == "its time was up, or its client has gone"


def test_a_batch_that_its_broker_loses_says_so() -> None:
    async def main(w: World) -> None:
        w.cluster.network.brokers["b1"].stopped = []
        waiting = asyncio.ensure_future(w.produce(plain(), 0))
        await asyncio.sleep(0.1)
        w.cluster.kill("b1")
        (code,) = await waiting
        assert code == ErrorCode.REQUEST_TIMED_OUT

    tracer = story(main)
    tracer.tree()
    assert "it may be in the log" in tracer.one("route").error


def test_a_request_that_closes_its_connection_ends_its_span() -> None:
    async def main(w: World) -> None:
        with pytest.raises(CloseConnection):
            await w.respond(w.frame(ApiKey.PRODUCE, PRODUCE_VERSION, b"\xff"))
        with pytest.raises(CloseConnection):
            await w.respond(memoryview(bytearray(b"\0")))

    tracer = story(main)
    assert tracer.tree() == [("Produce", ""), ("request", "")]
    assert all(each.error for each in tracer.spans)


def test_a_client_that_leaves_ends_its_spans() -> None:
    async def main(w: World) -> None:
        w.cluster.network.brokers["b1"].stopped = []
        task = asyncio.ensure_future(w.produce(plain(), 0))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert w.tracer.one("Produce").error == "the client has gone"
        broker = w.cluster.broker("b1")
        broker.resume()
        await asyncio.sleep(60)

    tracer = story(main)
    tracer.tree()


def test_a_fetch_has_its_wait_and_its_read() -> None:
    async def main(w: World) -> None:
        assert await w.produce(plain(), 0) == [0]
        w.tracer.spans.clear()
        token = CURRENT.set(w.tracer.start("Fetch", SpanKind.SERVER))
        (await w.cluster.fetch(w.cluster.want(0))).results  # noqa: B018  (from storage or from the tail)
        await w.cluster.fetch(w.cluster.want(2), max_wait_s=0.5)
        CURRENT.reset(token)
        await w.cluster.fetch(w.cluster.want(2), max_wait_s=0.5)
        w.tracer.spans[0].end()

    tracer = story(main)
    found = tracer.tree()
    assert ("wait", "Fetch") in found
    waits = [each for each in tracer.spans if each.name == "wait"]
    assert any(each.ended - each.began == pytest.approx(0.5) for each in waits)
    assert sum(each.ended - each.began > 0.4 for each in waits) == 1, "the other one's fetch is not traced"
    assert ("read", "Fetch") in found
    assert tracer.one("read").attributes["messaging.destination.name"] == "orders"


def test_the_share_that_is_drawn() -> None:
    async def main(w: World) -> None:
        assert isinstance(w.endpoint, TracedEndpoint)
        draws = iter([0.49, 0.5, 0.0, 0.99])
        w.endpoint._random = lambda: next(draws)
        for _ in range(4):
            assert await w.produce(plain(), 0) == [0]

    tracer = story(main, ratio=0.5)
    tracer.tree()
    assert sum(each.name == "Produce" and not each.of for each in tracer.spans) == 2


def test_the_header_carries_a_bounded_number_of_contexts() -> None:
    import uuid

    sampled = SampledRecords()
    topic = uuid.UUID(int=5)
    batches = [memoryview(bytearray(b"x")) for _ in range(ENTRIES_MAX + 50)]
    topics = [(topic, list(enumerate(batches)))]
    assert sampled.header(topics) == b""
    for number, batch in enumerate(batches):
        sampled.add(batch, number.to_bytes(25, "big"))
    found = parse_entries(memoryview(sampled.header(topics)), 0)
    assert len(found) == ENTRIES_MAX
    assert {key.partition: value for key, value in found.items()}[7] == (7).to_bytes(25, "big")
    for batch in batches:
        sampled.remove(batch)
        sampled.remove(batch)
    assert len(sampled) == 0
