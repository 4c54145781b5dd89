"""DescribeUserScramCredentials, version 0.

Behaviour: as Kafka's ``ScramImage``.  The mechanisms and iterations of the users that are named, or of all; never
salts or keys.  A user that is named twice gets DUPLICATE_RESOURCE, one without a credential RESOURCE_NOT_FOUND.  All is
read from the proxy's view.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeUserScramCredentialsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.scopes import ProxyScopes

_Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> DescribeUserScramCredentialsResponse:
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.DESCRIBE):
        refused = not_authorized(ResourceType.CLUSTER)
        return DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=refused.code, error_message=refused.message, results=[]
        )
    view = scopes.process.scram_users
    wanted = Counter([each.name for each in message.users]) if message.users else dict.fromkeys(view.users, 1)

    def describe(user: str) -> Any:
        if wanted[user] > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            return _result(user, ErrorCode.DUPLICATE_RESOURCE, text)
        credentials = view.of_user(user)
        if not credentials:
            text = f"Attempt to describe a user credential that does not exist: {user}"
            return _result(user, ErrorCode.RESOURCE_NOT_FOUND, text)
        infos = [
            _Result.CredentialInfo(mechanism=mechanism.type, iterations=credential.iterations)
            for mechanism, credential in credentials.items()
        ]
        return _Result(user=user, error_code=ErrorCode.NONE, error_message=None, credential_infos=infos)

    results = await map_in_turns(describe, wanted)
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, results=results
    )


def _result(user: str, code: ErrorCode, text: str) -> Any:
    return _Result(user=user, error_code=code, error_message=text, credential_infos=[])


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, handle, needs=NEEDS),)
