"""ListPartitionReassignments, version 0: always an empty list, since no data moves with an owner."""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListPartitionReassignmentsResponse
from bmq.endpoint.api import Api
from bmq.proxy.services import ProxyServices


def handle(services: ProxyServices, request: Request, message: Any) -> Any:
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, topics=[]
    )


APIS = (Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle),)
