"""Keys and values of ``__consumer_offsets``, in Kafka's own format.

Schemas: Kafka's ``group-coordinator/src/main/resources/common/message/*.json``.  Each key and value begins with its
version (i16); integers are big-endian; a string is an i16 length and UTF-8, bytes an i32 length, -1 for null::

    OffsetCommitKey    0-1   group string, topic string, partition i32
    OffsetCommitValue  0-4   offset i64, [3+] leaderEpoch i32, metadata string, commitTimestamp i64,
                             [1] expireTimestamp i64; [4+] flexible, tagged fields:
                               0: topic id, 10000 (not Kafka's): expireTimestamp i64
    GroupMetadataKey   2     group string
    GroupMetadataValue 0-4   protocolType string, generation i32, protocol ?string, leader ?string,
                             [2+] currentStateTimestamp i64, members array of
                               (memberId string, [3+] groupInstanceId ?string, clientId string, clientHost string,
                                [1+] rebalanceTimeout i32, sessionTimeout i32, subscription bytes, assignment bytes);
                             [4+] flexible, tagged fields: 10000 (not Kafka's): principal string

Records are written as by Kafka 4.3: keys 1 and 2, group values 3, offset values 4 with the topic id.  Two things are
written differently.  An expiry (from OffsetCommit 2-4): Kafka uses value 1 for it, which has no field for a topic id,
so a later topic of the same name would take over the offsets of such clients.  And a group with a
principal is written as value 4, since value 3 has no place for the principal.  Kafka reads value 4 from 3.5 on, as it
reads offset values 4.  A null value is a tombstone.  Keys of other versions (of the newer group protocols) are
kept as they are: see ``Unknown``.
"""

from __future__ import annotations

import struct
import sys
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bmq.coordinator.record_fields import STRING_BYTES_MAX, FieldReader, compact, string
from bmq.coordinator.stored_members import (
    MEMBER_NUMBERS,
    TIMEOUTS,
    StoredMember,
    decode_compact_members,
    decode_members,
)
from bmq.core.errors import FormatError
from bmq.core.wire.primitives import uvarint

NO_EXPIRY = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_OFFSET_HEAD = struct.Struct(">hqi")  # version, offset, leader epoch
_TOPIC_ID_TAG = 0
_EXPIRY_TAG = 10_000
"""Tag of the expiry.  Kafka numbers its tagged fields from 0 and skips unknown ones (KIP-915)."""
_EXPIRY_HEAD = b"\x90\x4e\x08"  # the tag, and 8 bytes
_PRINCIPAL_TAG = 10_000
"""Tag of the principal in a group's value."""
_PRINCIPAL_HEAD = b"\x01\x90\x4e"  # one tagged field, with this tag
_OFFSET_KEY_1 = b"\x00\x01"
_OFFSET_VALUE_4 = b"\x00\x04"
_NULL_OR_LONG = frozenset({0, *range(0x80, 0x100)})
"""First bytes of a compact string's length that mean null, or that are followed by more of the length."""
_TOPIC_ID_ALONE = b"\x01\x00\x10"  # one tagged field, tag 0, of 16 bytes
_TOPIC_IDS_CACHED = 16_384


