"""Heartbeat, versions 0 to 4: keeps a member's session alive; its error notifies the member of a rebalance.

Behaviour: while the group's shard loads, the response has no error, as in Kafka: sessions begin again once it is
loaded.

Version notes: 3 static members (KIP-345).
"""

from __future__ import annotations

from collections.abc import Awaitable

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import HEARTBEAT
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import HeartbeatRequest, HeartbeatResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import is_group_refused, refusal
from bmq.proxy.scopes import ProxyScopes


def handle(
    scopes: ProxyScopes, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    if is_group_refused(scopes, request, message.group_id):
        return refusal(HEARTBEAT, message)
    return scopes.process.coordinator.heartbeat(message, ClientInfo.of(request))


NEEDS = (Need(AclOperation.READ, ResourceType.GROUP),)
APIS = (Api(ApiKey.HEARTBEAT, 0, 4, handle, needs=NEEDS),)
