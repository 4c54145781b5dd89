"""OffsetFetch, versions 1 to 10: the committed offsets of groups.

Behaviour: only durable offsets are returned.  An offset that was committed for a deleted topic does not count for a
later topic of the same name, which has none.  Groups, topics and partitions that are named twice are returned once; a
group without room in the response (16 MB) gets COORDINATOR_LOAD_IN_PROGRESS.

Version notes: 1 errors are those of partitions; 2 null topics mean all, and there is an error for the whole group; 5
leader epoch; 8 several groups; 9 member id and epoch of the newer consumer protocol, which are ignored; 10 topics by
id.

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
