"""RenewDelegationToken, versions 1 and 2.

Behaviour: as Kafka's: by the token's owner and its renewers, up to the token's longest life.

Version notes: the versions differ only in encoding.
"""

from __future__ import annotations

from typing import Any

from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import RenewDelegationTokenResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import NOTHING_NEEDED
from bmq.proxy.handlers._delegation_tokens import changed_expiry
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    code, expires_ms = await changed_expiry(
        scopes, request, lambda tokens, principal: tokens.renew(principal, message.hmac, message.renew_period_ms)
    )
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=expires_ms, throttle_time_ms=0)


APIS = (Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, handle, needs=NOTHING_NEEDED),)
