"""Produce, by hand: record bytes stay where they arrived.

Versions 3 to 13 (Kafka 4.x; 0 to 2 are only listed, KAFKA-18659): 5 log start offset, 8 record errors and error message
(KIP-467), 9 flexible, 10 current leader and node endpoints (KIP-951), 13 topic ids for names (KIP-516).

Between processes of a cluster there are two additional tagged fields.  A partition's part may carry ``RESTART_TAG``,
without content: the sender has received the responses to everything that it sent for the partition before.  A request
may carry ``HELD_TAG``, an int32: the milliseconds for which it may still be held while a partition has no owner.  A
partition's part with a transactional batch carries ``TRANSACTION_TAG``: the client's version of Produce, an int16, and
its transactional id in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from bmq.core.errors import FormatError
from bmq.core.net.request import Response
from bmq.core.wire.limits import PARTITIONS
from bmq.core.wire.primitives import (
    CUT_SHORT,
    INT32,
    NodeEndpoint,
    TooManyPartitions,
    array_size,
    node_endpoints,
    read_count,
    read_nullable_string,
    read_size,
    read_string,
    read_tags,
    read_uuid,
    response_header,
    skip_tags,
    string,
    tags,
)

ACKS_ALL, ACKS_BUFFERED, ACKS_NONE = -1, 1, 0
FLEXIBLE_SINCE = 9
TOPIC_IDS_SINCE = 13
RESTART_TAG = 10_000
HELD_TAG = 10_001
TRANSACTION_TAG = 10_004  # 10,002 is a tag of Fetch, 10,003 of request headers
_VERSION = struct.Struct(">h")


class Transaction(NamedTuple):
    """The transaction of a part: the transactional id, and the client's version of Produce (KIP-890)."""

    transactional_id: str
    version: int

    def encode(self) -> bytes:
        """Return the value of ``TRANSACTION_TAG``."""
        return _VERSION.pack(self.version) + self.transactional_id.encode()

    @classmethod
    def decode(cls, value: memoryview) -> Transaction:
        """Return the transaction that a value of ``TRANSACTION_TAG`` holds. Raises FormatError."""
        try:
            return cls(str(value[_VERSION.size :], "utf-8"), _VERSION.unpack_from(value)[0])
        except (struct.error, UnicodeDecodeError) as error:
            raise FormatError(f"the transaction of a part: {error}") from None


