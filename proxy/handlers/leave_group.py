"""LeaveGroup, versions 0 to 5: removes members at once, before their sessions time out.

Version notes: 0 to 2 one member, whose error is the response's; 3 several, and an admin may name a static member by its
instance id alone; 5 reason (KIP-800), which is not kept.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import LEAVE
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import LeaveGroupRequest, LeaveGroupResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import is_group_refused, refusal
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: LeaveGroupRequest) -> LeaveGroupResponse:
    if is_group_refused(scopes, request, message.group_id):
        return await refusal(LEAVE, message)
    return await scopes.process.coordinator.leave_group(message, ClientInfo.of(request))


NEEDS = (Need(AclOperation.READ, ResourceType.GROUP),)
APIS = (Api(ApiKey.LEAVE_GROUP, 0, 5, handle, needs=NEEDS),)
