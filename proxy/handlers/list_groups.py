"""ListGroups, versions 0 to 5: the groups for which clients are sent to this proxy.

Version notes: 4 filter by state; 5 filter by type: all here are ``classic``.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListGroupsRequest, ListGroupsResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: ListGroupsRequest) -> ListGroupsResponse:
    return await services.coordinator.list_groups(message, ClientInfo.of(request), services.proxies)


APIS = (Api(ApiKey.LIST_GROUPS, 0, 5, handle),)
