"""SyncGroup 0-5: hand in, or wait for, the assignment of a generation.

Answered when the leader's assignment is durable.

* 3: static members (KIP-345).  * 5: protocol type and name must be given and right (KIP-559).
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import SyncGroupRequest, SyncGroupResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: SyncGroupRequest) -> SyncGroupResponse:
    return await services.coordinator.sync_group(message, ClientInfo.of(request))


APIS = (Api(ApiKey.SYNC_GROUP, 0, 5, handle, waits_for_clients=True),)
