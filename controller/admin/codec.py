"""Admin acts and their results as JSON, between ``RemoteAdmin`` and ``AdminService``.

The names of methods and arguments are ``TopicAdmin``'s; a service that does not know one says so (UNSUPPORTED_VERSION),
so that an older leader is no riddle.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from bmq.core.errors import FormatError
from bmq.meta.catalog import Topic
from bmq.meta.config_changes import Changes, ConfigChange, Operation

T = TypeVar("T")


def encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """FormatError when it is no JSON object."""
    try:
        raw = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"no JSON: {bytes(data[:80])!r}") from error
    if not isinstance(raw, dict):
        raise FormatError(f"no JSON object: {bytes(data[:80])!r}")
    return raw


def from_topic(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": dict(topic.configs),
        "revision": topic.revision,
    }


def to_topic(raw: Mapping[str, Any]) -> Topic:
    return Topic(
        name=raw["name"],
        topic_id=uuid.UUID(raw["id"]),
        partitions=raw["partitions"],
        replication_factor=raw["replication_factor"],
        configs=raw["configs"],
        revision=raw["revision"],
    )


def from_changes(changes: Changes) -> Any:
    """An object for all that shall be there, a list for operations on what is."""
    if isinstance(changes, Mapping):
        return dict(changes)
    return [[change.name, int(change.operation), change.value] for change in changes]


def to_changes(raw: Any) -> Changes:
    """Raises ValueError, TypeError if `raw` is neither form."""
    if isinstance(raw, dict):
        return to_texts(raw)
    return [
        ConfigChange(to_text(name), Operation(to_whole(operation)), None if value is None else to_text(value))
        for name, operation, value in to_list(raw)
    ]


# What arrives is checked before it is acted on: JSON has other types than a topic, and every process reads what is
# written into the store.


def to_text(value: object) -> str:
    return _of_type(value, str)


def to_whole(value: object) -> int:
    """An int32, as in Kafka's messages; true and false are not numbers."""
    number = _of_type(value, int)
    if isinstance(number, bool) or not -1 << 31 <= number < 1 << 31:
        raise TypeError(f"{number!r:.80} is not an int32")
    return number


def to_flag(value: object) -> bool:
    return _of_type(value, bool)


def to_list(value: object) -> list[Any]:
    return _of_type(value, list)


def to_texts(value: object) -> dict[str, str]:
    found = _of_type(value, dict)
    return {to_text(name): to_text(text) for name, text in found.items()}


def to_replicas(value: object) -> list[int]:
    return [to_whole(node) for node in to_list(value)]


def _of_type(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is not {kind.__name__}")
    return value
