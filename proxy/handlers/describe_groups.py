"""DescribeGroups, versions 0 to 6: state, protocol and members of groups.

Behaviour: a group that is named twice is described once; a group without room in the response (16 MB) gets
COORDINATOR_LOAD_IN_PROGRESS.

Version notes: 3 authorized operations (all, as there are no ACLs); 4 instance ids; 6 a group that does not exist is
GROUP_ID_NOT_FOUND (KIP-1043), before 6 its state is Dead without an error.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: DescribeGroupsRequest) -> DescribeGroupsResponse:
    return await services.coordinator.describe_groups(message, ClientInfo.of(request))


APIS = (Api(ApiKey.DESCRIBE_GROUPS, 0, 6, handle),)
