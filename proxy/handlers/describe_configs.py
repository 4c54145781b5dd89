"""DescribeConfigs, versions 1 to 4.

Topics and brokers, from the view: no call is made.  A broker is asked for its own configs only, as in Kafka; clients
send each to its node.  An empty broker name means the cluster's dynamic defaults.

Version notes: 1 adds sources and synonyms (0 is gone from Kafka 4), 3 types and documentation.

Not implemented: loggers, client metrics and groups as resources (INVALID_REQUEST).
"""

from __future__ import annotations

from typing import Any

from bmq.core.call import Request
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.api import ApiKey
from bmq.core.wire.messages import DescribeConfigsResponse
from bmq.meta import broker_configs, topic_configs
from bmq.meta.config_values import Described
from bmq.meta.controller.topic_rules import check_name
from bmq.proxy.config_resources import ResourceType, parse_node, parse_type
from bmq.proxy.services import Api, Services

Result = DescribeConfigsResponse.DescribeConfigsResult
Config = Result.DescribeConfigsResourceResult


def handle(services: Services, request: Request, message: Any) -> Any:
    results = [_describe(services, resource, message) for resource in message.resources]
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(services: Services, resource: Any, message: Any) -> Any:
    code, text, configs = ErrorCode.NONE, None, []
    try:
        wanted = set(resource.configuration_keys or ())
        configs = [
            _config(described, message.include_synonyms, message.include_documentation)
            for described in _configs_of(services, resource)
            if not wanted or described.key.name in wanted
        ]
    except RequestError as error:
        code, text = error.code, error.message
    return Result(
        error_code=code,
        error_message=text,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _configs_of(services: Services, resource: Any) -> list[Described]:
    config, catalog = services.config, services.catalog
    defaults, own = catalog.broker_configs(None), catalog.broker_configs(config.node_id)
    name = resource.resource_name
    if parse_type(resource.resource_type) is ResourceType.BROKER:
        if parse_node(name, config.node_id) is None:
            return broker_configs.describe_defaults(defaults)
        return broker_configs.describe(config, defaults, own)
    check_name(name)
    topic = catalog.topics.get(name)
    if topic is None:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    return topic_configs.describe(topic.configs, config, defaults, own)


def _config(described: Described, with_synonyms: bool, with_documentation: bool) -> Any:
    """A secret is announced without its value, as in Kafka (``ConfigHelper.createResponseConfig``)."""
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


APIS = (Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle),)
