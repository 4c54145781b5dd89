"""Records of ``__transaction_state`` against Kafka's layout, written down byte by byte."""

from __future__ import annotations

import struct
import uuid

import pytest

from bmq.coordinator.transaction.records import (
    StoredTransaction,
    TopicPartitions,
    TransactionRecord,
    UnknownTransaction,
    decode,
    encode,
)
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.errors import FormatError

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
KEY = b"\0\0" + b"\0\2tx"
ONGOING = StoredTransaction(
    7, 3, 60_000, TransactionState.ONGOING,
    (TopicPartitions("orders", A, (0, 5)), TopicPartitions("x", None, (1,))),
    updated_ms=1_000, started_ms=900, previous_id=6, next_id=8, last_epoch=2, client_version=2, next_epoch=1,
    principal="User:alice",
)  # fmt: skip


def test_a_value_has_kafkas_layout_and_bmqs_tags() -> None:
    key, value = encode(TransactionRecord("tx", ONGOING))
    assert key == KEY
    assert value == b"".join(
        (
            struct.pack(">hqhib", 1, 7, 3, 60_000, 1),
            b"\3",  # two topics
            b"\7orders" + b"\3" + struct.pack(">ii", 0, 5) + b"\0",
            b"\2x" + b"\2" + struct.pack(">i", 1) + b"\0",
            struct.pack(">qq", 1_000, 900),
            b"\7",  # seven tagged fields, in ascending order
            b"\0\x08" + struct.pack(">q", 6),
            b"\1\x08" + struct.pack(">q", 8),
            b"\2\2" + struct.pack(">h", 2),
            b"\3\2" + struct.pack(">h", 1),
            b"\x90\x4e\x20" + A.bytes + bytes(16),
            b"\x91\x4e\2" + struct.pack(">h", 2),
            b"\x92\x4e\x0b" + b"\x0bUser:alice",
        )
    )
    assert decode(key, value) == TransactionRecord("tx", ONGOING)


def test_an_empty_id_has_null_for_its_partitions_and_no_tag_that_says_nothing() -> None:
    empty = StoredTransaction(7, 0, 60_000, TransactionState.EMPTY, updated_ms=1_000)
    key, value = encode(TransactionRecord("tx", empty))
    assert value == struct.pack(">hqhib", 1, 7, 0, 60_000, 0) + b"\0" + struct.pack(">qq", 1_000, -1) + b"\0"
    assert decode(key, value) == TransactionRecord("tx", empty)


def test_a_completed_transaction_has_an_empty_array() -> None:
    done = StoredTransaction(7, 0, 1, TransactionState.COMPLETE_ABORT, updated_ms=2, started_ms=1)
    key, value = encode(TransactionRecord("tx", done))
    assert value == struct.pack(">hqhib", 1, 7, 0, 1, 5) + b"\1" + struct.pack(">qq", 2, 1) + b"\0"
    assert decode(key, value) == TransactionRecord("tx", done)


def test_version_0_of_older_kafka_is_read() -> None:
    head = struct.pack(">hqhib", 0, 7, 3, 60_000, 3)
    topics = struct.pack(">i", 1) + b"\0\1t" + struct.pack(">iii", 2, 4, 5)
    times = struct.pack(">qq", 1_000, 900)
    expected = StoredTransaction(
        7, 3, 60_000, TransactionState.PREPARE_ABORT, (TopicPartitions("t", None, (4, 5)),), 1_000, 900
    )
    assert decode(KEY, head + topics + times) == TransactionRecord("tx", expected)
    nothing = struct.pack(">hqhib", 0, 7, 3, 60_000, 0) + struct.pack(">i", -1) + times
    found = decode(KEY, nothing)
    assert isinstance(found, TransactionRecord)
    assert found.value is not None
    assert found.value.partitions == ()


def test_tags_of_later_versions_are_skipped() -> None:
    empty = StoredTransaction(7, 0, 60_000, TransactionState.EMPTY, updated_ms=1_000)
    _, value = encode(TransactionRecord("tx", empty))
    assert value is not None
    later = value[:-1] + b"\1" + b"\x63\2ab"
    assert decode(KEY, later) == TransactionRecord("tx", empty)


def test_one_name_with_two_ids_is_two_topics() -> None:
    topics = (TopicPartitions("t", A, (0,)), TopicPartitions("t", B, (0,)))
    record = TransactionRecord("tx", ONGOING._replace(partitions=topics))
    assert decode(*encode(record)) == record


def test_a_tombstone_and_keys_of_other_versions() -> None:
    assert encode(TransactionRecord("tx", None)) == (KEY, None)
    assert decode(KEY, None) == TransactionRecord("tx", None)
    unknown = UnknownTransaction(b"\0\1later", b"value")
    assert decode(*unknown) == unknown
    assert encode(unknown) == (b"\0\1later", b"value")


@pytest.mark.parametrize("cut", range(1, len(encode(TransactionRecord("tx", ONGOING))[1] or b"")))
def test_a_value_that_is_cut_short_is_a_format_error(cut: int) -> None:
    _, value = encode(TransactionRecord("tx", ONGOING))
    assert value is not None
    with pytest.raises(FormatError):
        decode(KEY, value[:cut])


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">hqhib", 2, 7, 0, 1, 0),
        struct.pack(">hqhib", 1, 7, 0, 1, 6) + b"\0" + bytes(16) + b"\0",  # Dead is never stored
        struct.pack(">hqhib", 1, 7, 0, 1, 1) + b"\2\2t\2" + bytes(4) + b"\0" + bytes(16) + b"\1\x90\x4e\1a",
    ],
)
def test_values_that_no_version_writes_are_format_errors(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode(KEY, value)
