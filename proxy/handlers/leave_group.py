"""LeaveGroup, versions 0 to 5: removes members at once, before their sessions time out.

Version notes: 0 to 2 one member, whose error is the response's; 3 several, and an admin may name a static member by its
instance id alone; 5 reason (KIP-800), which is not kept.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import LeaveGroupRequest, LeaveGroupResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: LeaveGroupRequest) -> LeaveGroupResponse:
    return await services.coordinator.leave_group(message, ClientInfo.of(request))


APIS = (Api(ApiKey.LEAVE_GROUP, 0, 5, handle),)
