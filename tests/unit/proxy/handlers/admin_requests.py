"""Requests of the admin APIs, as clients send them."""

from __future__ import annotations

from typing import Any

from bmq.core.wire.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
)
from bmq.endpoint.api import Api
from bmq.proxy.handlers import alter_configs, create_partitions, create_topics, describe_configs

CREATE = create_topics.APIS[0]
GROW = create_partitions.APIS[0]
TOPIC = 2
BROKER = 4
DESCRIBE = describe_configs.APIS[0]
ALTER = alter_configs.APIS[0]
INCREMENT = alter_configs.APIS[1]


def versions(api: Api[Any]) -> range:
    return range(api.min_version, api.max_version + 1)


def codes(results: Any) -> list[tuple[str, int]]:
    return [(result.name, result.error_code) for result in results]


def new(name: str, partitions: int = 1, factor: int = 1, *, configs: Any = (), assignments: Any = ()) -> Any:
    Creatable = CreateTopicsRequest.CreatableTopic
    return Creatable(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            Creatable.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes)
            for index, nodes in assignments
        ],
        configs=[Creatable.CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )


def create(*topics: Any, timeout_ms: int = 100, validate_only: bool = False) -> Any:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)


def grow(*topics: tuple[str, int, Any], timeout_ms: int = 1000, validate_only: bool = False) -> Any:
    Topic = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(
        topics=[
            Topic(
                name=name,
                count=count,
                assignments=lists and [Topic.CreatePartitionsAssignment(broker_ids=nodes) for nodes in lists],
            )
            for name, count, lists in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def describe(*resources: tuple[int, str, Any], synonyms: bool = False, documentation: bool = False) -> Any:
    Resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            Resource(resource_type=kind, resource_name=name, configuration_keys=k) for kind, name, k in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def alter(request: Any, *resources: tuple[int, str, Any], validate_only: bool = False) -> Any:
    """Configs are ``(name, value)``, or ``(name, operation, value)``."""
    Resource = request.AlterConfigsResource
    fields = ("name", "value") if request is AlterConfigsRequest else ("name", "config_operation", "value")
    return request(
        resources=[
            Resource(
                resource_type=kind,
                resource_name=name,
                configs=[Resource.AlterableConfig(**dict(zip(fields, config, strict=True))) for config in configs],
            )
            for kind, name, configs in resources
        ],
        validate_only=validate_only,
    )


def altered(response: Any) -> list[tuple[int, str, int]]:
    return [(r.resource_type, r.resource_name, r.error_code) for r in response.responses]
