"""DescribeConfigs, versions 1 to 4.

Behaviour: topics and brokers are described from this process's view, and its own loggers (KIP-412), without a request
to another process.  A broker describes only its own configs, as in Kafka; clients send each resource to its node.  An
empty broker name means the cluster's dynamic defaults.  A resource that is named twice with the same keys is described
once.

Version notes: 1 adds sources and synonyms (Kafka 4 does not serve 0), 3 types and documentation.

Not implemented: client metrics and groups as resources (INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request, Response
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_element, encode_response_of
from bmq.core.wire.messages import DescribeConfigsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.meta import broker_configs, topic_configs
from bmq.meta.config_values import Described
from bmq.meta.topic_rules import check_name
from bmq.proxy.handlers import _logger_configs as logger_configs
from bmq.proxy.handlers._config_resources import ConfigResourceType, check_rights, parse_node, parse_type
from bmq.proxy.scopes import ProxyScopes

Result = DescribeConfigsResponse.DescribeConfigsResult
Config = Result.DescribeConfigsResourceResult
DESCRIBED_A_TURN = 5
"""Resources that are described and encoded in a turn of the loop, at a millisecond each."""
RESOURCE_BYTES = 15 << 10
"""Estimate of one resource's bytes in the response."""
RESPONSE_BYTES_MAX = 256 << 20
"""Bytes after which no further resource is described: 10,000 topics with synonyms and documentation take 150 MB."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Response:
    """Describe each resource once, and encode it by itself: there may be 10,000 topics with some forty configs each."""
    rights = scopes.caller.rights(request)
    key, version = ApiKey.DESCRIBE_CONFIGS, request.api_version
    once, turns = {}, Turns()
    for each in message.resources:
        if turns.is_over():
            await next_turn()
        once[_identity(each)] = each
    empty = DescribeConfigsResponse(throttle_time_ms=0, results=[])
    size = 0

    def describe(resource: Any) -> bytes:
        nonlocal size
        result = _describe(scopes, rights, resource, message) if size < RESPONSE_BYTES_MAX else _too_much(resource)
        if result.error_code:
            scopes.caller.metrics.api(key).failed(result.error_code)
        single = DescribeConfigsResponse(throttle_time_ms=0, results=[result])
        element = encode_element(key, version, empty, single)
        size += len(element)
        return element

    elements = await map_in_turns(describe, once.values(), DESCRIBED_A_TURN)
    return Response(encode_response_of(key, version, request.correlation_id, empty, elements))


def _identity(resource: Any) -> tuple[int, str, tuple[str, ...] | None]:
    keys = resource.configuration_keys
    return resource.resource_type, resource.resource_name, None if keys is None else tuple(keys)


def _too_much(resource: Any) -> Any:
    text = f"The response has {RESPONSE_BYTES_MAX} bytes already: ask for fewer resources at a time."
    return _result(resource, ErrorCode.INVALID_REQUEST, text)


def _describe(scopes: ProxyScopes, rights: Rights, resource: Any, message: Any) -> Any:
    code, text, configs = ErrorCode.NONE, None, []
    try:
        check_rights(rights, AclOperation.DESCRIBE_CONFIGS, resource)
        wanted = set(resource.configuration_keys or ())
        if parse_type(resource.resource_type) is ConfigResourceType.BROKER_LOGGER:
            return _result(resource, configs=_loggers(scopes, resource, wanted))
        configs = [
            _config(described, message.include_synonyms, message.include_documentation)
            for described in _configs_of(scopes, resource)
            if not wanted or described.key.name in wanted
        ]
    except RequestError as error:
        code, text = error.code, error.message
    return _result(resource, code, text, configs)


def _result(resource: Any, code: ErrorCode = ErrorCode.NONE, text: str | None = None, configs: Any = ()) -> Any:
    return Result(
        error_code=code,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=list(configs),
    )


def _loggers(scopes: ProxyScopes, resource: Any, wanted: Collection[str]) -> list[Any]:
    parse_node(resource.resource_name, scopes.view.config.node_id, has_defaults=False)
    return [
        Config(
            name=name,
            value=level,
            read_only=False,
            config_source=logger_configs.SOURCE,
            is_sensitive=False,
            synonyms=[],
        )
        for name, level in logger_configs.describe(scopes.process.log_levels)
        if not wanted or name in wanted
    ]


def _configs_of(scopes: ProxyScopes, resource: Any) -> list[Described]:
    config, catalog = scopes.view.config, scopes.process.catalog
    defaults, own = catalog.broker_configs(None), catalog.broker_configs(config.node_id)
    name = resource.resource_name
    if parse_type(resource.resource_type) is ConfigResourceType.BROKER:
        if parse_node(name, config.node_id) is None:
            return broker_configs.describe_defaults(defaults)
        return broker_configs.describe(config, defaults, own)
    check_name(name)
    topic = catalog.topics.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    return topic_configs.describe(topic.configs, config, defaults, own, is_internal=topic.is_internal)


def _config(described: Described, with_synonyms: bool, with_documentation: bool) -> Any:
    """Return one config of the response; a secret without its value (Kafka's ``ConfigHelper.createResponseConfig``)."""
    key = described.key
    return Config(
        name=key.name,
        value=described.for_clients(described.value),
        read_only=described.is_read_only,
        config_source=described.source,
        is_sensitive=key.is_sensitive,
        synonyms=[
            Config.DescribeConfigsSynonym(
                name=synonym.name, value=described.for_clients(synonym.value), source=synonym.source
            )
            for synonym in (described.synonyms if with_synonyms else ())
        ],
        config_type=key.kind,
        documentation=key.doc if with_documentation else None,
    )


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return min(RESPONSE_BYTES_MAX, RESOURCE_BYTES * len(message.resources))


NEEDS = (
    Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "each"),
    Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "for brokers and loggers"),
)
APIS = (Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle, response_bytes=_response_bytes, needs=NEEDS),)
