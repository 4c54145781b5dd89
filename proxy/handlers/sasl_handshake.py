"""SaslHandshake, versions 0 to 1, where authentication is over or not asked for.

Behaviour: ILLEGAL_SASL_STATE, as in Kafka.  On SASL listeners ``endpoint.authentication.gate`` handles the request
itself when it begins an authentication, or one that follows another (KIP-368).

Version notes: tokens follow 0 without, and 1 with Kafka's headers.
"""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import SaslHandshakeResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import NOTHING_NEEDED
from bmq.proxy.scopes import ProxyScopes


def handle(scopes: ProxyScopes, request: Request, message: Any) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


APIS = (Api(ApiKey.SASL_HANDSHAKE, 0, 1, handle, needs=NOTHING_NEEDED),)