class ProduceTopic:
    """A topic's part of a request: ``name`` below version 13, ``topic_id`` from then on.

    ``partitions`` are (index, records or None), ``restarts`` the positions in it of the partitions that carry
    ``RESTART_TAG``, and ``transactions`` the values of ``TRANSACTION_TAG`` by position; None without any.
    """

    __slots__ = ("name", "partitions", "restarts", "topic_id", "transactions")

    def __init__(
        self,
        name: str | None,
        topic_id: UUID | None,
        partitions: list[tuple[int, memoryview | None]],
        restarts: set[int] | tuple[()] = (),
        transactions: dict[int, Transaction] | None = None,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.restarts = restarts
        self.transactions = transactions


class ProduceRequest:
    """A parsed request.  Records are slices of its body: they keep it in memory, and may be written into.

    ``held_ms`` is the value of ``HELD_TAG``, -1 without it.
    """

    __slots__ = ("acks", "held_ms", "timeout_ms", "topics", "transactional_id")

    def __init__(
        self, transactional_id: str | None, acks: int, timeout_ms: int, topics: list[ProduceTopic], held_ms: int = -1
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topics = topics
        self.held_ms = held_ms


_ACKS = struct.Struct(">hi")
_HEADER = struct.Struct(">hhih")  # key, version, correlation id, length of the client id


def expects_response(frame: memoryview) -> bool:
    """Return False if the request in ``frame`` (without its size) is a Produce with acks=0.  True if it is malformed.

    The frame's API and version need not be checked before.
    """
    try:
        key, version, _, length = _HEADER.unpack_from(frame)
        if key:
            return True
        pos, is_flexible = _HEADER.size + max(0, length), version >= FLEXIBLE_SINCE
        if is_flexible:
            pos = skip_tags(frame, pos) if frame[pos] else pos + 1
        if is_flexible and not frame[pos]:
            pos += 1  # null, as without transactions
        else:
            _, pos = read_nullable_string(frame, pos, flexible=is_flexible)
        return bool(_ACKS.unpack_from(frame, pos)[0] != ACKS_NONE)
    except (*CUT_SHORT, FormatError):
        return True


def parse_produce(body: memoryview, version: int, partitions_max: int = PARTITIONS) -> ProduceRequest:
    """Parse a produce request of ``version`` (3 to 13).

    Raises TooManyPartitions if it has more topics and partitions than ``partitions_max``, before the rest is read;
    FormatError if it is malformed.
    """
    try:
        return _parse(body, version, partitions_max, flexible=version >= FLEXIBLE_SINCE)
    except CUT_SHORT as error:
        raise FormatError(f"Produce version {version}: {error}") from None


def _parse(body: memoryview, version: int, partitions_max: int, *, flexible: bool) -> ProduceRequest:
    transactional_id, pos = read_nullable_string(body, 0, flexible=flexible)
    acks, timeout_ms = _ACKS.unpack_from(body, pos)
    count, pos = read_count(body, pos + 6, 3, flexible=flexible)
    room = partitions_max - count
    topics = []
    for _ in range(count):
        name = topic_id = None
        if version >= TOPIC_IDS_SINCE:
            topic_id, pos = read_uuid(body, pos)
        else:
            name, pos = read_string(body, pos, flexible=flexible)
        size, pos = read_count(body, pos, 5, flexible=flexible)
        room -= size
        if room < 0:
            raise TooManyPartitions(partitions_max)
        topic = ProduceTopic(name, topic_id, [])
        pos = _parse_partitions(topic, body, pos, size, flexible=flexible)
        topics.append(topic)
        if flexible:
            pos = skip_tags(body, pos)
    held_ms = _parse_held(body, pos) if flexible and body[pos] else -1
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, held_ms)


def _parse_held(body: memoryview, pos: int) -> int:
    for tag, start, end in read_tags(body, pos)[0]:
        if tag == HELD_TAG and end - start == INT32.size:
            held_ms: int = INT32.unpack_from(body, start)[0]
            return held_ms
    return -1


def _parse_partitions(topic: ProduceTopic, body: memoryview, pos: int, count: int, *, flexible: bool) -> int:
    """Read ``count`` partitions into ``topic``; return the position behind them."""
    partitions = topic.partitions
    for _ in range(count):
        (index,) = INT32.unpack_from(body, pos)
        size, pos = read_size(body, pos + 4, flexible=flexible)
        if size < 0:
            partitions.append((index, None))
        else:
            partitions.append((index, _take(body, pos, size)))
            pos += size
        if flexible:
            if body[pos]:
                pos = _parse_tags(topic, body, pos)
            else:
                pos += 1
    return pos


def _parse_tags(topic: ProduceTopic, body: memoryview, pos: int) -> int:
    """Read the tags of the last partition in ``topic``; return the position behind them."""
    found, pos = read_tags(body, pos)
    at = len(topic.partitions) - 1
    for tag, start, end in found:
        if tag == RESTART_TAG:
            if not isinstance(topic.restarts, set):
                topic.restarts = set()
            topic.restarts.add(at)
        elif tag == TRANSACTION_TAG:
            topic.transactions = topic.transactions or {}
            topic.transactions[at] = Transaction.decode(body[start:end])
    return pos


def _take(body: memoryview, pos: int, size: int) -> memoryview:
    if pos + size > len(body):
        raise FormatError(f"{size} bytes where {len(body) - pos} are left")
    return body[pos : pos + size]


class PartitionAnswer:
    """One partition's part of the response.

    ``batch_index_errors`` are (index of the record in its batch, text or None); ``current_leader`` is (node id, epoch).
    """

    __slots__ = (
        "append_time",
        "base_offset",
        "batch_index_errors",
        "current_leader",
        "error_code",
        "error_message",
        "log_start",
        "partition",
    )

    def __init__(
        self,
        partition: int,
        error_code: int,
        base_offset: int = -1,
        append_time: int = -1,
        log_start: int = -1,
        error_message: str | None = None,
        batch_index_errors: Sequence[tuple[int, str | None]] = (),
        current_leader: tuple[int, int] | None = None,
    ) -> None:
        self.partition = partition
        self.error_code = error_code
        self.base_offset = base_offset
        self.append_time = append_time
        self.log_start = log_start
        self.error_message = error_message
        self.batch_index_errors = batch_index_errors
        self.current_leader = current_leader


class TopicAnswer:
    """One topic's part of the response, named as the request named it."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str | None, topic_id: UUID | None, partitions: Sequence[PartitionAnswer]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


# A partition without errors in one pack; what follows log start is: no record errors, no message, no tags.
_PLAIN = {
    3: (struct.Struct(">ihqq"), ()),
    5: (struct.Struct(">ihqqq"), ()),
    8: (struct.Struct(">ihqqqih"), (0, -1)),
    9: (struct.Struct(">ihqqqBBB"), (1, 0, 0)),
}


def _plain(version: int) -> tuple[struct.Struct, tuple[int, ...]]:
    return _PLAIN[max(since for since in _PLAIN if since <= version)]


_PLAIN_OF = {version: _plain(version) for version in range(3, 14)}
_OFFSETS = struct.Struct(">ihqqq")


def encode_produce(
    version: int,
    correlation_id: int,
    topics: Sequence[TopicAnswer],
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
) -> Response:
    """Return the response to a request of ``version`` (3 to 13); ``endpoints`` are sent from version 10.

    The first buffer ends with the throttle time, and with an empty set of tags if there are any and no endpoints.
    ``endpoints`` are a buffer of their own.
    """
    flexible = version >= FLEXIBLE_SINCE
    plain, ending = _PLAIN_OF[version]
    has_start = version >= 5
    out = bytearray(response_header(correlation_id, flexible=flexible))
    out += array_size(len(topics), flexible=flexible)
    for topic in topics:
        out += _topic(topic, version, flexible=flexible)
        out += array_size(len(topic.partitions), flexible=flexible)
        for each in topic.partitions:
            if version >= 8 and not _is_plain(each):
                out += _with_errors(each, version, flexible=flexible)
            elif has_start:
                out += plain.pack(
                    each.partition, each.error_code, each.base_offset, each.append_time, each.log_start, *ending
                )
            else:
                out += plain.pack(each.partition, each.error_code, each.base_offset, each.append_time)
        if flexible:
            out.append(0)
    out += INT32.pack(throttle_ms)
    if endpoints and version >= 10:
        return Response((out, tags([(0, node_endpoints(endpoints))])))
    if flexible:
        out.append(0)
    return Response((out,))


def _topic(topic: TopicAnswer, version: int, *, flexible: bool) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        assert topic.topic_id is not None
        return topic.topic_id.bytes
    assert topic.name is not None
    return string(topic.name, flexible=flexible)


def _is_plain(each: PartitionAnswer) -> bool:
    return each.error_message is None and not each.batch_index_errors and each.current_leader is None


def _with_errors(each: PartitionAnswer, version: int, *, flexible: bool) -> bytes:
    out = bytearray(_OFFSETS.pack(each.partition, each.error_code, each.base_offset, each.append_time, each.log_start))
    out += array_size(len(each.batch_index_errors), flexible=flexible)
    for index, text in each.batch_index_errors:
        out += INT32.pack(index) + string(text, flexible=flexible)
        if flexible:
            out.append(0)
    out += string(each.error_message, flexible=flexible)
    if flexible:
        has_leader = each.current_leader is not None and version >= 10
        out += tags([(0, struct.pack(">iiB", *each.current_leader, 0))] if has_leader else ())  # type: ignore[misc]
    return bytes(out)
