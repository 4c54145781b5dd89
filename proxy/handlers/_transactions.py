"""Checks of transactions' handlers: does the cluster have transactions yet, and may the client have them."""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.proxy.scopes import ProxyScopes

REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
"""Error of a client without the right.  Java's producer and librdkafka take it as final, and do not retry."""
NOT_YET = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Error of all clients while the cluster has no transactions.  They look for the coordinator again after a pause."""
FENCED_SINCE = 2
"""First version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn with PRODUCER_FENCED."""


def are_served(scopes: ProxyScopes) -> bool:
    """Return whether the cluster has transactions.  All handlers of transactions ask this.

    At level 0 of ``transaction.version`` a member may be of a version that cannot read transactional batches.  The
    controller's leader raises the level once all members can (``controller.feature_levels``).
    """
    return scopes.process.levels().of(TRANSACTION_VERSION) > 0


def refusal(scopes: ProxyScopes, request: Request, transactional_id: str) -> ErrorCode:
    """Return the error of a client that is not to have transactions with the id, or not yet; NONE if it is."""
    if not scopes.caller.rights(request).allow(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return REFUSED
    return ErrorCode.NONE if are_served(scopes) else NOT_YET


def code_for(code: int, version: int, fenced_since: int = FENCED_SINCE) -> int:
    """Return the error that a client of this version knows: INVALID_PRODUCER_EPOCH before PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def in_version(response: Any, version: int, fenced_since: int = FENCED_SINCE) -> Any:
    """Return the response with the error that a client of this version knows."""
    response.error_code = code_for(response.error_code, version, fenced_since)
    return response
