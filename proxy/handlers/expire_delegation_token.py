"""ExpireDelegationToken, versions 1 and 2.

Behaviour: as Kafka's: by the token's owner and its renewers; a negative period removes the token.  Clients that have
authenticated with it stay until the time at which it would have expired, since their sessions end then.

Version notes: the versions differ only in encoding.
"""

from __future__ import annotations

from typing import Any

from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ExpireDelegationTokenResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import NOTHING_NEEDED
from bmq.proxy.handlers._delegation_tokens import changed_expiry
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    period_ms = message.expiry_time_period_ms
    code, expires_ms = await changed_expiry(
        scopes,
        request,
        lambda tokens, principal: tokens.expire(principal, message.hmac, period_ms),
    )
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms, throttle_time_ms=0)


APIS = (Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, handle, needs=NOTHING_NEEDED),)
