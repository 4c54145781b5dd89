"""OpenTelemetry: what the environment asks for, and the spans of a whole process as a collector receives them."""

from __future__ import annotations

import logging
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bmq.core.config import ConfigError, NodeConfig
from bmq.core.net.listener_config import PLAINTEXT
from bmq.core.net.request import Client, Response
from bmq.core.tracing import SpanKind, Tracer
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION, encode_produce_request
from bmq.endpoint.dispatch import Endpoint
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server import otel
from bmq.server.otel import RATIO, OtelTracer, TraceSettings, open_tracer, wanted_of
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.log_text import lines
from tests.harness.single_node import single_node
from tests.services.otlp import collector
from tests.unit.proxy.cluster import plain

AT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "ratio"),
    [
        ({}, None),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, None),
        (AT, RATIO),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, RATIO),
        ({**AT, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({**AT, "OTEL_SDK_DISABLED": "false"}, RATIO),
        ({**AT, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({**AT, "OTEL_TRACES_EXPORTER": "otlp"}, RATIO),
        ({**AT, "OTEL_TRACES_SAMPLER": "always_on"}, 1.0),
        ({**AT, "OTEL_TRACES_SAMPLER": "parentbased_always_off"}, None),
        ({**AT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, 0.25),
        ({**AT, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, 1.0),
        ({**AT, "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        ({**AT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, None),
        ({**AT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, RATIO),
    ],
)
def test_what_the_environment_asks_for(environment: Mapping[str, str], ratio: float | None) -> None:
    assert wanted_of(environment) == (None if ratio is None else TraceSettings(ratio))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER='sometimes'; choose from always_on"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG='2' is not a number from 0 to 1"),
        ({"OTEL_TRACES_SAMPLER_ARG": "nan"}, "OTEL_TRACES_SAMPLER_ARG='nan' is not a number from 0 to 1"),
        ({"OTEL_TRACES_SAMPLER_ARG": "many"}, "OTEL_TRACES_SAMPLER_ARG='many'"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER='zipkin'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL='grpc'.*port 4318"),
    ],
)
def test_a_wrong_variable_is_named(environment: Mapping[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        wanted_of({**AT, **environment})


def test_without_the_extra_the_server_runs_untraced_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setattr("bmq.server.otel.how_to_install", lambda extra: f"python -m pip install {extra}")
    with caplog.at_level(logging.WARNING):
        assert open_tracer(AT, "n") is None
    (line,) = lines(caplog)
    assert "nothing is traced" in line
    assert "python -m pip install otel" in line


def test_nothing_is_imported_where_nothing_is_traced() -> None:
    assert open_tracer({}, "n") is None


# ------------------------------------------------------------------------------------------------- a whole process


async def use(tracer: Tracer | None) -> list[str]:
    """Produce twice and fetch once as a client of a process; return the classes that served it."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(NodeConfig(default_replication_factor=1), fs, kv, tracer=tracer) as node:
        node.is_at({PLAINTEXT: Address(host="h", port=9092)})
        await node.start()
        topic = await node.admin.create_topic("orders", 1, replication_factor=1)
        dispatch = node.proxy.dispatches["PLAINTEXT"]
        for number in range(2):
            body = encode_produce_request(-1, 30_000, [(topic.topic_id, [(0, memoryview(plain()))])])
            head = struct.pack(">hhih", ApiKey.PRODUCE, PRODUCE_VERSION, number, 4) + b"till\0"
            response: Any = dispatch(memoryview(bytearray(b"".join((head, *body)))), cast(Client, FakeClient()))
            if not isinstance(response, Response):
                response = await response
            if response.release is not None:
                response.release()
        return [type(each).__name__ for each in node.proxy.dispatches.values()]


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_the_spans_of_a_produce_hang_together() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    assert await use(OtelTracer(provider, 1.0)) == ["TracedEndpoint"]
    spans = memory.get_finished_spans()
    by_id = {each.context.span_id: each for each in spans}

    def above(span: ReadableSpan) -> str:
        return by_id[span.parent.span_id].name if span.parent is not None else ""

    last = [each for each in spans if each.context.trace_id == spans[-1].context.trace_id]
    assert sorted((each.name, above(each)) for each in last) == [
        ("Produce", ""),
        ("acknowledge", "Produce"),
        ("append", "Produce"),
        ("flush", "Produce"),
    ]
    flush = next(each for each in last if each.name == "flush")
    assert flush.attributes is not None
    assert flush.attributes["messaging.destination.name"] == "orders"
    assert flush.attributes["messaging.kafka.offset"] == 1


def test_a_trace_goes_on_from_its_context() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = OtelTracer(provider, 1.0)
    first = tracer.start("route", SpanKind.CLIENT)
    assert len(first.context) == 25
    second = tracer.start("Produce", SpanKind.SERVER, first.context)
    second.fail("x" * 5_000)
    second.end()
    first.end()
    inside, outside = memory.get_finished_spans()
    assert inside.parent is not None
    assert (inside.parent.span_id, inside.context.trace_id) == (outside.context.span_id, outside.context.trace_id)
    assert inside.parent.is_remote
    assert len(inside.status.description or "") == 1_000


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_process_without_a_tracer_has_nothing_before_its_endpoint() -> None:
    assert await use(None) == [Endpoint.__name__]


def test_the_end_does_not_wait_for_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "CLOSE_S", 0.05)
    is_taken = threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            is_taken.wait()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hanging()))
    tracer = OtelTracer(provider, 1.0)
    tracer.start("Fetch", SpanKind.SERVER).end()
    closing = threading.Thread(target=tracer.close, daemon=True)
    closing.start()
    closing.join(10)
    try:
        assert not closing.is_alive()
    finally:
        is_taken.set()


def test_a_variable_that_the_sdk_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with pytest.raises(ConfigError, match=r"refuses its variables \(OTEL_\.\.\.\): max_queue_size must be"):
        open_tracer(AT, "n")


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_collector_receives_them_by_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as collected:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url, "OTEL_TRACES_SAMPLER": "always_on"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        tracer = open_tracer(environment, "n-1")
        assert tracer is not None
        await use(tracer)
        tracer.close()
    spans = collected.spans()
    assert {(each.service, each.instance) for each in spans} == {("bmq", "n-1")}
    assert {"Produce", "append", "flush", "acknowledge"} <= {each.name for each in spans}
