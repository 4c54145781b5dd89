"""Heartbeat 0-4: keep a member's session, and hear of a rebalance.

While its shard loads a heartbeat is answered with no error, as in Kafka: sessions begin anew when it is loaded.

* 3: static members (KIP-345).
"""

from __future__ import annotations

from collections.abc import Awaitable

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import HeartbeatRequest, HeartbeatResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


def handle(
    services: ProxyServices, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    return services.coordinator.heartbeat(message, ClientInfo.of(request))


APIS = (Api(ApiKey.HEARTBEAT, 0, 4, handle),)
