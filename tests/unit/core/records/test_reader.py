"""Records of every codec are read as kafka-python reads them; garbage gives FormatError, a bomb no memory."""

from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc
import warnings
from collections.abc import Iterator

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    ATTRIBUTES_LOW,
    CODECS,
    HEADER_BYTES,
    Batch,
    Record,
    build_batch,
    encode_varint,
)
from bmq.core.records.reader import (
    StoredRecord,
    TimestampAndOffset,
    decompress,
    first_not_older,
    read_records,
    read_varint,
)
from tests.harness.cleaned import cleaned_batch
from tests.harness.seeds import amount, example_count

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib's, while kafka-python loads its schemas
    from kafka.errors import CorruptRecordError
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

Item = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

_nullable = st.none() | st.binary(max_size=60)
_headers = st.lists(st.tuples(st.text(max_size=8), _nullable), max_size=3)
_items = st.lists(st.tuples(st.integers(0, 1 << 50), _nullable, _nullable, _headers), min_size=1, max_size=20)
PLAIN: list[Item] = [
    (1000, b"k", b"v" * 5000, [("name", b"value"), ("nothing", None)]),
    (1001, None, None, []),
    (999, b"", b"", [("é", b"\xff")]),
]


def built_by_kafka(items: list[Item], codec: int) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec, batch_size=1 << 24)
    for timestamp, key, value, headers in items:
        assert builder.append(timestamp=timestamp, key=key, value=value, headers=headers) is not None
    builder.close()
    return bytes(builder.buffer())


def read_by_kafka(data: bytes) -> list[StoredRecord]:
    (batch,) = MemoryRecords(data)
    return [StoredRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def attributes_of(data: bytes | bytearray) -> Iterator[int]:
    """Yield the attributes byte of each record; ``data`` is one valid batch."""
    batch = Batch(memoryview(data))
    plain, at = decompress(batch.attributes & 7, batch.data[HEADER_BYTES:], 1 << 24), 0
    for _ in range(batch.count):
        length, at = read_varint(plain, at)
        yield plain[at]
        at += length


def records_of(data: bytes | bytearray, **options: int) -> list[StoredRecord]:
    return list(read_records(Batch(memoryview(data)), **options))


def with_body(body: bytes, *, codec: int = 0, count: int = 1) -> bytearray:
    """Return a batch with a correct header around ``body``."""
    data = build_batch([Record()] * count, attributes=codec)[:HEADER_BYTES] + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_each_codec_as_kafka_python_reads_it(codec: int) -> None:
    data = built_by_kafka(PLAIN, codec)
    assert Batch(memoryview(data)).attributes & 7 == codec
    records = records_of(data)
    assert records == read_by_kafka(data)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in records] == PLAIN


@settings(max_examples=60, deadline=None)
@given(items=_items, codec=st.integers(0, 4))
def test_any_records_as_kafka_python_reads_them(items: list[Item], codec: int) -> None:
    data = built_by_kafka(items, codec)
    assert records_of(data) == read_by_kafka(data)


def test_our_own_builder_is_read_back() -> None:
    data = build_batch([Record(key=b"a", value=b"b", timestamp_delta=5, headers=[("h", None)])], base_offset=7)
    assert records_of(data) == [StoredRecord(7, 5, b"a", b"b", (("h", None),))]


THREE = bytes(build_batch([Record(value=b"%d" % n, timestamp_delta=10 * n) for n in range(3)], base_timestamp=100))


@pytest.mark.parametrize("horizon", [None, 5_000, 1])
@pytest.mark.parametrize("kept", [{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}])
def test_the_first_record_not_older_is_one_that_is_there(kept: set[int], horizon: int | None) -> None:
    """Neither the base timestamp of a batch that was cleaned, nor its base offset, is that of its first record."""
    batch = Batch(memoryview(cleaned_batch(THREE, kept, horizon=horizon)))
    for timestamp in range(95, 125, 5):
        left = [TimestampAndOffset(n, 100 + 10 * n) for n in sorted(kept) if 100 + 10 * n >= timestamp]
        assert first_not_older(batch, timestamp, 0, bytes_max=1000) == (left[0] if left else None)
    first = TimestampAndOffset(0, batch.first_timestamp) if batch.first_timestamp is not None else None
    assert first in (None, TimestampAndOffset(0, 100))
    assert (first is not None) == (kept == {0, 1, 2} and horizon is None)


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_without_records_has_none_that_is_young(codec: int) -> None:
    """Kafka leaves such a batch the largest timestamp of what was removed."""
    data = bytearray(cleaned_batch(THREE, ()))
    data[ATTRIBUTES_LOW] |= codec
    batch = Batch(memoryview(data))
    assert (batch.count, batch.max_timestamp, batch.first_timestamp) == (0, 120, None)
    assert first_not_older(batch, 50, 0, bytes_max=1000) is None


