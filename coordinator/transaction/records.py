"""Keys and values of ``__transaction_state``, in Kafka's own format.

Schemas: Kafka's ``transaction-coordinator/src/main/resources/common/message/*.json``.  Integers are big-endian.  A
string is an i16 length and UTF-8, from value version 1 on a varint of length + 1 and UTF-8.  Arrays have an i32 or
varint length in the same way, -1 or 0 for null::

    TransactionLogKey    0    transactionalId string
    TransactionLogValue  0-1  producerId i64, producerEpoch i16, transactionTimeoutMs i32, status i8,
                              partitions ?array of (topic string, partitionIds array of i32),
                              lastUpdateTimestamp i64, startTimestamp i64;
                              [1+] flexible, tagged fields:
                                0: previousProducerId i64, 1: nextProducerId i64, 2: clientTransactionVersion i16,
                                3: nextProducerEpoch i16,
                                10000 (not Kafka's): topic ids of the array's topics, 16 bytes each,
                                10001 (not Kafka's): last producer epoch i16,
                                10002 (not Kafka's): principal string

Each key and value begins with its version, i16.  Values are always written as version 1, which Kafka reads from 3.5 on:
version 0 has no place for topic ids.  A marker for a topic that was deleted and created again under its name must not
end up in the later topic.  By the last epoch a repeated InitProducerId is known after a failover, where Kafka fences
the producer.  By the principal the id counts for its creator after a failover (``shard.key_bounds``).  An array may
name a topic twice, with two ids; Kafka reads one topic.  A null value is a tombstone.  Keys of other versions are kept
as they are: see ``UnknownTransaction``.
"""

from __future__ import annotations

import struct
import sys
import uuid
from functools import lru_cache
from typing import NamedTuple

from bmq.coordinator.record_fields import FieldReader, compact, string
from bmq.coordinator.transaction.states import TransactionState, stored_state
from bmq.core.errors import FormatError
from bmq.core.wire.primitives import uvarint

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIMESTAMP = -1

_I16 = struct.Struct(">h")
_I64 = struct.Struct(">q")
_KEY_VERSION = b"\0\0"
_HEAD = struct.Struct(">hqhib")  # version, producer id, epoch, time-out, status
_TIMES = struct.Struct(">qq")
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG, _NEXT_EPOCH_TAG = range(4)
_TOPIC_IDS_TAG = 10_000
"""First tag that is not Kafka's.  Kafka numbers its tagged fields from 0 and skips unknown ones (KIP-915)."""
_LAST_EPOCH_TAG = 10_001
_PRINCIPAL_TAG = 10_002
_TOPIC_IDS_HEAD, _LAST_EPOCH_HEAD, _PRINCIPAL_HEAD = map(uvarint, (_TOPIC_IDS_TAG, _LAST_EPOCH_TAG, _PRINCIPAL_TAG))
_LONG_TAG = struct.Struct(">BBq")  # tag, size, value
_SHORT_TAG = struct.Struct(">BBh")
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_TOPIC_IDS_CACHED = 16_384


class TopicPartitions(NamedTuple):
    """Partitions of one topic in a transaction, in ascending order.

    ``topic_id`` is None in records of Kafka: then the present topic of the name is meant.
    """

    topic: str
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...]


