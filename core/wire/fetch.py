"""Fetch, by hand: thousands of partitions are read in a few calls, and record buffers go out untouched.

Versions 4 to 18 (Kafka 4.x): 5 log start offset, 7 sessions (KIP-227), 9 leader epoch (KIP-320), 11 rack and preferred
read replica (KIP-392), 12 flexible, last fetched epoch and cluster id, 13 topic ids for names (KIP-516), 15 replica
state (KIP-903), 16 node endpoints (KIP-951), 17 directory id, 18 the follower's high watermark.  Fields that only
followers send (log start offset, directory id, high watermark) are skipped: there are no followers.

Between processes of a cluster there is an additional tagged field, ``ABORTED_TAG``.  In a request it has no value, and
asks for aborted transactions with all their offsets, at any isolation level.  A partition's part of the response has
them in the format of ``storage.aborted.encode_aborted``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer, Response
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
    read_string,
    read_tags,
    read_uuid,
    response_header,
    skip_tags,
    string,
    tags,
    uvarint,
)

FLEXIBLE_SINCE = 12
TOPIC_IDS_SINCE = 13
SESSIONS_SINCE = 7
ABORTED_TAG = 10_002


class FetchPartition(NamedTuple):
    """One partition's part of a request; epochs are -1 if the client gave none."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    max_bytes: int


class FetchTopic:
    """One topic's part of a request: ``name`` below version 13, ``topic_id`` from then on."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str | None, topic_id: UUID | None, partitions: list[FetchPartition]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class ForgottenTopic:
    """Partitions that leave the session."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str | None, topic_id: UUID | None, partitions: tuple[int, ...]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


class FetchRequest:
    """A parsed request.  ``replica_id`` is -1 for consumers.

    A version without sessions has ``session_id`` 0 and ``session_epoch`` -1.  ``wants_aborted``: it has
    ``ABORTED_TAG``.
    """

    __slots__ = (
        "cluster_id",
        "forgotten",
        "isolation_level",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "rack_id",
        "replica_epoch",
        "replica_id",
        "session_epoch",
        "session_id",
        "topics",
        "wants_aborted",
    )

    def __init__(
        self,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        isolation_level: int,
        session_id: int = 0,
        session_epoch: int = -1,
    ) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.topics: list[FetchTopic] = []
        self.forgotten: list[ForgottenTopic] = []
        self.rack_id = ""
        self.replica_id = -1
        self.replica_epoch = -1
        self.cluster_id: str | None = None
        self.wants_aborted = False


_LIMITS = struct.Struct(">iiib")
_LIMITS_SESSION = struct.Struct(">iiibii")
_REPLICA_STATE = struct.Struct(">iq")
# A partition's fixed part.  Fields that only followers send are skipped.
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iq8xi")
_PARTITION_9 = struct.Struct(">iiq8xi")
_PARTITION_12 = struct.Struct(">iiqi8xix")  # with an empty set of tags


def parse_fetch(body: memoryview, version: int, partitions_max: int = PARTITIONS) -> FetchRequest:
    """Parse a fetch request of ``version`` (4 to 18).

    Raises TooManyPartitions if it names more topics and partitions than ``partitions_max``, forgotten ones included,
    before the rest is read; FormatError if it is malformed.
    """
    try:
        return _parse(body, version, partitions_max, flexible=version >= FLEXIBLE_SINCE)
    except CUT_SHORT as error:
        raise FormatError(f"Fetch version {version}: {error}") from None


def _parse(body: memoryview, version: int, partitions_max: int, *, flexible: bool) -> FetchRequest:
    pos = 0
    replica_id = -1
    if version < 15:
        (replica_id,) = INT32.unpack_from(body, 0)
        pos = 4
    fixed = _LIMITS_SESSION if version >= SESSIONS_SINCE else _LIMITS
    request = FetchRequest(*fixed.unpack_from(body, pos))
    request.replica_id = replica_id
    request.topics, left, pos = _parse_topics(body, pos + fixed.size, version, partitions_max, flexible=flexible)
    if version >= SESSIONS_SINCE:
        request.forgotten, pos = _parse_forgotten(body, pos, version, left, partitions_max, flexible=flexible)
    if version >= 11:
        request.rack_id, pos = read_string(body, pos, flexible=flexible)
    if flexible:
        _parse_tags(body, pos, version, request)
    return request


def _parse_tags(body: memoryview, pos: int, version: int, request: FetchRequest) -> None:
    for tag, start, end in read_tags(body, pos)[0]:
        field = body[start:end]
        if tag == 0:
            request.cluster_id, used = read_nullable_string(field, 0, flexible=True)
        elif tag == ABORTED_TAG:
            request.wants_aborted, used = True, len(field)
        elif tag == 1 and version >= 15:
            request.replica_id, request.replica_epoch = _REPLICA_STATE.unpack_from(field)
            used = skip_tags(field, _REPLICA_STATE.size)
        else:
            continue
        if used != len(field):
            raise FormatError(f"tag {tag}: {len(field)} bytes, of which {used} are its field")


