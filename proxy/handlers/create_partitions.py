"""CreatePartitions, versions 0 to 3.

Behaviour: the controller extends each topic by itself.  Manual assignments are checked as in Kafka, and otherwise have
no effect.  The number of an internal topic's partitions is fixed (INVALID_PARTITIONS), as it determines the shard of
each group.

Version notes: 3 has the error THROTTLING_QUOTA_EXCEEDED; the others differ only in encoding.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import CreatePartitionsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.meta.catalog import Topic
from bmq.proxy.handlers._mutations import count_mutations
from bmq.proxy.handlers._parallel import broker_ids_of, check_count, check_partitions, each
from bmq.proxy.scopes import ProxyScopes


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    check_count(message.topics)
    rights = scopes.caller.rights(request)
    counts = Counter(topic.name for topic in message.topics)
    wanted = {topic.name: topic for topic in message.topics}

    counted = [sum(max(topic.count, 0) for topic in wanted.values())]

    async def add(name: str) -> Topic:
        check_partitions(counted)
        if counts[name] > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if not rights.allow_on_topic(AclOperation.ALTER, name):
            raise not_authorized(ResourceType.TOPIC)
        topic = scopes.process.catalog.topics.get(name)
        more = 0 if topic is None else wanted[name].count - topic.partitions
        if more > 0 and not message.validate_only:
            count_mutations(request, more, strict_since=3)
        given = wanted[name].assignments
        assignments = None if given is None else await broker_ids_of(given)
        return await scopes.process.admin.add_partitions(
            name, wanted[name].count, assignments, validate_only=message.validate_only
        )

    results = await each(list(wanted), add, message.timeout_ms)
    answers = await map_in_turns(lambda pair: _result(*pair), zip(wanted, results, strict=True))
    return CreatePartitionsResponse(throttle_time_ms=0, results=answers)


def _result(name: str, result: Topic | RequestError) -> Any:
    code, text = (result.code, result.message) if isinstance(result, RequestError) else (ErrorCode.NONE, None)
    return CreatePartitionsResponse.CreatePartitionsTopicResult(name=name, error_code=code, error_message=text)


NEEDS = (Need(AclOperation.ALTER, ResourceType.TOPIC, "each"),)
APIS = (Api(ApiKey.CREATE_PARTITIONS, 0, 3, handle, needs=NEEDS),)
