"""Admin acts and their results as JSON, between ``RemoteAdmin`` and ``AdminService``.

The names of methods and arguments are ``TopicAdmin``'s; a service that does not know one says so (UNSUPPORTED_VERSION),
so that an older leader is no riddle.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from bmq.core.errors import FormatError
from bmq.meta.catalog import Topic
from bmq.meta.controller.config_changes import Changes, ConfigChange, Operation


def encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """FormatError when it is no JSON object."""
    try:
        raw = json.loads(bytes(data))
    except ValueError as error:
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
    if isinstance(raw, dict):
        return raw
    return [ConfigChange(name, Operation(operation), value) for name, operation, value in raw]
