"""A collector of traces in this process: an OTLP receiver over HTTP that keeps what it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class CollectedSpan(NamedTuple):
    """One span, with the process that it is of."""

    trace: bytes
    span: bytes
    parent: bytes
    name: str
    service: str
    instance: str


class Collector:
    """Spans that were exported to `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[ExportTraceServiceRequest] = []

    def spans(self) -> list[CollectedSpan]:
        found = []
        for request in tuple(self.requests):
            for each in request.resource_spans:
                own = {pair.key: pair.value.string_value for pair in each.resource.attributes}
                found += [
                    CollectedSpan(
                        span.trace_id, span.span_id, span.parent_span_id, span.name,
                        own["service.name"], own["service.instance.id"],
                    )
                    for scope in each.scope_spans
                    for span in scope.spans
                ]  # fmt: skip
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    """Receive until the end of the body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            data = self.rfile.read(int(self.headers["Content-Length"]))
            collected.requests.append(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: tests check the requests themselves."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
