"""SaslAuthenticate, versions 0 to 2, where authentication is over or not asked for.

Behaviour: ILLEGAL_SASL_STATE, as in Kafka.  On SASL listeners ``endpoint.authentication.gate`` handles the requests of
an authentication itself.

Version notes: responses of 1 and later have the session's lifetime (KIP-368).
"""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import SaslAuthenticateResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import NOTHING_NEEDED
from bmq.proxy.scopes import ProxyScopes


def handle(scopes: ProxyScopes, request: Request, message: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
        session_lifetime_ms=0,
    )


APIS = (Api(ApiKey.SASL_AUTHENTICATE, 0, 2, handle, needs=NOTHING_NEEDED),)
