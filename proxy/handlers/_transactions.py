"""The transaction coordinator of handlers, with the switch of transactions, and rights on transactional ids."""

from __future__ import annotations

from typing import Any

from bmq.coordinator.api import ClusterTransactionCoordinator
from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.proxy.scopes import ProxyScopes

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""Error of a client without the right, and of all clients while the cluster has no transactions.

Java's producer and librdkafka take it as final, and do not retry.  No other code of this sort is about the id.
"""
FENCED_SINCE = 2
"""First version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn with PRODUCER_FENCED."""


def serving(scopes: ProxyScopes) -> ClusterTransactionCoordinator | None:
    """Return the transaction coordinator; None while the cluster has no transactions.

    All handlers have this switch.  Without ``ProxyServices.transactions`` the process has no way to a coordinator.  At
    level 0 of ``transaction.version`` a member may be of a version that cannot read transactional batches.
    """
    has_level = scopes.process.levels().of(TRANSACTION_VERSION) > 0
    return scopes.process.transactions if has_level else None


def may_write(scopes: ProxyScopes, request: Request, transactional_id: str) -> bool:
    """Return whether the client may have transactions with the id."""
    return scopes.caller.rights(request).allow(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)


def code_for(code: int, version: int, fenced_since: int = FENCED_SINCE) -> int:
    """Return the error that a client of this version knows: INVALID_PRODUCER_EPOCH before PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def in_version(response: Any, version: int, fenced_since: int = FENCED_SINCE) -> Any:
    """Return the response with the error that a client of this version knows."""
    response.error_code = code_for(response.error_code, version, fenced_since)
    return response
