"""Whose configs a request means: a topic, a node, or the cluster's defaults for nodes."""

from __future__ import annotations

from enum import IntEnum

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import NODE_DIGITS_MAX


class ResourceType(IntEnum):
    """``ConfigResource.Type``; Kafka has more: client metrics (16), groups (32)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


def parse_type(number: int) -> ResourceType:
    """INVALID_REQUEST for those that are not served here."""
    try:
        return ResourceType(number)
    except ValueError:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"Unsupported resource type {number}: topics (2), brokers (4) and loggers (8) have configs here",
        ) from None


def parse_node_id(name: str) -> int:
    """Return the number that `name` is.  Raises RequestError INVALID_REQUEST as Kafka does."""
    if not (name.isascii() and name.isdecimal() and len(name) <= NODE_DIGITS_MAX):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return int(name)


def parse_node(name: str, own: int) -> int | None:
    """The node's id, None for the cluster's defaults.  INVALID_REQUEST for any but this node, as in Kafka."""
    if not name:
        return None
    if parse_node_id(name) != own:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own} or empty string, but received {name}"
        )
    return own
