"""AlterUserScramCredentials, version 0.

Behaviour: as Kafka's ``ScramControlManager``.  Each user may be named once, to set or to delete the credential of one
mechanism.  A second change of a user is DUPLICATE_RESOURCE, unless the first change is refused for itself.  Iterations
are between 4096 and 16384.  The client has salted the password, and what is stored is computed from that.  The proxy
writes to the store itself, and answers when its view shows it.  The request has no time-out: ``ALTER_MS`` bounds it.

Departures: Kafka writes the users of a request together, here each is written by itself.  An empty salt or password is
refused (Kafka: an empty password is an unknown error), and so is a large one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.scram import BY_TYPE, ITERATIONS_LEAST, ITERATIONS_MOST, credential_of
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AlterUserScramCredentialsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.meta.security.scram_credentials import SALT_BYTES_MAX, check_new_user, check_user
from bmq.proxy.handlers._parallel import each
from bmq.proxy.scopes import ProxyScopes

ALTER_MS = 30_000
"""Time-out of a request: Kafka's request.timeout.ms, also the clients' default."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> AlterUserScramCredentialsResponse:
    changes = [*message.deletions, *message.upsertions]
    counts = Counter(change.name for change in changes)
    deletions = {id(change) for change in message.deletions}

    is_allowed = scopes.caller.rights(request).allow_on_cluster(AclOperation.ALTER)

    async def alter(change: Any) -> None:
        if not is_allowed:
            raise not_authorized(ResourceType.CLUSTER)
        check_user(change.name)
        mechanism = BY_TYPE.get(change.mechanism)
        if mechanism is None:
            raise RequestError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        is_deletion, is_twice = id(change) in deletions, counts[change.name] > 1
        if not is_deletion:
            _check_upsertion(change)
        elif is_twice and scopes.process.scram_users.find(mechanism, change.name) is None:
            text = "Attempt to delete a user credential that does not exist"
            raise RequestError(ErrorCode.RESOURCE_NOT_FOUND, text)
        if is_twice:
            text = "A user credential cannot be altered twice in the same request"
            raise RequestError(ErrorCode.DUPLICATE_RESOURCE, text)
        if is_deletion:
            await scopes.process.scram_users.remove(change.name, mechanism)
        else:
            credential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
            await scopes.process.scram_users.put(change.name, mechanism, credential)

    by_user: dict[str, Any] = {}
    for change in changes:  # as Kafka takes them: deletions first
        by_user.setdefault(change.name, change)
    firsts = list(by_user.values())
    outcomes = await each(firsts, alter, ALTER_MS)
    results = [
        AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
            user=change.name,
            error_code=outcome.code if outcome else ErrorCode.NONE,
            error_message=outcome.message if outcome else None,
        )
        for change, outcome in zip(firsts, outcomes, strict=True)
    ]
    return AlterUserScramCredentialsResponse(throttle_time_ms=0, results=results)


def _check_upsertion(change: Any) -> None:
    """Raise RequestError if the credential may not be set."""
    check_new_user(change.name)
    if change.iterations < ITERATIONS_LEAST:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MOST:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not 0 < len(change.salt) <= SALT_BYTES_MAX or not 0 < len(change.salted_password) <= SALT_BYTES_MAX:
        text = f"Salt and salted password must have between 1 and {SALT_BYTES_MAX} bytes"
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, handle, needs=NEEDS),)
