"""Metadata, versions 0 to 13.

Behaviour: the response comes from the views of topics and proxies, out of encoded bytes (``proxy.metadata_cache``).  A
request goes to another process only to create a topic.  A topic that does not exist is created if server and client
allow it, and is in the response at once; Kafka's is UNKNOWN_TOPIC_OR_PARTITION until its brokers have the topic.  If it
cannot be created now, LEADER_NOT_AVAILABLE makes the client ask again.

Version notes: in 0 an empty list means all topics; later null does. 4 may forbid creation. 8 to 10 may ask for the
cluster's operations. 10 and 11 have a field for topic ids, but a request that uses it is INVALID_REQUEST, as in Kafka.
From 12 on topics may be requested by id. 13 has an error for the whole response, which is never set.

Rights: a topic that the client may not describe is left out of all topics; asked for, it has an error, and it is not
said whether it exists.  To create one, the client may describe it, and create it or any topic.

Not implemented: leader epochs, which are always -1 (docs/design/decisions.md).  Every response has all proxies; a
partition's replicas are one proxy a zone.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterable, Mapping
from functools import partial
from typing import Any

from bmq.core.aio.steps import batched
from bmq.core.aio.turns import Turns, map_in_turns, next_turn, run_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request, Response
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.meta.catalog import INTERNAL_TOPICS
from bmq.meta.topic_rules import name_error
from bmq.proxy.audit.audited_apis import write_created
from bmq.proxy.handlers._mutations import NEVER, count_mutations
from bmq.proxy.handlers._parallel import each
from bmq.proxy.metadata_cache import COST_OF_TOPIC, COST_PER_STEP, Operations, encode_error
from bmq.proxy.scopes import ProxyScopes

CREATE_MS = 5_000
"""Time that a client waits for topics to be created: under any request time-out, over the time of an etcd election."""
NO_ID = uuid.UUID(int=0)
"""Topic id that stands for none on the wire; a decoded message has None in its place."""

ENCODED_A_TURN = 100
"""Refused topics that are encoded in a turn of the loop; one takes 60 us."""

PARTITION_BYTES = 50
"""Estimate of the bytes of a partition with three replicas in the response, or of a topic's name and id."""

Errors = Mapping[str, ErrorCode]


def handle(scopes: ProxyScopes, request: Request, message: Any) -> Response | Awaitable[Response]:
    rights = scopes.caller.rights(request)
    missing = _to_create(scopes, request.api_version, message)
    if missing:
        return _create_and_answer(scopes, request, message, rights, missing)
    if _is_all(request.api_version, message):
        return _answer_all(scopes, request, message, rights)
    return _respond(scopes, request, message, rights, {})


async def _create_and_answer(
    scopes: ProxyScopes, request: Request, message: Any, rights: Rights, missing: list[str]
) -> Response:
    failed: dict[str, ErrorCode] = {}
    if rights.is_checked:
        missing = [name for name in missing if rights.allow_on_topic(AclOperation.DESCRIBE, name, is_required=False)]
        if not rights.allow_on_cluster(AclOperation.CREATE, is_required=False):
            refused = [name for name in missing if not rights.allow_on_topic(AclOperation.CREATE, name)]
            failed = dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            missing = [name for name in missing if name not in failed]
    if missing:
        count_mutations(request, len(missing) * scopes.view.config.num_partitions, strict_since=NEVER)
    principal = str(request.client.session.principal)
    results = await each(missing, partial(scopes.process.admin.ensure_topic, principal=principal), CREATE_MS)
    if scopes.caller.audit.is_on:
        made = [name for name, result in zip(missing, results, strict=True) if not _is_error(result)]
        write_created(scopes, request, made)
    failed |= {name: _told(result) for name, result in zip(missing, results, strict=True) if _is_error(result)}
    return await _respond(scopes, request, message, rights, failed)


def _is_error(result: object) -> bool:
    return isinstance(result, RequestError)


