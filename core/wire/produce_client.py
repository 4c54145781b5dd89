"""The client's side of ``produce``: requests from one process of the cluster to another, by topic id, without headers.

Record bytes go out as they are, in buffers of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from bmq.core.errors import FormatError
from bmq.core.net.request import Buffer
from bmq.core.wire.primitives import (
    CUT_SHORT,
    ELEMENTS_MAX,
    INT32,
    array_size,
    read_count,
    read_nullable_string,
    read_uuid,
    skip_tags,
    tags,
    uvarint,
)
from bmq.core.wire.produce import HELD_TAG, RESTART_TAG, TRANSACTION_TAG, PartitionAnswer, TopicAnswer, Transaction

PRODUCE_VERSION = 13
_NO_TAGS = b"\0"
_RESTART = tags([(RESTART_TAG, b"")])
_HEAD = struct.Struct(">Bhi")  # no transactional id (parts carry theirs in a tag), acks, timeout
_ANSWER = struct.Struct(">ihqqq")
_ANSWER_LEAST = _ANSWER.size + 3  # no record errors, no message, no tags


def encode_produce_request(
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[UUID, Sequence[tuple[int, memoryview]]]],
    restarts: Collection[tuple[UUID, int]] = (),
    held_ms: int = -1,
    transactions: Mapping[int, Transaction] | None = None,
) -> list[Buffer]:
    """Return the body of a request.  ``topics`` are (id, (partition, records) of each).

    A partition may be there more than once: the first part of one that is in ``restarts`` carries ``RESTART_TAG``.
    ``held_ms`` goes under ``HELD_TAG``, unless it is negative.  ``transactions``: of the parts with a transactional
    batch, by the ``id`` of their records' object.
    """
    untold = set(restarts)
    buffers: list[Buffer] = []
    out = bytearray(_HEAD.pack(0, acks, timeout_ms))
    out += array_size(len(topics), flexible=True)
    for topic_id, partitions in topics:
        out += topic_id.bytes
        out += array_size(len(partitions), flexible=True)
        for partition, records in partitions:
            out += INT32.pack(partition)
            out += uvarint(len(records) + 1)
            buffers += (out, records)
            restarts_here = bool(untold) and (topic_id, partition) in untold
            if restarts_here:
                untold.remove((topic_id, partition))
            if transactions and (transaction := transactions.get(id(records))) is not None:
                restart = [(RESTART_TAG, b"")] if restarts_here else []
                out = bytearray(tags([*restart, (TRANSACTION_TAG, transaction.encode())]))
            else:
                out = bytearray(_RESTART if restarts_here else _NO_TAGS)
        out.append(0)
    out += _NO_TAGS if held_ms < 0 else tags([(HELD_TAG, INT32.pack(held_ms))])
    buffers.append(out)
    return buffers


def decode_produce_response(body: memoryview) -> list[TopicAnswer]:
    """Return the response in ``body``, in the order of the request.  Raises FormatError if it is malformed."""
    try:
        count, pos = read_count(body, 0, 18, flexible=True)
        room = ELEMENTS_MAX - count
        topics = []
        for _ in range(count):
            topic_id, pos = read_uuid(body, pos)
            size, pos = read_count(body, pos, _ANSWER_LEAST, flexible=True)
            room -= size
            if room < 0:
                raise FormatError(f"response to Produce: more than {ELEMENTS_MAX} partitions")
            answers = []
            for _ in range(size):
                response, pos = _read_answer(body, pos)
                answers.append(response)
            pos = skip_tags(body, pos)
            topics.append(TopicAnswer(None, topic_id, answers))
        pos = skip_tags(body, pos + INT32.size)  # behind the throttle time
    except CUT_SHORT as error:
        raise FormatError(f"response to Produce: {error}") from None
    if pos != len(body):
        raise FormatError(f"response to Produce: {len(body) - pos} bytes too many")
    return topics


def _read_answer(body: memoryview, pos: int) -> tuple[PartitionAnswer, int]:
    """Return a partition's part and the position behind it."""
    partition, code, base_offset, append_time, log_start = _ANSWER.unpack_from(body, pos)
    count, pos = read_count(body, pos + _ANSWER.size, 6, flexible=True)
    record_errors = []
    for _ in range(count):
        (index,) = INT32.unpack_from(body, pos)
        text, pos = read_nullable_string(body, pos + INT32.size, flexible=True)
        record_errors.append((index, text))
        pos = skip_tags(body, pos)
    message, pos = read_nullable_string(body, pos, flexible=True)
    response = PartitionAnswer(partition, code, base_offset, append_time, log_start, message, record_errors or ())
    return response, skip_tags(body, pos)
