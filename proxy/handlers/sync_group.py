"""SyncGroup, versions 0 to 5: the group's leader sends the assignment of a generation, the other members receive it.

Behaviour: the response is sent when the leader's assignment is durable.

Version notes: 3 static members (KIP-345); 5 protocol type and name must be given and right (KIP-559).
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
