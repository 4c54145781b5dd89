"""AlterUserScramCredentials, version 0.

Behaviour: as Kafka's ``ScramControlManager``.  Each user may be named once, to set or to delete the credential of one
mechanism; others than that get DUPLICATE_RESOURCE.  Iterations are between 4096 and 16384.  The client has salted the
password, and what is stored is computed from that.  The proxy writes to the store itself, and answers when its view
shows it.  The request carries no time-out: ``ALTER_MS`` bounds it.

Departures: Kafka writes the users of a request together, here each is written by itself.  An empty salt or password is
refused (Kafka: an empty password is an unknown error), and so is a large one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.scram import BY_TYPE, ITERATIONS_LEAST, ITERATIONS_MOST, ScramMechanism, credential_of
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AlterUserScramCredentialsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.meta.security.scram_credentials import SALT_BYTES_MAX, check_new_user, check_user
from bmq.proxy.handlers._parallel import each
from bmq.proxy.services import ProxyServices

ALTER_MS = 30_000
"""Time-out of a request: Kafka's request.timeout.ms, also the clients' default."""


async def handle(services: ProxyServices, request: Request, message: Any) -> AlterUserScramCredentialsResponse:
    changes = [*message.deletions, *message.upsertions]
    counts = Counter(change.name for change in changes)
    deletions = {id(change) for change in message.deletions}

    is_allowed = services.rights(request).allow_on_cluster(AclOperation.ALTER)

    async def alter(change: Any) -> None:
        if not is_allowed:
            raise not_authorized(ResourceType.CLUSTER)
        if counts[change.name] > 1:
            text = "A user credential cannot be altered twice in the same request"
            raise RequestError(ErrorCode.DUPLICATE_RESOURCE, text)
        check_user(change.name)
        mechanism = BY_TYPE.get(change.mechanism)
        if mechanism is None:
            raise RequestError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if id(change) in deletions:
            await services.scram_users.remove(change.name, mechanism)
        else:
            await _upsert(services, change, mechanism)

    firsts = list({change.name: change for change in changes}.values())
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


async def _upsert(services: ProxyServices, change: Any, mechanism: ScramMechanism) -> None:
    check_new_user(change.name)
    if change.iterations < ITERATIONS_LEAST:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MOST:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not 0 < len(change.salt) <= SALT_BYTES_MAX or not 0 < len(change.salted_password) <= SALT_BYTES_MAX:
        text = f"Salt and salted password must have between 1 and {SALT_BYTES_MAX} bytes"
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    credential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
    await services.scram_users.put(change.name, mechanism, credential)


NEEDS = (Need(AclOperation.ALTER, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, handle, needs=NEEDS),)