class StoredTransaction(NamedTuple):
    """A transactional id as it is stored: its producer, and its present or last transaction.  Timestamps in ms.

    | field | meaning |
    |---|---|
    | ``epoch`` | epoch of the producer; while markers are on their way, the epoch of the markers |
    | ``last_epoch`` | epoch before the last bump, to know a repeated request; -1 if none is allowed |
    | ``previous_id`` | producer id before the last change of the record |
    | ``next_id`` | producer id that follows once the markers are written, if the epochs of this one have run out |
    | ``client_version`` | 2 if each end bumps the epoch, else 0: the highest of the adds, then the end's |
    | ``principal`` | owner of the id, as ``User:alice``; empty in records of Kafka and of earlier versions |
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartitions, ...] = ()
    updated_ms: int = NO_TIMESTAMP
    started_ms: int = NO_TIMESTAMP
    previous_id: int = NO_PRODUCER_ID
    next_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    client_version: int = 0
    next_epoch: int = NO_EPOCH
    principal: str = ""


class TransactionRecord(NamedTuple):
    """A transactional id and its value; without a value, the tombstone of the id."""

    transactional_id: str
    value: StoredTransaction | None


class UnknownTransaction(NamedTuple):
    """A record whose key version is not known here, kept as bytes so that a snapshot does not lose it."""

    key: bytes
    value: bytes | None


def encode(record: TransactionRecord | UnknownTransaction) -> tuple[bytes, bytes | None]:
    """Return key and value as bytes.  Raises FormatError if a string is longer than ``STRING_BYTES_MAX``."""
    if isinstance(record, UnknownTransaction):
        return record
    key = _KEY_VERSION + string(record.transactional_id)
    return key, None if record.value is None else _encode_value(record.value)


def decode(key: bytes, value: bytes | None) -> TransactionRecord | UnknownTransaction:
    """Return the record of this key and value; ``UnknownTransaction`` for other key versions.

    Raises FormatError if the bytes do not match their version, or the value's version is not known.
    """
    try:
        reader = FieldReader(key)
        if reader.i16() != 0:
            return UnknownTransaction(key, value)
        return TransactionRecord(reader.string(), None if value is None else _decode_value(value))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FormatError(f"record of __transaction_state with key {key[:64]!r}: {error}") from error


def _encode_value(value: StoredTransaction) -> bytes:
    parts = [_HEAD.pack(1, value.producer_id, value.epoch, value.timeout_ms, value.state.code)]
    if value.state is TransactionState.EMPTY:
        parts.append(b"\0")  # Kafka writes null in this state alone
    else:
        parts.append(uvarint(len(value.partitions) + 1))
        for topic, _, partitions in value.partitions:
            count = len(partitions)
            parts += (compact(topic), uvarint(count + 1), struct.pack(f">{count}i", *partitions), b"\0")
    parts.append(_TIMES.pack(value.updated_ms, value.started_ms))
    tags = _tags(value)
    parts.append(uvarint(len(tags)))
    parts += tags
    return b"".join(parts)


def _tags(value: StoredTransaction) -> list[bytes]:
    """Return the tagged fields that differ from their defaults, in ascending order."""
    found = []
    if value.previous_id != NO_PRODUCER_ID:
        found.append(_LONG_TAG.pack(_PREVIOUS_ID_TAG, 8, value.previous_id))
    if value.next_id != NO_PRODUCER_ID:
        found.append(_LONG_TAG.pack(_NEXT_ID_TAG, 8, value.next_id))
    if value.client_version:
        found.append(_SHORT_TAG.pack(_CLIENT_VERSION_TAG, 2, value.client_version))
    if value.next_epoch != NO_EPOCH:
        found.append(_SHORT_TAG.pack(_NEXT_EPOCH_TAG, 2, value.next_epoch))
    ids = [_NO_ID if topic_id is None else topic_id.bytes for _, topic_id, _ in value.partitions]
    if any(each is not _NO_ID for each in ids):
        found.append(_tag(_TOPIC_IDS_HEAD, b"".join(ids)))
    if value.last_epoch != NO_EPOCH:
        found.append(_tag(_LAST_EPOCH_HEAD, _I16.pack(value.last_epoch)))
    if value.principal:
        found.append(_tag(_PRINCIPAL_HEAD, compact(value.principal)))
    return found


def _tag(head: bytes, data: bytes) -> bytes:
    return head + uvarint(len(data)) + data


def _decode_value(data: bytes) -> StoredTransaction:
    reader = FieldReader(data)
    reader.version("TransactionLogValue", 0, 1, flexible_since=1)
    producer_id, epoch, timeout_ms, code = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    state = stored_state(code)
    if state is None:
        raise FormatError(f"TransactionLogValue with status {code}, which no record has")
    topics = []
    for _ in range(reader.nullable_count() or 0):
        topics.append((reader.string(), tuple(reader.i32() for _ in range(reader.count()))))
        reader.skip_tags()
    updated_ms, started_ms = reader.i64(), reader.i64()
    tags = reader.tags() if reader.is_flexible else {}
    return StoredTransaction(
        producer_id,
        epoch,
        timeout_ms,
        state,
        _with_ids(topics, tags.get(_TOPIC_IDS_TAG)),
        updated_ms,
        started_ms,
        _number(tags, _PREVIOUS_ID_TAG, _I64, NO_PRODUCER_ID),
        _number(tags, _NEXT_ID_TAG, _I64, NO_PRODUCER_ID),
        _number(tags, _LAST_EPOCH_TAG, _I16, NO_EPOCH),
        _number(tags, _CLIENT_VERSION_TAG, _I16, 0),
        _number(tags, _NEXT_EPOCH_TAG, _I16, NO_EPOCH),
        _principal(tags.get(_PRINCIPAL_TAG)),
    )


def _with_ids(topics: list[tuple[str, tuple[int, ...]]], ids: bytes | None) -> tuple[TopicPartitions, ...]:
    if ids is None:
        return tuple(TopicPartitions(name, None, partitions) for name, partitions in topics)
    if len(ids) != _ID_BYTES * len(topics):
        raise FormatError(f"TransactionLogValue with {len(ids)} bytes of topic ids for {len(topics)} topics")
    return tuple(
        TopicPartitions(name, _topic_id(ids[at * _ID_BYTES : (at + 1) * _ID_BYTES]), partitions)
        for at, (name, partitions) in enumerate(topics)
    )


def _number(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    number: int
    (number,) = form.unpack(data)
    return number


def _principal(field: bytes | None) -> str:
    """Return the principal, as one object for all ids of a principal."""
    return "" if field is None else sys.intern(FieldReader(field, is_flexible=True).string())


@lru_cache(maxsize=_TOPIC_IDS_CACHED)
def _topic_id(data: bytes) -> uuid.UUID | None:
    """Return the topic id, as one object for all transactions; None for Kafka's zero id."""
    return uuid.UUID(bytes=data) if any(data) else None