def _told(result: object) -> ErrorCode:
    """Return the error of a topic that could not be created: LEADER_NOT_AVAILABLE if the client may ask again."""
    assert isinstance(result, RequestError)
    return ErrorCode.LEADER_NOT_AVAILABLE if result.code.is_retriable else result.code


def _is_all(version: int, message: Any) -> bool:
    return message.topics is None or (version == 0 and not message.topics)


def _to_create(scopes: ProxyScopes, version: int, message: Any) -> list[str]:
    """Return the names of topics that do not exist, and may and can be created."""
    if _is_all(version, message) or not scopes.view.config.auto_create_topics_enable:
        return []
    if not message.allow_auto_topic_creation or _is_invalid(version, message.topics):
        return []
    known = scopes.process.catalog.topics
    names = dict.fromkeys(topic.name for topic in message.topics if version < 10 or topic.topic_id is None)
    return [name for name in names if name is not None and name not in known and name_error(name) is None]


def _is_invalid(version: int, topics: Iterable[Any]) -> bool:
    """Return whether the request has an id or lacks a name, in a version before 12: Kafka refuses all of it."""
    return 10 <= version < 12 and any(topic.name is None or topic.topic_id is not None for topic in topics)


async def _respond(scopes: ProxyScopes, request: Request, message: Any, rights: Rights, failed: Errors) -> Response:
    topics = await _elements(scopes, request.api_version, message, rights, failed)
    return _around(scopes, request, message, rights, len(topics), topics)


def _answer_all(scopes: ProxyScopes, request: Request, message: Any, rights: Rights) -> Response | Awaitable[Response]:
    """Return the response with all topics, or a coroutine of it if some must be encoded first."""
    if rights.is_checked:
        return _answer_allowed(scopes, request, message, rights)
    operations = rights.operations(ResourceType.TOPIC, "") if message.include_topic_authorized_operations else None
    views = (scopes.process.catalog, scopes.view.proxies)
    found = scopes.view.metadata.all_topics(request.api_version, operations, *views)
    if found is not None:
        count, joined = found
        return _around(scopes, request, message, rights, count, [joined])

    async def encode() -> Response:
        count, joined = await scopes.view.metadata.encode_all(request.api_version, operations, *views)
        return _around(scopes, request, message, rights, count, [joined])

    return encode()


async def _answer_allowed(scopes: ProxyScopes, request: Request, message: Any, rights: Rights) -> Response:
    """Return the response with all topics that the client may describe."""
    turns = Turns(COST_PER_STEP)
    elements: list[bytes] = []
    for topic in list(scopes.process.catalog.topics.values()):
        if turns.is_over(COST_OF_TOPIC):
            await next_turn()
        if rights.allow_on_topic(AclOperation.DESCRIBE, topic.name, is_required=False):
            operations = _operations(message, rights, topic.name)
            steps = scopes.view.metadata.topic(topic, request.api_version, operations, scopes.view.proxies)
            elements.append(await run_in_turns(steps))
    return _around(scopes, request, message, rights, len(elements), elements)


def _operations(message: Any, rights: Rights, name: str) -> Operations:
    return rights.operations(ResourceType.TOPIC, name) if message.include_topic_authorized_operations else None


def _around(
    scopes: ProxyScopes, request: Request, message: Any, rights: Rights, count: int, topics: list[bytes]
) -> Response:
    cluster = rights.cluster_operations() if message.include_cluster_authorized_operations else None
    return scopes.view.metadata.response(
        request.api_version, request.correlation_id, count, topics, scopes.process.catalog, scopes.view.proxies, cluster
    )


