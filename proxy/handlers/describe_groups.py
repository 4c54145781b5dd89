"""DescribeGroups, versions 0 to 6: state, protocol and members of groups.

Behaviour: a group that is named twice is described once; a group without room in the response (16 MB) gets
COORDINATOR_LOAD_IN_PROGRESS.

Version notes: 3 authorized operations; 4 instance ids; 6 a group that does not exist is
GROUP_ID_NOT_FOUND (KIP-1043), before 6 its state is Dead without an error.
"""

from __future__ import annotations

from bmq.coordinator.routing import DESCRIBE
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._group_rights import ask_about_allowed
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: DescribeGroupsRequest) -> DescribeGroupsResponse:
    rights = scopes.caller.rights(request)
    response: DescribeGroupsResponse = await ask_about_allowed(
        scopes, request, message, DESCRIBE, AclOperation.DESCRIBE
    )
    if rights.is_checked and request.api_version >= 3 and message.include_authorized_operations:
        turns = Turns()
        for group in response.groups:
            if turns.is_over():
                await next_turn()
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = rights.operations(ResourceType.GROUP, group.group_id)
    return response


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.GROUP, "each"),)
APIS = (Api(ApiKey.DESCRIBE_GROUPS, 0, 6, handle, needs=NEEDS),)
