"""Heartbeat, versions 0 to 4: keeps a member's session alive; its error notifies the member of a rebalance.

Behaviour: while the group's shard loads, the response has no error, as in Kafka: sessions begin again once it is
loaded.

Version notes: 3 static members (KIP-345).
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
