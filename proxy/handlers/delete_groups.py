"""DeleteGroups, versions 0 to 2: removes groups without members, with their offsets."""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
    return await services.coordinator.delete_groups(message, ClientInfo.of(request))


APIS = (Api(ApiKey.DELETE_GROUPS, 0, 2, handle),)
