"""Consumers' embedded protocol, as far as it is read here: subscribed topics and assigned partitions.

ConsumerProtocolSubscription: i16 version, i32 count, count times (i16 length, UTF-8 name), then fields that later
versions added.  Version 0 is a prefix of all others, so one reader serves all versions.  Source: Kafka's
``ConsumerProtocol`` and ``ClassicGroup.computeSubscribedTopics``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from bmq.core.errors import FormatError

CONSUMER = "consumer"
"""The protocol type of consumers; the metadata of other types is never parsed."""

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")


def parse_topics(metadata: bytes) -> tuple[list[str], int]:
    """Return the topic names in one member's metadata, and the position after them.

    Raises FormatError if the metadata is not a subscription.
    """
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            raise FormatError(f"subscription version {version} with {count} topics")
        at, topics = _HEAD.size, []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(metadata):
                raise FormatError(f"a topic name of {length} bytes at {at} of {len(metadata)}")
            topics.append(metadata[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"subscription: {error}") from error
    return topics, at


def parse_assignment(data: bytes) -> dict[str, list[int]]:
    """Return the partitions, by topic, that the leader assigned to a member (ConsumerProtocolAssignment).

    i16 version, i32 count, count times (i16 length, UTF-8 name, i32 count, count i32 numbers), then fields that later
    versions added.  Raises FormatError if ``data`` is not an assignment.
    """
    try:
        version, count = _HEAD.unpack_from(data)
        if version < 0 or count < 0:
            raise FormatError(f"assignment version {version} with {count} topics")
        at, topics = _HEAD.size, dict[str, list[int]]()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(data):
                raise FormatError(f"a topic name of {length} bytes at {at} of {len(data)}")
            name = data[at : at + length].decode()
            at += length
            (size,) = _COUNT.unpack_from(data, at)
            at += _COUNT.size
            if not 0 <= size <= (len(data) - at) // _COUNT.size:
                raise FormatError(f"{size} partitions at {at} of {len(data)}")
            topics.setdefault(name, []).extend(struct.unpack_from(f">{size}i", data, at))
            at += size * _COUNT.size
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"assignment: {error}") from error
    return topics


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics that a group's members subscribe to by these metadata; None if they cannot be read.

    For None, Kafka takes a consumer group as subscribed to all topics: no offset of it expires while it has members.
    """
    if protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    names = b""  # the bytes parsed last: most members have the same topics, only what follows them differs
    for each in set(metadata):
        if names and each.startswith(names):
            continue
        try:
            found, end = parse_topics(each)
        except FormatError:  # a client's own format under the consumer type is legal
            return None
        topics.update(found)
        names = each[:end]
    return frozenset(topics)
