"""DeleteGroups, versions 0 to 2: removes groups without members, with their offsets."""

from __future__ import annotations

from bmq.coordinator.routing import DELETE
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import ask_about_allowed
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: DeleteGroupsRequest) -> DeleteGroupsResponse:
    response: DeleteGroupsResponse = await ask_about_allowed(scopes, request, message, DELETE, AclOperation.DELETE)
    return response


NEEDS = (Need(AclOperation.DELETE, ResourceType.GROUP, "each"),)
APIS = (Api(ApiKey.DELETE_GROUPS, 0, 2, handle, needs=NEEDS),)