def _parse_topic(body: memoryview, pos: int, version: int, *, flexible: bool) -> tuple[str | None, UUID | None, int]:
    if version < TOPIC_IDS_SINCE:
        name, pos = read_string(body, pos, flexible=flexible)
        return name, None, pos
    topic_id, pos = read_uuid(body, pos)
    return None, topic_id, pos


def _parse_topics(
    body: memoryview, pos: int, version: int, partitions_max: int, *, flexible: bool
) -> tuple[list[FetchTopic], int, int]:
    """Return topics, how many more elements the request may have, and the position behind."""
    read_partitions, least = _partitions_of(version)
    count, pos = read_count(body, pos, 3, flexible=flexible)
    room = partitions_max - count
    topics = []
    for _ in range(count):
        name, topic_id, pos = _parse_topic(body, pos, version, flexible=flexible)
        size, pos = read_count(body, pos, least, flexible=flexible)
        room -= size
        if room < 0:
            raise TooManyPartitions(partitions_max)
        partitions, pos = read_partitions(body, pos, size)
        topics.append(FetchTopic(name, topic_id, partitions))
        if flexible:
            pos = skip_tags(body, pos)
    return topics, room, pos


def _partitions_of(version: int) -> tuple[Callable[[memoryview, int, int], tuple[list[FetchPartition], int]], int]:
    """Return the parser of a run of partitions, and the least bytes of one."""
    if version >= 12:
        return _partitions_12, _PARTITION_12.size
    if version >= 9:
        return _partitions_9, _PARTITION_9.size
    if version >= 5:
        return _partitions_5, _PARTITION_5.size
    return _partitions_4, _PARTITION_4.size


def _partitions_4(body: memoryview, pos: int, count: int) -> tuple[list[FetchPartition], int]:
    end = pos + count * _PARTITION_4.size
    rows = _PARTITION_4.iter_unpack(body[pos:end])
    return [FetchPartition(partition, -1, offset, -1, limit) for partition, offset, limit in rows], end


def _partitions_5(body: memoryview, pos: int, count: int) -> tuple[list[FetchPartition], int]:
    end = pos + count * _PARTITION_5.size
    rows = _PARTITION_5.iter_unpack(body[pos:end])
    return [FetchPartition(partition, -1, offset, -1, limit) for partition, offset, limit in rows], end


def _partitions_9(body: memoryview, pos: int, count: int) -> tuple[list[FetchPartition], int]:
    end = pos + count * _PARTITION_9.size
    rows = _PARTITION_9.iter_unpack(body[pos:end])
    return [FetchPartition(partition, epoch, offset, -1, limit) for partition, epoch, offset, limit in rows], end


def _partitions_12(body: memoryview, pos: int, count: int) -> tuple[list[FetchPartition], int]:
    """Parse a run of partitions: at once if none has tags, which their last bytes show, as with all consumers."""
    width = _PARTITION_12.size
    end = pos + count * width
    if not any(body[pos + width - 1 : end : width]):
        return list(map(FetchPartition._make, _PARTITION_12.iter_unpack(body[pos:end]))), end
    partitions = []
    for _ in range(count):
        partitions.append(FetchPartition._make(_PARTITION_12.unpack_from(body, pos)))
        pos = skip_tags(body, pos + width - 1)
    return partitions, pos


def _parse_forgotten(
    body: memoryview, pos: int, version: int, room: int, partitions_max: int, *, flexible: bool
) -> tuple[list[ForgottenTopic], int]:
    count, pos = read_count(body, pos, 3, flexible=flexible)
    room -= count
    forgotten = []
    for _ in range(count):
        name, topic_id, pos = _parse_topic(body, pos, version, flexible=flexible)
        size, pos = read_count(body, pos, 4, flexible=flexible)
        room -= size
        if room < 0:
            raise TooManyPartitions(partitions_max)
        forgotten.append(ForgottenTopic(name, topic_id, struct.unpack_from(f">{size}i", body, pos)))
        pos += 4 * size
        if flexible:
            pos = skip_tags(body, pos)
    return forgotten, pos


class FetchedPartition:
    """One partition's part of the response.

    ``records`` are whole batches in any number of buffers, of ``records_size`` bytes together.  ``aborted`` are
    (producer id, first offset), None unless the client reads committed; ``whole_aborted`` is the field under
    ``ABORTED_TAG``, empty for none; ``diverging_epoch`` is (epoch, end offset),
    ``current_leader`` (node id, epoch), both sent from version 12.
    """

    __slots__ = (
        "aborted",
        "current_leader",
        "diverging_epoch",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start",
        "partition",
        "preferred_read_replica",
        "records",
        "records_size",
        "whole_aborted",
    )

    def __init__(
        self,
        partition: int,
        error_code: int = 0,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start: int = -1,
        records: Sequence[Buffer] = (),
        records_size: int | None = None,
        aborted: Sequence[tuple[int, int]] | None = None,
        preferred_read_replica: int = -1,
        diverging_epoch: tuple[int, int] | None = None,
        current_leader: tuple[int, int] | None = None,
        whole_aborted: bytes = b"",
    ) -> None:
        self.whole_aborted = whole_aborted
        self.partition = partition
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start = log_start
        self.records = records
        self.records_size = sum(map(len, records)) if records_size is None else records_size
        self.aborted = aborted
        self.preferred_read_replica = preferred_read_replica
        self.diverging_epoch = diverging_epoch
        self.current_leader = current_leader


