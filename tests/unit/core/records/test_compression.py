"""Recompressed batches, read by BMQ's own reader and by the parsers of kafka-python and aiokafka."""

from __future__ import annotations

import random
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch

from bmq.core.errors import FormatError
from bmq.core.records.batch import CODECS, HEADER_BYTES, Batch, Record, build_batch
from bmq.core.records.compression import Compression, compress, recompress
from bmq.core.records.reader import decompress, read_records

COMPRESSIONS = (
    Compression("none"),
    Compression("gzip", -1),
    Compression("gzip", 9),
    Compression("snappy"),
    Compression("lz4", 9),
    Compression("lz4", 1),
    Compression("lz4", 17),
    Compression("zstd", 3),
    Compression("zstd", -5),
)
each_compression = pytest.mark.parametrize("compression", COMPRESSIONS, ids=str)


def original(values: list[bytes]) -> Batch:
    records = [
        Record(key=b"k%d" % n, value=value, headers=[("h", b"1")], timestamp_delta=n) for n, value in enumerate(values)
    ]
    data = build_batch(records, base_timestamp=1000, producer_id=5, producer_epoch=6, base_sequence=7)
    return Batch(memoryview(data))


VALUES = [b"", b"x" * 200_000, random.Random(1).randbytes(150_000), b"abc" * 1000, b"last"]


@each_compression
def test_other_parsers_read_it(compression: Compression) -> None:
    """Several blocks of each framing, of bytes that compress and bytes that do not."""
    batch = original(VALUES)
    out = recompress(batch, compression)
    for parser in (KafkaBatch, AioBatch):
        read = parser(bytes(out))
        assert read.validate_crc()
        records = list(read)
        assert [record.value for record in records] == VALUES
        assert [record.key for record in records] == [b"k%d" % n for n in range(len(VALUES))]
        assert [record.timestamp for record in records] == [1000 + n for n in range(len(VALUES))]
        assert [list(record.headers) for record in records] == [[("h", b"1")]] * len(VALUES)


@pytest.mark.slow
@each_compression
@settings(deadline=None, max_examples=40)
@given(source=st.sampled_from(COMPRESSIONS), values=st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_only_codec_length_and_crc_change(compression: Compression, source: Compression, values: list[bytes]) -> None:
    plain = original(values)
    came = Batch(memoryview(recompress(plain, source)))
    out = Batch(memoryview(recompress(came, compression)))
    assert out.has_valid_crc
    assert CODECS[out.attributes & 7] == compression.codec
    assert out.size == len(out.data)
    assert out.data[:8] == plain.data[:8]
    assert out.data[12:17] == plain.data[12:17]
    assert out.data[23:HEADER_BYTES] == plain.data[23:HEADER_BYTES]
    assert list(read_records(out)) == list(read_records(plain))
    if compression.codec == "none":
        assert out.data == plain.data


@each_compression
@pytest.mark.parametrize("size", [0, 1, (32 << 10) - 1, 32 << 10, 64 << 10, (64 << 10) + 1, 300_000])
def test_at_the_edges_of_blocks(compression: Compression, size: int) -> None:
    for data in (bytes(size), random.Random(2).randbytes(size)):
        squeezed = memoryview(bytes(compress(compression, memoryview(data))))
        assert decompress(compression.number, squeezed, 1 << 20) == data


def test_lz4_frames_are_what_javas_reader_takes() -> None:
    """``Lz4BlockInputStream``: version 1, independent blocks; it refuses dependent ones."""
    head = bytes(compress(Compression("lz4", 9), memoryview(b"abc")))[:7]
    magic, flags, descriptor, checksum = struct.unpack("<IBBB", head)
    assert magic == 0x184D2204
    assert flags >> 6 == 1
    assert flags & 0x20, "independent"
    assert not flags & 0x1F, "no checksums, no sizes, no dictionary"
    assert descriptor == 4 << 4, "64 KB"
    assert checksum == 0x82, "second byte of xxHash32 of the two before it"


def test_snappy_has_xerials_head() -> None:
    assert (
        bytes(compress(Compression("snappy"), memoryview(b"abc")))[:16]
        == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    )


def test_damaged_records() -> None:
    batch = original([b"x"])
    batch.attributes |= Compression("gzip").number
    with pytest.raises(FormatError, match="gzip"):
        recompress(batch, Compression("none"))


def test_a_bomb_is_refused() -> None:
    """A few bytes that would be gigabytes."""
    batch = Batch(memoryview(recompress(original([bytes(4 << 20)]), Compression("zstd", 3))))
    assert batch.size < 5_000
    with pytest.raises(FormatError, match="limit"):
        recompress(batch, Compression("none"), bytes_max=1 << 20)
