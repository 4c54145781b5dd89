"""OffsetCommit 2-10: store offsets of a group, answered when they are durable.

* 2-4: retention time, as an expiry of each offset.  * 6: leader epoch.  * 7: static members (KIP-345).
* 9: a group that is not there is GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION.  * 10: topics by id.

As in Kafka 4 (``KafkaApis.handleOffsetCommitRequest``) topic and partition must exist: others are answered
UNKNOWN_TOPIC_OR_PARTITION each, and the rest is stored.
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