class FetchedTopic:
    """One topic's part of the response, named as the request named it."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str | None, topic_id: UUID | None, partitions: Sequence[FetchedPartition]) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions


def encode_fetch(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchedTopic],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[NodeEndpoint] = (),
    release: Callable[[], None] | None = None,
) -> Response:
    """Return the response to a request of ``version`` (4 to 18): small buffers between the records' own.

    ``error_code`` and ``session_id`` are sent from version 7, ``endpoints`` from 16.  ``release``: see ``Response``.
    """
    flexible = version >= FLEXIBLE_SINCE
    pack_partition = _packer(version)
    buffers: list[Buffer] = []
    out = bytearray(response_header(correlation_id, flexible=flexible))
    out += _HEAD.pack(throttle_ms, error_code, session_id) if version >= SESSIONS_SINCE else INT32.pack(throttle_ms)
    out += array_size(len(topics), flexible=flexible)
    for topic in topics:
        out += _topic(topic, version, flexible=flexible)
        out += array_size(len(topic.partitions), flexible=flexible)
        for each in topic.partitions:
            out += pack_partition(each)
            if each.records_size:
                buffers.append(out)
                buffers.extend(each.records)
                out = bytearray()
            if flexible:
                out += _partition_tags(each) if _has_tags(each) else b"\0"
        if flexible:
            out.append(0)
    if flexible:
        out += tags([(0, node_endpoints(endpoints))] if endpoints and version >= 16 else ())
    if out:
        buffers.append(out)
    return Response(buffers, release)


_HEAD = struct.Struct(">ihi")


def _topic(topic: FetchedTopic, version: int, *, flexible: bool) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        assert topic.topic_id is not None
        return topic.topic_id.bytes
    assert topic.name is not None
    return string(topic.name, flexible=flexible)


# Up to log start, and the same with no aborted transactions and, from 11, the preferred read replica.
_OFFSETS_4 = struct.Struct(">ihqq")
_OFFSETS_5 = struct.Struct(">ihqqq")
_NO_ABORTED_12 = struct.Struct(">ihqqqBi")


def _packer(version: int) -> Callable[[FetchedPartition], bytes]:
    if version >= 12:
        return _pack_12
    if version >= 11:
        return _pack_11
    return _pack_5 if version >= 5 else _pack_4


def _pack_4(each: FetchedPartition) -> bytes:
    offsets = _OFFSETS_4.pack(each.partition, each.error_code, each.high_watermark, each.last_stable_offset)
    return offsets + _aborted(each.aborted) + INT32.pack(each.records_size)


def _pack_5(each: FetchedPartition) -> bytes:
    return _offsets(each) + _aborted(each.aborted) + INT32.pack(each.records_size)


def _pack_11(each: FetchedPartition) -> bytes:
    tail = struct.pack(">ii", each.preferred_read_replica, each.records_size)
    return _offsets(each) + _aborted(each.aborted) + tail


def _pack_12(each: FetchedPartition) -> bytes:
    if each.aborted is None:
        head = _NO_ABORTED_12.pack(
            each.partition,
            each.error_code,
            each.high_watermark,
            each.last_stable_offset,
            each.log_start,
            0,
            each.preferred_read_replica,
        )
        return head + uvarint(each.records_size + 1)
    parts = [_offsets(each), uvarint(len(each.aborted) + 1)]
    parts += [struct.pack(">qqB", producer_id, first_offset, 0) for producer_id, first_offset in each.aborted]
    parts += [INT32.pack(each.preferred_read_replica), uvarint(each.records_size + 1)]
    return b"".join(parts)


def _offsets(each: FetchedPartition) -> bytes:
    return _OFFSETS_5.pack(
        each.partition, each.error_code, each.high_watermark, each.last_stable_offset, each.log_start
    )


def _aborted(aborted: Sequence[tuple[int, int]] | None) -> bytes:
    if aborted is None:
        return b"\xff\xff\xff\xff"
    return INT32.pack(len(aborted)) + b"".join(struct.pack(">qq", *each) for each in aborted)


def _has_tags(each: FetchedPartition) -> bool:
    return bool(each.diverging_epoch or each.current_leader or each.whole_aborted)


def _partition_tags(each: FetchedPartition) -> bytes:
    found = []
    if each.diverging_epoch:
        found.append((0, struct.pack(">iqB", *each.diverging_epoch, 0)))
    if each.current_leader:
        found.append((1, struct.pack(">iiB", *each.current_leader, 0)))
    if each.whole_aborted:
        found.append((ABORTED_TAG, each.whole_aborted))
    return tags(found)
