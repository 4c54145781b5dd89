"""OffsetCommit, versions 2 to 10: stores offsets of a group.

Behaviour: the response is sent when the offsets are durable.  As in Kafka 4 (``KafkaApis.handleOffsetCommitRequest``),
a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the other offsets are stored.

Version notes: 2 to 4 retention time, as an expiry of each offset; 6 leader epoch; 7 static members (KIP-345); 9 a group
that does not exist is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION; 10 topics by id.
"""

from __future__ import annotations

from bmq.coordinator.api import ClientInfo
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


async def handle(services: ProxyServices, request: Request, message: OffsetCommitRequest) -> OffsetCommitResponse:
    return await services.coordinator.offset_commit(message, ClientInfo.of(request))


APIS = (Api(ApiKey.OFFSET_COMMIT, 2, 10, handle),)
