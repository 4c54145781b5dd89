"""The client's side of ``fetch``: requests from one process of the cluster to another, by topic id, without headers.

A response's records are views of its frame: nothing is copied, and code that keeps one keeps the frame in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

from bmq.core.aio.steps import Steps, finish_steps
from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire.fetch import ABORTED_TAG, FetchedPartition, FetchedTopic, FetchPartition
from bmq.core.wire.primitives import (
    CUT_SHORT,
    ELEMENTS_MAX,
    INT32,
    array_size,
    read_count,
    read_size,
    read_tags,
    read_uuid,
    skip_tags,
    tags,
)

FETCH_VERSION = 16
PARTITIONS_A_STEP = 1_000
"""Partitions decoded in one step, at 2 to 4 us each."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_LIMITS = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_PARTITION = struct.Struct(">iiqiqiB")  # as ``FetchPartition``, without a follower's log start, and without tags
_HEAD = struct.Struct(">ihi")  # throttle time, error, session id
_OFFSETS = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qqB")
_NO_RACK = b"\x01"
_WANTS_ABORTED, _NO_TAGS = tags([(ABORTED_TAG, b"")]), tags([])
_PARTITION_LEAST = _OFFSETS.size + 1 + INT32.size + 2


class FetchResponse:
    """A decoded response.  ``error_code`` is of the request as a whole: if it is not 0 there are no topics."""

    __slots__ = ("error_code", "session_id", "topics")

    def __init__(self, error_code: int, session_id: int, topics: Sequence[FetchedTopic]) -> None:
        self.error_code = error_code
        self.session_id = session_id
        self.topics = topics


def encode_fetch_request(
    *,
    session_id: int,
    session_epoch: int,
    topics: Sequence[tuple[UUID, Sequence[FetchPartition]]],
    forgotten: Sequence[tuple[UUID, Sequence[int]]],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> list[Buffer]:
    """Return the body of a request as a consumer of this isolation level sends it.

    At READ_UNCOMMITTED the request also has ``ABORTED_TAG``; at READ_COMMITTED the response has Kafka's own list.
    """
    out = bytearray(_LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch))
    out += array_size(len(topics), flexible=True)
    for topic_id, partitions in topics:
        out += topic_id.bytes
        out += array_size(len(partitions), flexible=True)
        for partition, epoch, offset, last_epoch, limit in partitions:
            out += _PARTITION.pack(partition, epoch, offset, last_epoch, -1, limit, 0)
        out.append(0)
    out += array_size(len(forgotten), flexible=True)
    for topic_id, numbers in forgotten:
        out += topic_id.bytes
        out += array_size(len(numbers), flexible=True)
        out += struct.pack(f">{len(numbers)}iB", *numbers, 0)
    out += _NO_RACK
    out += _WANTS_ABORTED if isolation_level == READ_UNCOMMITTED else _NO_TAGS
    return [out]


def decode_fetch_response(body: memoryview) -> FetchResponse:
    """Return the response in ``body``.  Raises FormatError if it is malformed."""
    return finish_steps(fetch_response_steps(body))


def fetch_response_steps(body: memoryview) -> Steps[FetchResponse]:
    """Do the same as ``decode_fetch_response``, with a pause after each ``PARTITIONS_A_STEP`` partitions."""
    try:
        _, error_code, session_id = _HEAD.unpack_from(body)
        count, pos = read_count(body, _HEAD.size, 18, flexible=True)
        room = ELEMENTS_MAX - count
        topics, read = [], 0
        for _ in range(count):
            topic_id, pos = read_uuid(body, pos)
            size, pos = read_count(body, pos, _PARTITION_LEAST, flexible=True)
            room -= size
            if room < 0:
                raise FormatError(f"response to Fetch: more than {ELEMENTS_MAX} partitions")
            partitions = []
            for _ in range(size):
                partition, pos = _read_partition(body, pos)
                partitions.append(partition)
                read += 1
                if read % PARTITIONS_A_STEP == 0:
                    yield
            pos = skip_tags(body, pos)
            topics.append(FetchedTopic(None, topic_id, partitions))
        pos = skip_tags(body, pos)
    except CUT_SHORT as error:
        raise FormatError(f"response to Fetch: {error}") from None
    if pos != len(body):
        raise FormatError(f"response to Fetch: {len(body) - pos} bytes too many")
    return FetchResponse(error_code, session_id, topics)


def _read_partition(body: memoryview, pos: int) -> tuple[FetchedPartition, int]:
    """Return a partition's part, without preferred replica."""
    fetched = FetchedPartition(*_OFFSETS.unpack_from(body, pos))
    aborted, pos = read_size(body, pos + _OFFSETS.size, flexible=True)
    if aborted >= 0:
        end = pos + aborted * _ABORTED.size
        if end > len(body):
            raise FormatError(f"response to Fetch: {aborted} aborted transactions in {len(body) - pos} bytes")
        fetched.aborted = [each[:2] for each in _ABORTED.iter_unpack(body[pos:end])]
        pos = end
    size, pos = read_size(body, pos + INT32.size, flexible=True)
    if size <= 0:
        return _with_tags(fetched, body, pos)
    if pos + size > len(body):
        raise FormatError(f"response to Fetch: {size} bytes of records where {len(body) - pos} are left")
    fetched.records, fetched.records_size = (body[pos : pos + size],), size
    return _with_tags(fetched, body, pos + size)


def _with_tags(fetched: FetchedPartition, body: memoryview, pos: int) -> tuple[FetchedPartition, int]:
    if not body[pos]:
        return fetched, pos + 1
    found, pos = read_tags(body, pos)
    for tag, start, end in found:
        if tag == ABORTED_TAG:
            fetched.whole_aborted = bytes(body[start:end])
    return fetched, pos
