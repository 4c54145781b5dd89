"""AlterConfigs, versions 0 to 2, and IncrementalAlterConfigs, 0 to 1.

Behaviour: the controller alters each resource by itself, all of its configs or none.  AlterConfigs names the whole new
set of configs, IncrementalAlterConfigs only changes.  The requests carry no time-out: ``ALTER_MS`` bounds them.  Levels
of this process's loggers are set at once and in this process, by IncrementalAlterConfigs only (KIP-412).

Version notes: the versions differ only in encoding.

Not implemented: client metrics and groups as resources (INVALID_REQUEST).  Of the brokers' configs only the topics'
defaults may be altered (``meta.broker_configs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AlterConfigsResponse, IncrementalAlterConfigsResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights
from bmq.meta.config_changes import Changes, ConfigChange, Operation
from bmq.meta.topic_rules import check_name
from bmq.proxy.handlers import _logger_configs as logger_configs
from bmq.proxy.handlers._config_resources import (
    ACCESS_CONFIGS,
    ConfigResourceType,
    check_access_rights,
    check_rights,
    parse_node,
    parse_type,
)
from bmq.proxy.handlers._parallel import each
from bmq.proxy.scopes import ProxyScopes

CONFIGS_MAX = 1_000
"""Configs of one resource in a request: Kafka has some forty for a topic, three hundred for a broker."""
ALTER_MS = 30_000
"""Time-out of a request: Kafka's request.timeout.ms, also the clients' default."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    return await _alter_all(scopes, scopes.caller.rights(request), message, _full_set, AlterConfigsResponse)


async def handle_incremental(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    return await _alter_all(
        scopes, scopes.caller.rights(request), message, _operations, IncrementalAlterConfigsResponse
    )


async def _alter_all(
    scopes: ProxyScopes, rights: Rights, message: Any, read: Callable[[Any], Changes], response: Any
) -> Any:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in message.resources)

    async def alter(resource: Any) -> None:
        if counts[(resource.resource_type, resource.resource_name)] > 1:
            raise RequestError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        check_rights(rights, AclOperation.ALTER_CONFIGS, resource)
        if len(resource.configs) > CONFIGS_MAX:
            text = f"{len(resource.configs)} configs of one resource, more than {CONFIGS_MAX}"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        if len({config.name for config in resource.configs}) != len(resource.configs):
            raise RequestError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        changes = read(resource.configs)
        check_access_rights(rights, _changed_access(scopes, resource, changes))
        await _alter(scopes, resource, changes, message.validate_only)

    results = await each(message.resources, alter, ALTER_MS)

    def result_of(pair: tuple[Any, RequestError | None]) -> Any:
        resource, result = pair
        return response.AlterConfigsResourceResponse(
            error_code=result.code if result else ErrorCode.NONE,
            error_message=result.message if result else None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    responses = await map_in_turns(result_of, zip(message.resources, results, strict=True))
    return response(throttle_time_ms=0, responses=responses)


async def _alter(scopes: ProxyScopes, resource: Any, changes: Changes, validate_only: bool) -> None:
    name, kind = resource.resource_name, parse_type(resource.resource_type)
    if kind is ConfigResourceType.BROKER_LOGGER:
        if isinstance(changes, Mapping):
            text = "AlterConfigs is deprecated and does not support the resource type BROKER_LOGGER"
            raise RequestError(ErrorCode.INVALID_REQUEST, text)
        parse_node(name, scopes.view.config.node_id, has_defaults=False)
        logger_configs.alter(scopes.process.log_levels, changes, validate_only=validate_only)
        return
    if kind is ConfigResourceType.BROKER:
        node = parse_node(name, scopes.view.config.node_id)
        await scopes.process.admin.alter_broker_configs(node, changes, validate_only=validate_only)
        return
    if not name:
        raise RequestError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_name(name)
    await scopes.process.admin.alter_topic_configs(name, changes, validate_only=validate_only)


def _changed_access(scopes: ProxyScopes, resource: Any, changes: Changes) -> Iterable[str]:
    """Return the names of ``ACCESS_CONFIGS`` that a request names, or in a whole new set alters or leaves out."""
    if not isinstance(changes, Mapping):
        return [change.name for change in changes]
    catalog, name = scopes.process.catalog, resource.resource_name
    before: Mapping[str, str] = {}
    if parse_type(resource.resource_type) is ConfigResourceType.BROKER:
        before = catalog.broker_configs(parse_node(name, scopes.view.config.node_id))
    elif (found := catalog.topics.get(name)) is not None:
        before = found.configs
    return [name for name in ACCESS_CONFIGS if changes.get(name) != before.get(name)]


def _full_set(configs: Any) -> dict[str, str]:
    empty = [config.name for config in configs if config.value is None]
    if empty:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Null value not supported for: {', '.join(empty)}")
    return {config.name: config.value for config in configs}


def _operations(configs: Any) -> list[ConfigChange]:
    known = {operation.value for operation in Operation}
    for config in configs:
        if config.config_operation not in known:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {config.config_operation}")
    return [ConfigChange(config.name, Operation(config.config_operation), config.value) for config in configs]


NEEDS = (
    Need(AclOperation.ALTER_CONFIGS, ResourceType.TOPIC, "each"),
    Need(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER, "for brokers and loggers"),
    Need(
        AclOperation.ALTER,
        ResourceType.CLUSTER,
        "besides, for storage.owner, storage.group, storage.mode and their defaults",
    ),
)
APIS = (
    Api(ApiKey.ALTER_CONFIGS, 0, 2, handle, needs=NEEDS),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, handle_incremental, needs=NEEDS),
)
