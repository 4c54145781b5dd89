"""DescribeDelegationToken, versions 1 to 3.

Behaviour: as Kafka's.  It returns tokens of the named owners (null: of all) that the client owns, asked for, may renew,
or may describe.  The right is Describe on the token, or DescribeTokens on its owner (KIP-373).  The response has their
HMACs.

Version notes: 3 has the requester.
"""

from __future__ import annotations

from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.delegation_token import DelegationToken
from bmq.core.security.principal import Principal
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeDelegationTokenResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.meta.security.delegation_tokens import DelegationTokens
from bmq.proxy.handlers._delegation_tokens import check_session, tokens_of
from bmq.proxy.scopes import ProxyScopes

TOKEN_BYTES = 400
"""Bytes of a token in a response, with a few renewers."""
_Described = DescribeDelegationTokenResponse.DescribedDelegationToken
_Renewer = _Described.DescribedDelegationTokenRenewer


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    try:
        check_session(request)
        tokens = tokens_of(scopes)
    except RequestError as error:
        return DescribeDelegationTokenResponse(error_code=error.code, tokens=[], throttle_time_ms=0)
    client, rights = request.client.session.principal, scopes.caller.rights(request)
    owners = None
    if message.owners is not None:
        owners = {Principal(each.principal_type, each.principal_name) for each in message.owners}

    def described(token: DelegationToken) -> Any:
        if owners is not None and not any(map(token.concerns, owners)):
            return None
        return _described(token, tokens) if token.concerns(client) or _may_describe(rights, token) else None

    found = [] if owners == set() else await map_in_turns(described, list(tokens.tokens))
    return DescribeDelegationTokenResponse(
        error_code=ErrorCode.NONE, tokens=[each for each in found if each is not None], throttle_time_ms=0
    )


def _may_describe(rights: Rights, token: DelegationToken) -> bool:
    return rights.allow(
        AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id, is_required=False
    ) or rights.allow(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner), is_required=False)


def _described(token: DelegationToken, tokens: DelegationTokens) -> Any:
    return _Described(
        principal_type=token.owner.type, principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type, token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms, expiry_timestamp=token.expires_ms, max_timestamp=token.max_ms,
        token_id=token.id, hmac=tokens.hmac_of(token.id),
        renewers=[_Renewer(principal_type=each.type, principal_name=each.name) for each in token.renewers],
    )  # fmt: skip


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return 0 if scopes.process.tokens is None else TOKEN_BYTES * len(scopes.process.tokens.tokens)


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "for a token of others, or the next"),
    Need(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "the owner of a token of others"),
)
APIS = (Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, handle, response_bytes=_response_bytes, needs=NEEDS),)
