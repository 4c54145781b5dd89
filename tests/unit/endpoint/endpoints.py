"""An endpoint with a few APIs, and requests to it as frames."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from kafka.protocol.consumer import HeartbeatRequest as RawHeartbeat
from kafka.protocol.metadata import ApiVersionsRequest as RawApiVersions

from bmq.core.clock import LoopClock
from bmq.core.net.request import Request, Response
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import HeartbeatResponse
from bmq.endpoint import api_versions
from bmq.endpoint.api import Api
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.response_budget import ResponseBudget
from tests.harness.scopes import make_endpoint, make_scopes


class Asker:
    """A ``Client`` that is not a connection."""

    peer, host, is_closed = "10.0.0.1:5", "10.0.0.1", False
    client_id: str | None = None
    client_software = ("", "")
    session = ANONYMOUS_SESSION

    def on_close(self, call: Any) -> Any:
        return lambda: None

    def mute(self, seconds: float) -> None:
        raise AssertionError("it has no quotas")

    def unmute(self) -> None:
        raise AssertionError("it has no quotas")


def endpoint(handle: Any = None, *, raw: Any = None, clock: Any = None) -> Endpoint:
    heartbeat = Api(ApiKey.HEARTBEAT, 1, 4, handle or raw or beat, parse=unread if raw else None)
    produce = Api(ApiKey.PRODUCE, 3, 13, beat_raw, parse=unread, is_pipelined=True, advertised_min=0)
    scopes = make_scopes(clock=clock or LoopClock(), responses=ResponseBudget(1 << 30))
    return make_endpoint(scopes, [produce, heartbeat, *api_versions.APIS])


def counters(made: Endpoint, key: ApiKey = ApiKey.HEARTBEAT) -> Any:
    return made.scopes.caller.metrics.api(key)


def beat(scopes: Any, request: Request, message: Any) -> Any:
    return HeartbeatResponse(throttle_time_ms=0, error_code=27)


def unread(body: memoryview, version: int, partitions_max: int) -> memoryview:
    return body


def beat_raw(scopes: Any, request: Request, message: Any) -> Response:
    return Response((b"raw",))


def heartbeat(version: int = 4, correlation_id: int = 77) -> memoryview:
    message = RawHeartbeat(group_id="g", generation_id=1, member_id="m")
    message.with_header(correlation_id=correlation_id, client_id="tester")
    return memoryview(bytearray(message.encode(version=version, header=True)))


def versions(version: int, name: str = "librdkafka", software: str = "2.3.0-rc1") -> memoryview:
    message = RawApiVersions(client_software_name=name, client_software_version=software)
    message.with_header(correlation_id=9, client_id="tester")
    return memoryview(bytearray(message.encode(version=version, header=True)))


def joined(response: Response | Awaitable[Response]) -> bytes:
    assert isinstance(response, Response)
    return b"".join(response.buffers)


def decoded(response: Response | Awaitable[Response], kind: Any, version: int) -> Any:
    return kind.decode(joined(response), version=version, header=True)