async def _elements(scopes: ProxyScopes, version: int, message: Any, rights: Rights, failed: Errors) -> list[bytes]:
    """Return the encoded elements of the topics that the request names, without repetition."""
    named = await map_in_turns(
        lambda topic: (topic.name, topic.topic_id if version >= 10 else None), message.topics, 10 * ENCODED_A_TURN
    )
    asked: dict[tuple[str | None, uuid.UUID | None], None] = {}
    for part in batched(named, 10 * ENCODED_A_TURN):
        if asked:
            await next_turn()
        asked.update(dict.fromkeys(part))
    if _is_invalid(version, message.topics):
        return await map_in_turns(lambda one: _invalid(scopes, version, one[0] or ""), asked, ENCODED_A_TURN)
    turns = Turns(COST_PER_STEP)
    elements: list[bytes] = []
    for name, topic_id in asked:
        catalog = scopes.process.catalog
        topic = catalog.by_id(topic_id) if topic_id is not None else catalog.topics.get(name or "")
        if turns.is_over(COST_OF_TOPIC + (topic.partitions % COST_PER_STEP if topic is not None else 0)):
            await next_turn()
        elements.append(await _element(scopes, version, message, rights, failed, name, topic_id))
    return elements


async def _element(
    scopes: ProxyScopes,
    version: int,
    message: Any,
    rights: Rights,
    failed: Errors,
    name: str | None,
    topic_id: uuid.UUID | None,
) -> bytes:
    catalog = scopes.process.catalog
    topic = catalog.by_id(topic_id) if topic_id is not None else catalog.topics.get(name or "")
    known = name if topic is None else topic.name
    if known is not None and not rights.allow_on_topic(AclOperation.DESCRIBE, known):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic_id is not None:
            return _refused(scopes, version, error, None, topic_id, is_internal=False)
        return _refused(scopes, version, error, known, NO_ID, is_internal=False)
    if topic is not None:
        operations = _operations(message, rights, topic.name)
        return await run_in_turns(scopes.view.metadata.topic(topic, version, operations, scopes.view.proxies))
    if topic_id is not None:
        return _refused(scopes, version, ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if name is None:
        return _invalid(scopes, version, "")
    error = failed.get(name) or name_error(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    operations = None if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED else _operations(message, rights, name)
    return _refused(scopes, version, error, name, NO_ID, operations=operations)


def _invalid(scopes: ProxyScopes, version: int, name: str) -> bytes:
    return _refused(scopes, version, ErrorCode.INVALID_REQUEST, name, NO_ID, is_internal=False)


def _refused(
    scopes: ProxyScopes,
    version: int,
    error: ErrorCode,
    name: str | None,
    topic_id: uuid.UUID,
    *,
    is_internal: bool | None = None,
    operations: Operations = None,
) -> bytes:
    """Return the encoded element of a topic with an error, and count the error."""
    scopes.caller.metrics.api(ApiKey.METADATA).failed(error)
    if is_internal is None:
        is_internal = name in INTERNAL_TOPICS
    return encode_error(version, error, name, topic_id, is_internal=is_internal, operations=operations)


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    topics = scopes.process.catalog.topics
    if _is_all(message.API_VERSION, message):
        return scopes.view.metadata.all_bytes + PARTITION_BYTES * len(topics)
    if message.API_VERSION >= 10:
        # By the number of the id: a UUID's own hash is computed in Python, for each of fifty thousand topics here.
        once = {(topic.name, topic.topic_id and topic.topic_id.int): topic.topic_id for topic in message.topics}
    else:
        once = {(topic.name, None): None for topic in message.topics}
    known = (
        topics.get(name or "") if topic_id is None else scopes.process.catalog.by_id(topic_id)
        for (name, _), topic_id in once.items()
    )
    return PARTITION_BYTES * sum(1 + topic.partitions for topic in known if topic is not None)


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.TOPIC, "each; of all topics the others are left out"),
    Need(AclOperation.CREATE, ResourceType.CLUSTER, "to create topics"),
    Need(AclOperation.CREATE, ResourceType.TOPIC, "to create it, instead"),
    Need(AclOperation.DESCRIBE, ResourceType.CLUSTER, "for the cluster's operations"),
)
APIS = (Api(ApiKey.METADATA, 0, 13, handle, response_bytes=_response_bytes, needs=NEEDS),)
