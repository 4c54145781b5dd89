"""DescribeGroups 0-6: state, protocol and members of groups.

* 3: authorized operations: all, there are no ACLs.  * 4: instance ids.
* 6: a group that is not there is GROUP_ID_NOT_FOUND (KIP-1043); before, its state is Dead without an error.

A group that is named twice is described once; one that a response has no room for (16 MB) is
COORDINATOR_LOAD_IN_PROGRESS.
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
