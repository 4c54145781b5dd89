"""OffsetFetch 1-10: the committed offsets of groups.  Only durable ones are shown.

* 1: errors stand at the partitions.  * 2: null topics ask for all.  * 5: leader epoch.  * 8: several groups.
* 9: member id and epoch, of the newer consumer protocol: not looked at.  * 10: topics by id.

An offset that was committed for a deleted topic is not that of a later topic of its name: it is told as none.  Groups,
topics and partitions that are named twice are answered once; a group that a response has no room for (16 MB) is
COORDINATOR_LOAD_IN_PROGRESS.

Not implemented: ``require_stable`` (7) has nothing to wait for while there are no transactions.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetFetchRequest, OffsetFetchResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: OffsetFetchRequest) -> OffsetFetchResponse:
    return await services.coordinator.offset_fetch(message, ClientInfo.of(request))


APIS = (Api(ApiKey.OFFSET_FETCH, 1, 10, handle),)
