"""The resource whose configs a request means: a topic, a node, the defaults for all nodes, or a node's loggers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.endpoint.authorization.authorizer import Rights, not_authorized
from bmq.meta import broker_configs, topic_configs
from bmq.meta.catalog import NODE_DIGITS_MAX

ACCESS_CONFIGS = topic_configs.ACCESS_CONFIGS | broker_configs.ACCESS_CONFIGS
"""The configs that say who may read files of topics: a topic's own, and the brokers' for topics without them."""


class ConfigResourceType(IntEnum):
    """Kafka's ``ConfigResource.Type``, without client metrics (16) and groups (32)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


def parse_type(number: int) -> ConfigResourceType:
    """Return the resource type.  Raises RequestError INVALID_REQUEST if it is not served here."""
    try:
        return ConfigResourceType(number)
    except ValueError:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"Unsupported resource type {number}: topics (2), brokers (4) and loggers (8) have configs here",
        ) from None


def check_rights(rights: Rights, operation: AclOperation, resource: Any) -> None:
    """Raise RequestError unless the client may do ``operation`` to the configs of a request's resource.

    Brokers and loggers are the cluster's.  Raises it too if the type of the resource is not served here.
    """
    if parse_type(resource.resource_type) is ConfigResourceType.TOPIC:
        if not rights.allow_on_topic(operation, resource.resource_name):
            raise not_authorized(ResourceType.TOPIC)
    elif not rights.allow_on_cluster(operation):
        raise not_authorized(ResourceType.CLUSTER)


def check_access_rights(rights: Rights, changed: Iterable[str]) -> None:
    """Raise RequestError CLUSTER_AUTHORIZATION_FAILED unless the client may change these configs.

    The owner, group and mode of a topic's files open its records to users of storage whom no ACL of Kafka stops.  So a
    change of them needs the right to alter the cluster, besides the right to alter the resource or create the topic.
    """
    access = sorted(ACCESS_CONFIGS.intersection(changed))
    if access and not rights.allow_on_cluster(AclOperation.ALTER):
        text = f"{', '.join(access)}: to set who may read topics' files, a client needs ALTER on the cluster"
        raise RequestError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)


def _parse_node_id(name: str) -> int:
    """Return the node id that ``name`` writes in decimal.  Raises RequestError INVALID_REQUEST, as Kafka does."""
    if not (name.isascii() and name.isdecimal() and len(name) <= NODE_DIGITS_MAX):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return int(name)


def parse_node(name: str, own: int, *, has_defaults: bool = True) -> int | None:
    """Return ``own``, or None for the cluster's defaults, which an empty ``name`` means if ``has_defaults``.

    Raises RequestError INVALID_REQUEST for any node but this one, as Kafka does (``ConfigHelper``, ``BrokerServer``).
    """
    if not name and has_defaults:
        return None
    if not name:
        raise RequestError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if _parse_node_id(name) != own:
        expected = f"{own} or empty string," if has_defaults else str(own)
        text = f"Unexpected broker id, expected {expected} but received {name}"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    return own