class Offset(NamedTuple):
    """A committed offset.  Timestamps in ms of wall time; ``expire_timestamp`` only of OffsetCommit 2-4.

    ``topic_id`` is None in records that were written before ids were kept: as in Kafka, such an offset belongs to the
    present topic of its name.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = 0
    expire_timestamp: int = NO_EXPIRY
    topic_id: uuid.UUID | None = None

    def is_of(self, topic_id: uuid.UUID) -> bool:
        """Return True unless the offset was committed for another topic of the same name."""
        return self.topic_id is None or self.topic_id == topic_id


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A generation of a classic group, as it is restored after a failover.

    ``principal``: the owner of the group, as ``User:alice``; "" in records of Kafka and earlier versions.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int = NO_TIMESTAMP
    members: tuple[StoredMember, ...] = ()
    principal: str = ""


class OffsetRecord(NamedTuple):
    """A committed offset and its key; without a value, the tombstone of the offset."""

    group_id: str
    topic: str
    partition: int
    value: Offset | None


class GroupRecord(NamedTuple):
    """A stored group and its key; without a value, the tombstone of the group, but not of its offsets."""

    group_id: str
    value: StoredGroup | None


class Unknown(NamedTuple):
    """A record whose key version is not known here, kept as bytes so that a snapshot does not lose it."""

    key: bytes
    value: bytes | None


CoordinatorRecord = OffsetRecord | GroupRecord | Unknown


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return key and value as bytes.  Raises FormatError if a string is longer than ``STRING_BYTES_MAX``."""
    if isinstance(record, OffsetRecord):
        key = _I16.pack(1) + string(record.group_id) + string(record.topic) + _I32.pack(record.partition)
        return key, None if record.value is None else _encode_offset(record.value)
    if isinstance(record, GroupRecord):
        key = _I16.pack(2) + string(record.group_id)
        return key, None if record.value is None else _encode_group(record.value)
    return record


def decode(key: bytes, value: bytes | None) -> CoordinatorRecord:
    """Return the record of this key and value; ``Unknown`` for other key versions.

    Raises FormatError if the bytes do not match their version, or the value's version is not known.
    """
    try:
        if key[:2] == _OFFSET_KEY_1 and value is not None and value[:2] == _OFFSET_VALUE_4:
            found = _usual_offset(key, value)
            if found is not None:
                return found
        reader = FieldReader(key)
        version = reader.i16()
        if version in (0, 1):
            group_id, topic, partition = reader.string(), reader.string(), reader.i32()
            return OffsetRecord(group_id, topic, partition, None if value is None else _decode_offset(value))
        if version == 2:
            return GroupRecord(reader.string(), None if value is None else _decode_group(value))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FormatError(f"record of __consumer_offsets with key {key[:64]!r}: {error}") from error
    return Unknown(key, value)


def _usual_offset(key: bytes, value: bytes) -> OffsetRecord | None:
    """Return an offset of the most common form, decoded without a call for each field; None if it has another form.

    The general decoder takes the others, and reports what is wrong with them.
    """
    at = 4 + (key[2] << 8 | key[3])
    topic_at = at + 2
    end = topic_at + (key[at] << 8 | key[at + 1])
    metadata_end = _OFFSET_HEAD.size + value[_OFFSET_HEAD.size]
    if end + 4 != len(key) or value[_OFFSET_HEAD.size] in _NULL_OR_LONG or len(value) != metadata_end + 27:
        return None
    if value[metadata_end + 8 : metadata_end + 11] != _TOPIC_ID_ALONE:
        return None
    (partition,) = _I32.unpack_from(key, end)
    _, offset, leader_epoch = _OFFSET_HEAD.unpack_from(value)
    (commit_timestamp,) = _I64.unpack_from(value, metadata_end)
    metadata = value[_OFFSET_HEAD.size + 1 : metadata_end].decode()
    topic_id = _topic_id(value[metadata_end + 11 :])
    kept = Offset(offset, leader_epoch, metadata, commit_timestamp, NO_EXPIRY, topic_id)
    return OffsetRecord(key[4:at].decode(), key[topic_at:end].decode(), partition, kept)


def _encode_offset(value: Offset) -> bytes:
    head = _OFFSET_HEAD.pack(4, value.offset, value.leader_epoch)
    metadata = value.metadata.encode()
    if len(metadata) > STRING_BYTES_MAX:
        raise FormatError(f"metadata of {len(metadata)} bytes: the format takes {STRING_BYTES_MAX}")
    has_expiry = value.expire_timestamp != NO_EXPIRY
    parts = [head, uvarint(len(metadata) + 1), metadata, _I64.pack(value.commit_timestamp)]
    parts.append(uvarint((value.topic_id is not None) + has_expiry))
    if value.topic_id is not None:
        parts += (b"\x00\x10", value.topic_id.bytes)
    if has_expiry:
        parts += (_EXPIRY_HEAD, _I64.pack(value.expire_timestamp))
    return b"".join(parts)


