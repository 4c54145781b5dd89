"""OffsetDelete, version 0: removes a group's offsets of topics that it is not subscribed to."""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: OffsetDeleteRequest) -> OffsetDeleteResponse:
    return await services.coordinator.offset_delete(message, ClientInfo.of(request))


APIS = (Api(ApiKey.OFFSET_DELETE, 0, 0, handle),)
