"""Administration requests and their results as JSON, between ``RemoteAdmin`` and ``AdminService``.

The names of methods and arguments are ``TopicAdmin``'s.  A service that does not know a method refuses the request with
UNSUPPORTED_VERSION, so that an older leader is recognized.
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
    """Return the fields as a JSON object."""
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """Return the fields of a JSON object.  Raises FormatError if ``data`` is not one."""
    try:
        raw = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {bytes(data[:80])!r}") from error
    if not isinstance(raw, dict):
        raise FormatError(f"not a JSON object: {bytes(data[:80])!r}")
    return raw


def from_topic(topic: Topic) -> dict[str, Any]:
    """Return the topic as the fields of a JSON object."""
    return {
        "name": topic.name,
        "id": str(topic.topic_id),
        "partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": dict(topic.configs),
        "revision": topic.revision,
    }


def to_topic(raw: Mapping[str, Any]) -> Topic:
    """Return the topic of `from_topic`'s fields.  Raises KeyError, ValueError if a field is missing or wrong."""
    return Topic(
        name=raw["name"],
        topic_id=uuid.UUID(raw["id"]),
        partitions=raw["partitions"],
        replication_factor=raw["replication_factor"],
        configs=raw["configs"],
        revision=raw["revision"],
    )


def from_changes(changes: Changes) -> Any:
    """Return JSON for changes of configs: an object for the complete new configs, a list for operations on them."""
    if isinstance(changes, Mapping):
        return dict(changes)
    return [[change.name, int(change.operation), change.value] for change in changes]


def to_changes(raw: Any) -> Changes:
    """Return the changes of `from_changes`.  Raises ValueError, TypeError if ``raw`` has neither form."""
    if isinstance(raw, dict):
        return to_texts(raw)
    return [
        ConfigChange(to_text(name), Operation(to_whole(operation)), None if value is None else to_text(value))
        for name, operation, value in to_list(raw)
    ]


# Arguments are checked before they are used: JSON has other types than a topic, and every process reads the values that
# are written into the store.


def to_text(value: object) -> str:
    """Return the value if it is a string.  Raises TypeError."""
    return _of_type(value, str)


def to_whole(value: object) -> int:
    """Return the value if it is an int32, as in Kafka's messages.  Raises TypeError, for true and false too."""
    number = _of_type(value, int)
    if isinstance(number, bool) or not -1 << 31 <= number < 1 << 31:
        raise TypeError(f"{number!r:.80} is not an int32")
    return number


def to_flag(value: object) -> bool:
    """Return the value if it is true or false.  Raises TypeError."""
    return _of_type(value, bool)


def to_list(value: object) -> list[Any]:
    """Return the value if it is a list.  Raises TypeError."""
    return _of_type(value, list)


def to_texts(value: object) -> dict[str, str]:
    """Return the value if it is an object whose values are strings.  Raises TypeError."""
    found = _of_type(value, dict)
    return {to_text(name): to_text(text) for name, text in found.items()}


def to_replicas(value: object) -> list[int]:
    """Return the value if it is a list of node ids.  Raises TypeError."""
    return [to_whole(node) for node in to_list(value)]


def _of_type(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is not {kind.__name__}")
    return value
