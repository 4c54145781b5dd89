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


def _parse_node_id(name: str) -> int:
    """Return the number that `name` is.  Raises RequestError INVALID_REQUEST as Kafka does."""
    if not (name.isascii() and name.isdecimal() and len(name) <= NODE_DIGITS_MAX):
        raise RequestError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    return int(name)


def parse_node(name: str, own: int, *, has_defaults: bool = True) -> int | None:
    """Return the node's id, or None for the cluster's defaults, which an empty `name` means if `has_defaults`.

    Raises RequestError INVALID_REQUEST for any but this node, as Kafka does (``ConfigHelper``, ``BrokerServer``).
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
