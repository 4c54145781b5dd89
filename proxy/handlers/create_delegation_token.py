"""CreateDelegationToken, versions 1 to 3.

Behaviour: as Kafka's.  A token of another owner needs CreateTokens on that user (KIP-373).  The response comes when
this proxy accepts the token; others do within a moment.

Version notes: 3 has the owner and the requester; before that the owner is the client.
"""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.principal import Principal
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import CreateDelegationTokenResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.handlers._delegation_tokens import NO_TIME, check_session, checked, principals, tokens_of
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    requester = owner = request.client.session.principal
    if message.owner_principal_name:
        owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
    response = CreateDelegationTokenResponse(
        error_code=ErrorCode.NONE, principal_type=owner.type, principal_name=owner.name,
        token_requester_principal_type=requester.type, token_requester_principal_name=requester.name,
        issue_timestamp_ms=NO_TIME, expiry_timestamp_ms=NO_TIME, max_timestamp_ms=NO_TIME, token_id="", hmac=b"",
        throttle_time_ms=0,
    )  # fmt: skip
    try:
        check_session(request)
        if owner != requester:
            rights = scopes.caller.rights(request)
            if not rights.allow(AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)):
                raise RequestError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "not for this owner")
        renewers = principals(message.renewers)
        tokens = tokens_of(scopes)
        token = await tokens.create(requester, checked(owner), renewers, message.max_lifetime_ms)
    except RequestError as error:
        response.error_code = error.code
        return response
    response.issue_timestamp_ms = token.issued_ms
    response.expiry_timestamp_ms = token.expires_ms
    response.max_timestamp_ms = token.max_ms
    response.token_id = token.id
    response.hmac = tokens.hmac_of(token.id)
    return response


NEEDS = (Need(AclOperation.CREATE_TOKENS, ResourceType.USER, "for a token of another owner"),)
APIS = (Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, handle, needs=NEEDS),)
