"""The bytes of cleaned batches (storage/cleaning/batch_writer.py)."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    CODECS,
    CRC_START,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Record,
    build_batch,
    encode_varint,
)
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.reader import read_records
from bmq.storage.cleaning.batch_writer import CleanedRecord, KeptRecords, cut_records, empty_batch, write_batch
from bmq.storage.cleaning.retention import DELETE_HORIZON, NO_HORIZON

TIMES = st.integers(-1, 1 << 42)


def batch_of(records: list[Record], *, codec: str = "none", attributes: int = 0, base_timestamp: int = 5_000) -> Batch:
    built = build_batch(
        records,
        base_offset=100,
        base_timestamp=base_timestamp,
        producer_id=77,
        producer_epoch=2,
        base_sequence=30,
        attributes=attributes,
        leader_epoch=9,
    )
    batch = Batch(memoryview(built))
    return batch if codec == "none" else Batch(memoryview(recompress(batch, Compression(codec, 3))))


def with_count(batch: Batch, count: int) -> Batch:
    """Return the batch with another count of records, and the right CRC."""
    data = bytearray(batch.data)
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_START:]))
    return Batch(memoryview(data))


def records_of(batch: Batch) -> list[CleanedRecord]:
    return list(cut_records(batch))


def written_with(batch: Batch, records: list[CleanedRecord], horizon: int = NO_HORIZON) -> Batch:
    """Return the written batch with these of its records."""
    kept = KeptRecords(batch)
    for record in records:
        kept.add(record)
    return Batch(memoryview(write_batch(batch, kept, horizon)))


THREE = [
    Record(key=b"a", value=b"1", headers=[("h\xe9", b"x"), ("none", None)], timestamp_delta=3),
    Record(key=None, value=None, timestamp_delta=0),
    Record(key=b"c", value=b"3" * 300, timestamp_delta=1),
]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_keeps_all_but_the_records_that_went(codec: str) -> None:
    batch = batch_of(THREE, codec=codec, attributes=TRANSACTIONAL)
    records = records_of(batch)
    assert [(record.offset, record.key, record.has_value) for record in records] == [
        (100, b"a", True),
        (101, None, False),
        (102, b"c", True),
    ]
    written = written_with(batch, records[1:])
    assert written.has_valid_crc
    assert written.size == len(written.data)
    for name in (
        "base_offset", "last_offset_delta", "leader_epoch", "attributes", "base_timestamp", "producer_id",
        "producer_epoch", "base_sequence", "last_sequence",
    ):  # fmt: skip
        assert getattr(written, name) == getattr(batch, name), name
    assert written.count == 2
    assert written.max_timestamp == 5_001, "the largest of the records that stay"
    assert list(read_records(written)) == list(read_records(batch))[1:]


@pytest.mark.parametrize("codec", CODECS)
def test_a_horizon_is_the_base_timestamp_and_changes_no_records_time(codec: str) -> None:
    batch = batch_of(THREE, codec=codec)
    written = written_with(batch, records_of(batch), 1 << 41)
    assert written.attributes == batch.attributes | DELETE_HORIZON
    assert (written.base_timestamp, written.max_timestamp) == (1 << 41, 5_003)
    assert list(read_records(written)) == list(read_records(batch))
    again = written_with(written, records_of(written)[:1])
    assert again.attributes == written.attributes
    assert list(read_records(again)) == list(read_records(batch))[:1]


def test_log_append_time_is_the_batchs() -> None:
    batch = batch_of(THREE)
    batch.set_append_time(9_000)
    written = written_with(batch, records_of(batch)[1:], 1 << 41)
    assert written.attributes & LOG_APPEND_TIME
    assert written.max_timestamp == 9_000
    assert [record.timestamp for record in read_records(written)] == [9_000, 9_000]


@pytest.mark.slow
@given(st.lists(TIMES, min_size=1, max_size=5), TIMES, TIMES)
def test_records_times_stay_whatever_the_horizon(times: list[int], base: int, horizon: int) -> None:
    batch = batch_of([Record(key=b"k", timestamp_delta=time - base) for time in times], base_timestamp=base)
    written = written_with(batch, records_of(batch), max(horizon, 0))
    assert [record.timestamp for record in read_records(written)] == times
    assert written.max_timestamp == max(times)


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_batch_is_the_header_of_its_producers_last_sequence(codec: str) -> None:
    batch = batch_of(THREE, codec=codec, attributes=TRANSACTIONAL | DELETE_HORIZON)
    written = Batch(memoryview(empty_batch(batch)))
    assert written.has_valid_crc
    assert (written.size, len(written.data), written.count) == (61, 61, 0)
    assert (written.base_offset, written.last_offset, written.leader_epoch) == (100, 102, 9)
    assert (written.producer_id, written.producer_epoch, written.last_sequence) == (77, 2, 32)
    assert (written.attributes, written.base_timestamp) == (TRANSACTIONAL, -1)
    assert written.max_timestamp == batch.max_timestamp
    assert records_of(written) == []
    assert bytes(empty_batch(written)) == bytes(written.data)


def test_a_batch_that_cannot_be_read_is_named() -> None:
    good = batch_of(THREE)
    for batch, message in (
        (with_count(good, 2), "bytes follow the last of 2 records"),
        (with_count(good, 4), "bytes end first"),
    ):
        with pytest.raises(FormatError, match=f"the batch at offset 100 cannot be cleaned: .*{message}"):
            records_of(batch)
    packed = batch_of(THREE, codec="zstd")
    packed.data[70] ^= 0xFF
    with pytest.raises(FormatError, match="the batch at offset 100"):
        records_of(packed)
    with pytest.raises(FormatError, match="the batch at offset 100"):
        list(cut_records(batch_of(THREE, codec="gzip"), bytes_max=100))


def test_records_that_lie_about_their_lengths_are_named() -> None:
    for at, byte, message in ((61, 0x7E, "a record of 63 bytes"), (65, 0x7E, "a key or value of 63 bytes")):
        data = build_batch([Record(key=b"a", value=b"1")], base_offset=100)
        data[at] = byte
        with pytest.raises(FormatError, match=message):
            records_of(Batch(memoryview(data)))
    data = build_batch([Record(key=b"a", value=b"1")], base_offset=100)
    data[64] = 2  # offset delta 1, of a batch whose last is 0
    with pytest.raises(FormatError, match="offset delta 1 is not in"):
        records_of(Batch(memoryview(data)))
    data[61] = 1  # a length of -1
    with pytest.raises(FormatError, match="a record of -1 bytes"):
        records_of(Batch(memoryview(data)))


EDGES = st.sampled_from([-(1 << 63), -(1 << 62), -1, 0, 1 << 62, (1 << 63) - 1])


@pytest.mark.slow
@given(st.lists(EDGES, min_size=1, max_size=4), EDGES, EDGES)
def test_times_at_the_ends_of_64_bits_stay(deltas: list[int], base: int, horizon: int) -> None:
    """A client may send any base timestamp with any delta: the sum wraps for all clients, so it does here."""
    data = build_batch([Record(key=b"k", timestamp_delta=delta) for delta in deltas], base_offset=100)
    struct.pack_into(">qq", data, 27, base, 0)
    batch = Batch(memoryview(data))
    times = [(base + delta + (1 << 63)) % (1 << 64) - (1 << 63) for delta in deltas]
    assert [record.timestamp for record in read_records(batch)] == times
    written = written_with(batch, records_of(batch), max(horizon, 0))
    assert written.has_valid_crc
    assert [record.timestamp for record in read_records(written)] == times
    assert written.max_timestamp == max(-1, *times)


def test_a_delta_of_more_than_64_bits_is_cut_as_clients_cut_it() -> None:
    longest = b"\x80" * 9 + b"\x7e"  # ten bytes of seven bits: all that is set lies above the 64th
    body = b"\x00" + longest + b"\x00\x02k\x02v\x00"
    data = build_batch([], base_offset=100, base_timestamp=5_000) + encode_varint(len(body)) + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, 0)
    batch = with_count(Batch(memoryview(data)), 1)
    assert [record.timestamp for record in read_records(batch)] == [5_000]
    assert written_with(batch, records_of(batch)).max_timestamp == 5_000


@pytest.mark.slow
def test_a_batch_of_many_small_records_is_cut_in_little_memory() -> None:
    count = 20_000
    batch = batch_of([Record(key=b"", value=None)] * count, codec="zstd")
    tracemalloc.start()
    try:
        assert sum(record.is_tombstone for record in cut_records(batch)) == count
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50 * count, f"{peak // count} bytes a record"
