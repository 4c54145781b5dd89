"""ListPartitionReassignments, version 0: always an empty list, since no data moves with an owner."""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ListPartitionReassignmentsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.scopes import ProxyScopes


def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    code, text = ErrorCode.NONE, None
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.DESCRIBE):
        error = not_authorized(ResourceType.CLUSTER)
        code, text = error.code, error.message
    return ListPartitionReassignmentsResponse(throttle_time_ms=0, error_code=code, error_message=text, topics=[])


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle, needs=NEEDS),)
