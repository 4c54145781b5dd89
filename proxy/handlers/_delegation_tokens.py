"""The part that the handlers of delegation tokens share (KIP-48): checks, and the change of an expiry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.principal import ANONYMOUS, USER_TYPE, Principal
from bmq.meta.security.delegation_tokens import DelegationTokens
from bmq.proxy.scopes import ProxyScopes

NO_TIME = -1
"""Times in a response with an error, as in Kafka."""


def check_session(request: Request) -> None:
    """Raise DELEGATION_TOKEN_REQUEST_NOT_ALLOWED unless the client has shown who it is, and not by a token.

    As Kafka's ``allowTokenRequests``: a token would otherwise live for ever, by tokens that were made with it.
    """
    session = request.client.session
    is_stranger = session.protocol == "SSL" and session.principal == ANONYMOUS
    if session.by_token or session.protocol == "PLAINTEXT" or is_stranger:
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "delegation tokens are for clients that authenticated"
        )


def tokens_of(scopes: ProxyScopes) -> DelegationTokens:
    """Return the tokens.  Raises DELEGATION_TOKEN_AUTH_DISABLED without delegation.token.secret.key."""
    if scopes.process.tokens is None:
        raise RequestError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set")
    return scopes.process.tokens


async def changed_expiry(
    scopes: ProxyScopes, request: Request, change: Callable[[DelegationTokens, Principal], Awaitable[int]]
) -> tuple[ErrorCode, int]:
    """Change a token for the client of ``request``.  Return the error, and the time at which the token then expires."""
    try:
        check_session(request)
        return ErrorCode.NONE, await change(tokens_of(scopes), request.client.session.principal)
    except RequestError as error:
        return error.code, NO_TIME


def principals(given: Iterable[Any]) -> list[Principal]:
    """Return a request's principals.  Raises INVALID_PRINCIPAL_TYPE if one is not a user."""
    return [checked(Principal(each.principal_type, each.principal_name)) for each in given]


def checked(principal: Principal) -> Principal:
    """Return ``principal``.  Raises INVALID_PRINCIPAL_TYPE if it is not a user, or has no name."""
    if principal.type != USER_TYPE or not principal.name:
        raise RequestError(ErrorCode.INVALID_PRINCIPAL_TYPE, f"{str(principal)[:200]!r} is not a user")
    return principal
