"""JoinGroup, versions 0 to 9: makes the client a member of a classic group, or begins the group's next generation.

Behaviour: the response is sent when the rebalance is done; the request stays parked until then.  If the client
disconnects, its member stays until its session ends, as in Kafka.  A new group counts for the client's principal: past
``max_groups`` of it the error is POLICY_VIOLATION.

Version notes:

======= ===================================================================================
version change
======= ===================================================================================
1       rebalance time-out; before, the session time-out serves for both
4       a member without an id gets one, with MEMBER_ID_REQUIRED (KIP-394)
5       static members (KIP-345)
7       the protocol type is in the response (KIP-559)
8       reason (KIP-800), which is not kept
9       a static leader that comes back may skip the assignment (KIP-814)
======= ===================================================================================

Not implemented: joining a group of the newer consumer protocol (there are none).
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.routing import JOIN
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import JoinGroupRequest, JoinGroupResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import is_group_refused, refusal, write_group_past_bound
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: JoinGroupRequest) -> JoinGroupResponse:
    if is_group_refused(scopes, request, message.group_id):
        return await refusal(JOIN, message)
    response = await scopes.process.coordinator.join_group(message, ClientInfo.of_creator(request))
    if response.error_code == ErrorCode.POLICY_VIOLATION:
        write_group_past_bound(scopes, request, message.group_id)
    return response


NEEDS = (Need(AclOperation.READ, ResourceType.GROUP),)
APIS = (Api(ApiKey.JOIN_GROUP, 0, 9, handle, needs=NEEDS, waits_for_clients=True),)