def _decode_offset(data: bytes) -> Offset:
    reader = FieldReader(data)
    version = reader.version("OffsetCommitValue", 0, 4)
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp = reader.i64()
    if version < 4:
        expiry = reader.i64() if version == 1 else NO_EXPIRY
        return Offset(offset, leader_epoch, metadata, commit_timestamp, expiry)
    tags = reader.tags()
    topic_id, expiry_field = tags.get(_TOPIC_ID_TAG), tags.get(_EXPIRY_TAG)
    if topic_id is not None and len(topic_id) != 16:
        raise FormatError(f"OffsetCommitValue with a topic id of {len(topic_id)} bytes")
    (expiry,) = (NO_EXPIRY,) if expiry_field is None else _I64.unpack(expiry_field)
    return Offset(offset, leader_epoch, metadata, commit_timestamp, expiry, _topic_id(topic_id))


@lru_cache(maxsize=_TOPIC_IDS_CACHED)
def _topic_id(data: bytes | None) -> uuid.UUID | None:
    """Return the topic id, as one object for all offsets of a topic; None for Kafka's zero id."""
    return uuid.UUID(bytes=data) if data is not None and any(data) else None


def _encode_group(value: StoredGroup) -> bytes:
    if value.principal:
        return _encode_owned_group(value)
    parts = [
        _I16.pack(3),
        string(value.protocol_type),
        _I32.pack(value.generation),
        string(value.protocol),
        string(value.leader),
        _I64.pack(value.state_timestamp),
        _I32.pack(len(value.members)),
    ]
    pack = _I32.pack
    for member_id, instance_id, client_id, host, rebalance_ms, session_ms, subscription, assignment in value.members:
        parts += (
            string(member_id),
            string(instance_id),
            string(client_id),
            string(host),
            MEMBER_NUMBERS.pack(rebalance_ms, session_ms, len(subscription)),
            subscription,
            pack(len(assignment)),
            assignment,
        )
    return b"".join(parts)


def _encode_owned_group(value: StoredGroup) -> bytes:
    """Encode a group that has a principal: version 4."""
    parts = [
        _I16.pack(4),
        compact(value.protocol_type),
        _I32.pack(value.generation),
        compact(value.protocol),
        compact(value.leader),
        _I64.pack(value.state_timestamp),
        uvarint(len(value.members) + 1),
    ]
    for member_id, instance_id, client_id, host, rebalance_ms, session_ms, subscription, assignment in value.members:
        parts += (
            compact(member_id),
            compact(instance_id),
            compact(client_id),
            compact(host),
            TIMEOUTS.pack(rebalance_ms, session_ms),
            uvarint(len(subscription) + 1),
            subscription,
            uvarint(len(assignment) + 1),
            assignment,
            b"\0",
        )
    principal = compact(value.principal)
    parts += (_PRINCIPAL_HEAD, uvarint(len(principal)), principal)
    return b"".join(parts)


def _decode_group(data: bytes) -> StoredGroup:
    reader = FieldReader(data)
    version = reader.version("GroupMetadataValue", 0, 4)
    protocol_type, generation = reader.string(), reader.i32()
    protocol, leader = reader.nullable(), reader.nullable()
    timestamp = reader.i64() if version >= 2 else NO_TIMESTAMP
    count = reader.count()
    members = decode_members(data, reader.at, count) if version == 3 else None
    if version == 4 and (found := decode_compact_members(data, reader.at, count)) is not None:
        members, end = found
        reader.skip_to(end)
    if members is None:
        members = tuple(_decode_member(reader, version) for _ in range(count))
    field = reader.tags().get(_PRINCIPAL_TAG) if version >= 4 else None
    principal = "" if field is None else sys.intern(FieldReader(field, is_flexible=True).string())
    return StoredGroup(protocol_type, generation, protocol, leader, timestamp, members, principal)


def _decode_member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_ms = reader.i32() if version >= 1 else -1
    session_ms = reader.i32()
    subscription, assignment = reader.data(), reader.data()
    reader.skip_tags()
    if rebalance_ms == -1:
        rebalance_ms = session_ms
    return StoredMember(
        member_id, instance_id, client_id, client_host, rebalance_ms, session_ms, subscription, assignment
    )
