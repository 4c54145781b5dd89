"""SyncGroup, versions 0 to 5: the group's leader sends the assignment of a generation, the other members receive it.

Behaviour: the response is sent when the leader's assignment is durable.

Version notes: 3 static members (KIP-345); 5 protocol type and name must be given and right (KIP-559).
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import SYNC
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import SyncGroupRequest, SyncGroupResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import is_group_refused, refusal
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: SyncGroupRequest) -> SyncGroupResponse:
    if is_group_refused(scopes, request, message.group_id):
        return await refusal(SYNC, message)
    return await scopes.process.coordinator.sync_group(message, ClientInfo.of(request))


NEEDS = (Need(AclOperation.READ, ResourceType.GROUP),)
APIS = (Api(ApiKey.SYNC_GROUP, 0, 5, handle, needs=NEEDS, waits_for_clients=True),)
