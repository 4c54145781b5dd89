"""DescribeAcls, versions 1 to 3: the ACLs that a filter chooses, by the patterns that they are for.

Behaviour: this process's view responds, without a request to another process.

Version notes: 2 flexible; 3 resources of type user.
"""

from __future__ import annotations

from typing import Any

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, PatternType, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeAclsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._acl_fields import filter_of, store_of
from bmq.proxy.scopes import ProxyScopes

Resource = DescribeAclsResponse.DescribeAclsResource
ACL_BYTES = 100
"""Estimate of the bytes of an ACL in the response."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    chosen = filter_of(message)
    try:
        found = await store_of(scopes, scopes.caller.rights(request), AclOperation.DESCRIBE).find(chosen)
    except RequestError as error:
        return DescribeAclsResponse(
            throttle_time_ms=0, error_code=error.code, error_message=error.message, resources=[]
        )
    resources: dict[tuple[ResourceType, PatternType, str], Any] = {}
    turns = Turns()
    for acl in found:
        if turns.is_over():
            await next_turn()
        resource = resources.get(acl[:3])
        if resource is None:
            resource = resources[acl[:3]] = Resource(
                resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type, acls=[]
            )
        resource.acls.append(
            Resource.AclDescription(
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
            )
        )
    return DescribeAclsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, resources=list(resources.values())
    )


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return ACL_BYTES * len(scopes.process.acls) if scopes.process.acls is not None else 0


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.DESCRIBE_ACLS, 1, 3, handle, response_bytes=_response_bytes, needs=NEEDS),)
