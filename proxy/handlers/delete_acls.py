"""DeleteAcls, versions 1 to 3: deletes the ACLs that each of several filters chooses.

Behaviour: this process deletes them from the metadata store, and responds once its own view shows it.  A filter that
chooses more than 10,000 ACLs is refused.

Version notes: 2 flexible; 3 resources of type user.
"""

from __future__ import annotations

from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import Acl, AclFilter, AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DeleteAclsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.security.acls import AclStore
from bmq.proxy.handlers._acl_fields import filter_of, has_unknown, store_of
from bmq.proxy.scopes import ProxyScopes

Result = DeleteAclsResponse.DeleteAclsFilterResult
FILTERS_MAX = 1_000
"""Filters of one request: each is compared with every ACL."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    filters = await map_in_turns(filter_of, message.filters)
    try:
        store = store_of(scopes, scopes.caller.rights(request), AclOperation.ALTER)
        if len(filters) > FILTERS_MAX:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"{len(filters)} filters, more than {FILTERS_MAX}")
    except RequestError as error:
        return DeleteAclsResponse(throttle_time_ms=0, filter_results=[_failed(error) for _ in filters])
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[await _delete(store, chosen) for chosen in filters])


async def _delete(store: AclStore, chosen: AclFilter) -> Any:
    if has_unknown(chosen):
        return _failed(RequestError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter or entryFilter."))
    try:
        deleted = await store.delete(chosen)
    except RequestError as error:
        return _failed(error)
    matching = await map_in_turns(_matching, deleted)
    return Result(error_code=ErrorCode.NONE, error_message=None, matching_acls=matching)


def _failed(error: RequestError) -> Any:
    return Result(error_code=error.code, error_message=error.message, matching_acls=[])


def _matching(acl: Acl) -> Any:
    return Result.DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.DELETE_ACLS, 1, 3, handle, needs=NEEDS),)
