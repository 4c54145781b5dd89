"""Traces by OpenTelemetry's SDK, exported by OTLP over HTTP if the environment asks for it (``OTEL_...``).

The SDK is an extra: without ``OTEL_EXPORTER_OTLP_ENDPOINT`` nothing of it is imported.  It records every span that it
gets, since requests are sampled before (``proxy.tracing``).  Its batch processor exports in a thread, drops spans past
its queue (``OTEL_BSP_MAX_QUEUE_SIZE``), and never delays a request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from bmq.core.config import ConfigError
from bmq.core.extras import how_to_install
from bmq.core.logging.fields import fields
from bmq.core.tracing import CURRENT, Span, SpanKind, Tracer, Value
from bmq.core.version import VERSION

_log = logging.getLogger(__name__)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP = "http/protobuf"
RATIO = 0.001
"""Default share of requests that are traced.  OpenTelemetry's own is all of them: too many for a broker that serves
10,000 requests a second."""
_RATIOS: Mapping[str, float | None] = {
    "always_on": 1.0,
    "parentbased_always_on": 1.0,
    "always_off": 0.0,
    "parentbased_always_off": 0.0,
    "traceidratio": None,
    "parentbased_traceidratio": None,
}
"""Share by sampler, None where ``OTEL_TRACES_SAMPLER_ARG`` has it.  Clients' requests have no parent span, so that a
sampler and its ``parentbased_`` form do the same."""
CLOSE_S = 5.0
"""Time-out of the export of the last spans, at the end of the process."""


class TraceSettings(NamedTuple):
    """Traces that the environment asks for: of the share ``ratio`` of clients' requests."""

    ratio: float


def wanted_of(environment: Mapping[str, str]) -> TraceSettings | None:
    """Return which traces the environment asks for; None for none.  Raises ConfigError naming a wrong variable."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip() or "otlp"
    if exporter == "none" or not any(environment.get(name) for name in ENDPOINTS):
        return None
    if exporter != "otlp":
        raise ConfigError(f"OTEL_TRACES_EXPORTER={exporter!r} is not supported; choose otlp or none")
    for name in PROTOCOLS:
        if environment.get(name, HTTP) not in ("", HTTP):
            raise ConfigError(f"{name}={environment[name]!r} is not supported; use {HTTP} (port 4318 of a collector)")
    ratio = _ratio_of(environment)
    return TraceSettings(ratio) if ratio else None


def _ratio_of(environment: Mapping[str, str]) -> float:
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip()
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    if name and name not in _RATIOS:
        raise ConfigError(f"OTEL_TRACES_SAMPLER={name!r}; choose from {', '.join(_RATIOS)}")
    fixed = _RATIOS[name] if name else None
    if fixed is not None:
        return fixed
    if not text:
        return 1.0 if name else RATIO  # 1.0 is OpenTelemetry's default of the argument
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG={text[:40]!r} is not a number from 0 to 1")
    return ratio


def open_tracer(environment: Mapping[str, str], incarnation: str) -> Tracer | None:
    """Return the tracer that the environment asks for; None if it asks for none, or the extra is not installed.

    Raises ConfigError naming a wrong variable.
    """
    wanted = wanted_of(environment)
    if wanted is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError as error:
        text = "OTEL_EXPORTER_OTLP_ENDPOINT is set, and nothing is traced: install OpenTelemetry: %s"
        _log.warning(text, how_to_install("otel"), extra=fields(error=error))
        return None
    own = {"service.version": VERSION, "service.instance.id": incarnation}
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        own["service.name"] = "bmq"
    try:
        provider = TracerProvider(sampler=ALWAYS_ON, resource=Resource.create(own), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ConfigError(f"OpenTelemetry refuses its variables (OTEL_...): {error}") from None
    _log.info("a share of %g of clients' requests is traced", wanted.ratio)
    return OtelTracer(provider, wanted.ratio)


class OtelTracer:
    """The ``Tracer`` over OpenTelemetry's ``TracerProvider``."""

    def __init__(self, provider: Any, ratio: float) -> None:
        from opentelemetry import trace

        self.ratio = ratio
        self._provider = provider
        self._tracer = provider.get_tracer("bmq", VERSION)
        self._trace = trace
        self._kinds = {
            SpanKind.SERVER: trace.SpanKind.SERVER,
            SpanKind.CLIENT: trace.SpanKind.CLIENT,
            SpanKind.INTERNAL: trace.SpanKind.INTERNAL,
        }

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: Span | bytes | None = None,
        attributes: Mapping[str, Value] | None = None,
    ) -> Span:
        return self._start(name, kind, parent, attributes, time.time_ns())

    def stage(self, name: str, seconds: float, attributes: Mapping[str, Value] | None = None) -> None:
        parent = CURRENT.get()
        if parent is not None:
            began_ns = time.time_ns() - int(seconds * 1e9)
            self._start(name, SpanKind.INTERNAL, parent, attributes, began_ns).end()

    def _start(
        self,
        name: str,
        kind: SpanKind,
        parent: Span | bytes | None,
        attributes: Mapping[str, Value] | None,
        began_ns: int,
    ) -> Span:
        context = self._trace.set_span_in_context(self._parent(parent), _root_context())
        return OtelSpan(
            self._tracer.start_span(name, context, self._kinds[kind], attributes, start_time=began_ns), self._trace
        )

    def _parent(self, parent: Span | bytes | None) -> Any:
        trace = self._trace
        if parent is None:
            return trace.INVALID_SPAN
        if isinstance(parent, OtelSpan):
            return parent.span
        data = parent if isinstance(parent, bytes) else parent.context
        return trace.NonRecordingSpan(
            trace.SpanContext(
                int.from_bytes(data[:16], "big"),
                int.from_bytes(data[16:24], "big"),
                is_remote=True,
                trace_flags=trace.TraceFlags(data[24]),
            )
        )

    def close(self) -> None:
        """Export the last spans, for ``CLOSE_S`` at most: the SDK alone would wait for each export to time out."""
        ending = threading.Thread(target=self._provider.shutdown, name="bmq-traces-close", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            _log.info("the last spans are not exported: the collector has not accepted them within %g s", CLOSE_S)


def _root_context() -> Any:
    """Return an empty context, so that nothing is inherited from the process's own one."""
    from opentelemetry.context import Context

    return Context()


class OtelSpan:
    """The ``Span`` over OpenTelemetry's."""

    __slots__ = ("_trace", "span")

    def __init__(self, span: Any, trace: Any) -> None:
        self.span = span
        self._trace = trace

    @property
    def context(self) -> bytes:
        own = self.span.get_span_context()
        return bytes((*own.trace_id.to_bytes(16, "big"), *own.span_id.to_bytes(8, "big"), int(own.trace_flags)))

    def set(self, name: str, value: Value) -> None:
        self.span.set_attribute(name, value)

    def fail(self, error: str) -> None:
        self.span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error[:1_000]))

    def end(self) -> None:
        self.span.end()
