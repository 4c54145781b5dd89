"""ListGroups, versions 0 to 5: the groups for which clients are sent to this proxy.

Version notes: 4 filter by state; 5 filter by type: all here are ``classic``.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.aio.turns import map_in_turns
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListGroupsRequest, ListGroupsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: ListGroupsRequest) -> ListGroupsResponse:
    rights = scopes.caller.rights(request)
    response = await scopes.process.coordinator.list_groups(message, ClientInfo.of(request), scopes.view.proxies)
    if not rights.allow_on_cluster(AclOperation.DESCRIBE, is_required=False):
        shown = await map_in_turns(
            lambda group: rights.allow_on_group(AclOperation.DESCRIBE, group.group_id, is_required=False),
            response.groups,
        )
        response.groups = [group for group, is_shown in zip(response.groups, shown, strict=True) if is_shown]
    return response


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.CLUSTER, "for all groups"),
    Need(AclOperation.DESCRIBE, ResourceType.GROUP, "instead, for each; the others are left out"),
)
APIS = (Api(ApiKey.LIST_GROUPS, 0, 5, handle, needs=NEEDS),)
