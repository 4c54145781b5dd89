"""The fields of ACLs in requests and responses, and the errors that the three APIs have in common."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection
from bmq.core.security.acls import AclFilter, AclOperation, AclPermission, PatternType, ResourceType
from bmq.endpoint.authorization.authorizer import Rights, not_authorized
from bmq.meta.security.acls import AclStore
from bmq.proxy.scopes import ProxyScopes

E = TypeVar("E", ResourceType, PatternType, AclOperation, AclPermission)


def of_code(kind: type[E], code: int) -> E:
    """Return the member of an enum with Kafka's code; UNKNOWN for a code that only later versions know.

    Raises CloseConnection for the code of UNKNOWN itself, which no client may send (``CreateAclsRequest.validate``).
    """
    if code == kind.UNKNOWN:
        raise CloseConnection(f"an ACL request with {kind.__name__} 0, which stands for unknown")
    try:
        return kind(code)
    except ValueError:
        return kind.UNKNOWN


def filter_of(asked: Any) -> AclFilter:
    """Return the filter of a DescribeAcls, or one of a DeleteAcls.  Raises CloseConnection as ``of_code``."""
    return AclFilter(
        of_code(ResourceType, asked.resource_type_filter),
        of_code(PatternType, asked.pattern_type_filter),
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        of_code(AclOperation, asked.operation),
        of_code(AclPermission, asked.permission_type),
    )


def has_unknown(chosen: AclFilter) -> bool:
    """Return whether a filter has a code that this version does not know."""
    codes: tuple[IntEnum, ...] = (chosen.resource_type, chosen.pattern_type, chosen.operation, chosen.permission)
    return not all(codes)


def store_of(scopes: ProxyScopes, rights: Rights, operation: AclOperation) -> AclStore:
    """Return the cluster's ACLs for a client that may do ``operation`` to the cluster.

    Raises RequestError CLUSTER_AUTHORIZATION_FAILED, or SECURITY_DISABLED without an authorizer (``AclApis``).
    """
    if not rights.allow_on_cluster(operation):
        raise not_authorized(ResourceType.CLUSTER)
    if scopes.process.acls is None:
        raise RequestError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    return scopes.process.acls
