"""CreateAcls, versions 1 to 3.

Behaviour: this process writes the ACLs into the metadata store, and responds once its own view shows them; the other
proxies follow at once.  An ACL that exists already is no error.  A request with more than 10,000 ACLs is refused, and
so is one past 100,000 ACLs in the cluster.

Version notes: 2 flexible; 3 resources of type user.
"""

from __future__ import annotations

from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import CreateAclsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.security.acls import wrong_acl
from bmq.proxy.handlers._acl_fields import of_code, store_of
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    acls = await map_in_turns(_acl, message.creations)
    wrong = await map_in_turns(_wrong, acls)
    failed: RequestError | None = None
    try:
        store = store_of(scopes, scopes.caller.rights(request), AclOperation.ALTER)
    except RequestError as error:
        return _response([error] * len(acls))
    try:
        await store.create(acl for acl, why in zip(acls, wrong, strict=True) if not why)
    except RequestError as error:
        failed = error
    return _response([RequestError(ErrorCode.INVALID_REQUEST, why) if why else failed for why in wrong])


def _acl(asked: Any) -> Acl:
    return Acl(
        of_code(ResourceType, asked.resource_type),
        of_code(PatternType, asked.resource_pattern_type),
        asked.resource_name,
        asked.principal,
        asked.host,
        of_code(AclOperation, asked.operation),
        of_code(AclPermission, asked.permission_type),
    )


def _wrong(acl: Acl) -> str:
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    return wrong_acl(acl)


def _response(errors: list[RequestError | None] | list[RequestError]) -> Any:
    results = [
        CreateAclsResponse.AclCreationResult(
            error_code=error.code if error else ErrorCode.NONE, error_message=error.message if error else None
        )
        for error in errors
    ]
    return CreateAclsResponse(throttle_time_ms=0, results=results)


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.CREATE_ACLS, 1, 3, handle, needs=NEEDS),)
