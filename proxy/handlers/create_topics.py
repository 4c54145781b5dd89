"""CreateTopics, versions 2 to 7.

Behaviour: the controller creates each topic by itself (``controller.topics.topics``).  The response is sent once this
proxy's view has the topics and, if time permits, their partitions accept records.  Manual assignments are checked as in
Kafka and give the number of partitions and replicas; the nodes that they name have no effect, as storage places
replicas.  A topic counts for the client's principal: past ``max_topics`` or ``max_partitions`` of it the error is
POLICY_VIOLATION, that of a ``CreateTopicPolicy`` in Kafka.

Version notes: before 4 clients must give partitions and a replication factor; -1 is accepted from them, too.  5 adds
the effective configs, 6 the error THROTTLING_QUOTA_EXCEEDED, 7 the topic's id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import CreateTopicsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.meta import topic_configs
from bmq.meta.catalog import INTERNAL_TOPICS, Topic
from bmq.proxy.handlers._config_resources import check_access_rights
from bmq.proxy.handlers._mutations import count_mutations
from bmq.proxy.handlers._parallel import broker_ids_of, check_count, check_partitions, each
from bmq.proxy.scopes import ProxyScopes

OPEN_S = 5.0
"""Time to wait for new topics to open; if it takes longer, something is wrong, and the client need not wait for it."""

CONFIGS_MAX = 1_000
"""Configs of one topic in a request: Kafka has some forty."""
RESULTS_A_TURN = 20
"""Topics whose configs are put into the response in a turn of the loop, at half a millisecond each."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    check_count(message.topics)
    rights = scopes.caller.rights(request)
    may_create_any = rights.allow_on_cluster(AclOperation.CREATE, is_required=False)
    began = asyncio.get_running_loop().time()
    counts = Counter(topic.name for topic in message.topics)
    once = [topic for topic in message.topics if counts[topic.name] == 1]

    counted = [sum(max(len(topic.assignments), topic.num_partitions, 1) for topic in once)]

    async def create(wanted: Any) -> Topic:
        if not may_create_any and not rights.allow_on_topic(AclOperation.CREATE, wanted.name):
            raise RequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
        check_access_rights(rights, (config.name for config in wanted.configs))
        check_partitions(counted)
        if not message.validate_only and wanted.name not in scopes.process.catalog.topics:
            count = len(wanted.assignments) or (
                scopes.view.config.num_partitions if wanted.num_partitions == -1 else wanted.num_partitions
            )
            count_mutations(request, count, strict_since=6)
        principal = str(request.client.session.principal)
        return await _create(scopes, wanted, message.validate_only, principal)

    results = await each(once, create, message.timeout_ms)
    made = [result for result in results if isinstance(result, Topic)]
    if not message.validate_only:
        await _opened(scopes, made, began + min(OPEN_S, message.timeout_ms / 1000))
    twice = RequestError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    pairs = [(wanted.name, result) for wanted, result in zip(once, results, strict=True)]
    pairs += [(name, twice) for name, count in counts.items() if count > 1]
    answers = await map_in_turns(lambda pair: _result(scopes, rights, *pair), pairs, RESULTS_A_TURN)
    return CreateTopicsResponse(throttle_time_ms=0, topics=answers)


async def _create(scopes: ProxyScopes, wanted: Any, validate_only: bool, principal: str) -> Topic:
    if len(wanted.configs) > CONFIGS_MAX:
        text = f"{len(wanted.configs)} configs of one topic, more than {CONFIGS_MAX}"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    nodes = await broker_ids_of(wanted.assignments)
    assignments = {each.partition_index: nodes[at] for at, each in enumerate(wanted.assignments)}
    if len(assignments) != len(wanted.assignments):
        raise RequestError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Found multiple manual partition assignments for a partition."
        )
    if len({config.name for config in wanted.configs}) != len(wanted.configs):
        raise RequestError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return await scopes.process.admin.create_topic(
        wanted.name,
        wanted.num_partitions,
        wanted.replication_factor,
        {config.name: config.value for config in wanted.configs},
        validate_only=validate_only,
        assignments=assignments or None,
        principal=principal,
    )


async def _opened(scopes: ProxyScopes, topics: Sequence[Topic], deadline: float) -> None:
    """Wait until the new partitions accept records, so that the first produce finds them open.

    They open at the same time, so waiting for one after another takes no longer.  ``deadline`` is on the loop's clock;
    partitions that are not open by then open later.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(RequestError, TimeoutError):
        async with asyncio.timeout_at(deadline):
            turns = Turns()
            for topic in topics:
                for partition in range(topic.partitions):
                    if turns.is_over():
                        await next_turn()
                    key = PartitionKey(topic.topic_id, partition)
                    if scopes.process.owners.get(key) is None:
                        await scopes.process.owners.wait(key, max(0.0, deadline - loop.time()))


def _result(scopes: ProxyScopes, rights: Rights, name: str, result: Topic | RequestError) -> Any:
    if isinstance(result, RequestError):
        return CreateTopicsResponse.CreatableTopicResult(
            name=name, error_code=result.code, error_message=result.message, configs=[]
        )
    if not rights.allow_on_topic(AclOperation.DESCRIBE_CONFIGS, name, is_required=False):  # KIP-525
        return CreateTopicsResponse.CreatableTopicResult(
            name=name,
            topic_id=result.topic_id,
            error_code=ErrorCode.NONE,
            error_message=None,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    catalog, node = scopes.process.catalog, scopes.view.config
    described = topic_configs.describe(
        result.configs,
        node,
        catalog.broker_configs(None),
        catalog.broker_configs(node.node_id),
        is_internal=name in INTERNAL_TOPICS,
    )
    configs = [
        CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
            name=each.key.name,
            value=each.for_clients(each.value),
            read_only=False,
            config_source=each.source,
            is_sensitive=each.key.is_sensitive,
        )
        for each in described
    ]
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=result.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=configs,
    )


NEEDS = (
    Need(AclOperation.CREATE, ResourceType.TOPIC, "each"),
    Need(AclOperation.CREATE, ResourceType.CLUSTER, "for all topics, instead"),
    Need(AclOperation.ALTER, ResourceType.CLUSTER, "besides, for storage.owner, storage.group, storage.mode"),
    Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "to see the configs of what was created"),
)
APIS = (Api(ApiKey.CREATE_TOPICS, 2, 7, handle, needs=NEEDS),)