def test_log_append_time_is_every_records_time() -> None:
    data = build_batch([Record(timestamp_delta=1), Record(timestamp_delta=2)], base_timestamp=10)
    batch = Batch(memoryview(data))
    batch.set_append_time(500)
    assert [record.timestamp for record in read_records(batch)] == [500, 500]
    assert batch.first_timestamp == 500


def test_a_raw_snappy_block_without_framing() -> None:
    plain = built_by_kafka(PLAIN, 0)
    body = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    assert [r.value for r in records_of(with_body(body, codec=2, count=3))] == [item[2] for item in PLAIN]


def test_gzip_of_several_members() -> None:
    assert bytes(decompress(1, memoryview(gzip.compress(b"one") + gzip.compress(b"two")), 100)) == b"onetwo"


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
def test_a_bomb_meets_the_limit_before_it_costs_memory(codec: int) -> None:
    size = amount(16, 64) << 20
    data = built_by_kafka([(0, None, bytes(size), [])], codec)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=rf"{CODECS[codec]} data decompresses to more than the limit of 1048576"):
            records_of(data, bytes_max=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert len(records_of(data)[0].value or b"") == size


@pytest.mark.parametrize("codec", range(1, 5), ids=CODECS[1:])
def test_compressed_data_cut_short_is_named(codec: int) -> None:
    data = built_by_kafka(PLAIN, codec)
    with pytest.raises(FormatError, match=CODECS[codec]):
        records_of(with_body(data[HEADER_BYTES:-3], codec=codec, count=3))


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(FormatError, match="unknown codec 5"):
        records_of(with_body(b"", codec=5))


def _record(*fields: bytes, length: int | None = None) -> bytes:
    body = b"".join(fields)
    return encode_varint(len(body) if length is None else length) + body


_NULL, _ZERO = encode_varint(-1), encode_varint(0)
_HEAD = (b"\0", _ZERO, _ZERO)  # attributes, timestamp delta, offset delta


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"record 0 of 1, at byte 0 of 0: the bytes end first"),
        (_record(*_HEAD, _NULL, _NULL, _ZERO, length=100), "its length is 100, 6 bytes are left"),
        (_record(*_HEAD, _NULL, _NULL, _ZERO, length=-3), "its length is -3"),
        (_record(*_HEAD, _NULL, _NULL, _ZERO, b"xx"), "fields end 2 bytes before"),
        (_record(*_HEAD, encode_varint(50), b"k"), "key of 50 bytes, 1 are left"),
        (_record(*_HEAD, _NULL, encode_varint(-2), _ZERO), "value of -2 bytes"),
        (_record(*_HEAD, _NULL, _NULL, encode_varint(1 << 20)), "1048576 headers in 0 bytes"),
        (_record(*_HEAD, _NULL, _NULL, encode_varint(-1)), "-1 headers"),
        (_record(*_HEAD, _NULL, _NULL, encode_varint(1), _NULL, _NULL), "a header without a name"),
        (_record(b"\0", _ZERO, encode_varint(4), _NULL, _NULL, _ZERO), r"offset delta 4 is not in \(-1, 0\]"),
        (b"\xff" * 12, "a number of over 5 bytes"),
        (_record(*_HEAD, _NULL, _NULL, _ZERO) + b"zz", "2 bytes follow the last of 1 records"),
    ],
)
def test_faults_are_named(body: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        records_of(with_body(body))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints_round_trip(value: int) -> None:
    data = memoryview(encode_varint(value) + b"\x55")
    assert read_varint(data, 0, 10) == (value, len(data) - 1)


@settings(max_examples=example_count(50, 2_000), deadline=None)
@given(body=st.binary(max_size=200), codec=st.integers(0, 7), count=st.integers(-2, 5))
def test_garbage_is_a_format_error_or_nothing(body: bytes, codec: int, count: int) -> None:
    data = with_body(body, codec=codec)
    struct.pack_into(">i", data, 57, count)
    with contextlib.suppress(FormatError):
        records_of(data, bytes_max=1 << 20)


@settings(max_examples=example_count(50, 2_000), deadline=None)
@given(items=_items, codec=st.integers(0, 4), where=st.integers(0, 1 << 30), by=st.integers(1, 255))
def test_a_changed_byte_gives_an_error_or_what_kafka_python_reads(
    items: list[Item], codec: int, where: int, by: int
) -> None:
    data = bytearray(built_by_kafka(items, codec))
    data[HEADER_BYTES + where % (len(data) - HEADER_BYTES)] ^= by
    try:
        ours = records_of(data, bytes_max=1 << 24)
    except FormatError:
        return
    try:
        theirs = read_by_kafka(bytes(data))
    except (CorruptRecordError, UnicodeDecodeError, RuntimeError, OSError, EOFError):
        return
    if all(attributes < 0x80 for attributes in attributes_of(data)):  # kafka-python takes this byte for a varint
        assert ours == theirs
