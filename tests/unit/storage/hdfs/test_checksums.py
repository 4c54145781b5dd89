"""The checksums of a block's chunks, by the type that the block's writer has chosen."""

from __future__ import annotations

import zlib

import pytest
from crc32c import crc32c

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.checksums import crc_function
from bmq.storage.hdfs.data_transfer import CHECKSUM_CRC32C, WireError

DATA = memoryview(bytes(range(10)))


def test_each_chunk_has_its_checksum_and_the_last_one_may_be_short() -> None:
    by_crc32c = crc_function(pb.Checksum(type=CHECKSUM_CRC32C, chunk_bytes=4))
    by_crc32 = crc_function(pb.Checksum(type=1, chunk_bytes=4))
    assert by_crc32c is not None
    assert by_crc32 is not None
    chunks = [DATA[:4], DATA[4:8], DATA[8:]]
    assert list(by_crc32c(DATA)) == [crc32c(chunk) for chunk in chunks]
    assert by_crc32(DATA) == [zlib.crc32(chunk) for chunk in chunks]
    assert list(by_crc32c(DATA[:0])) == by_crc32(DATA[:0]) == []


def test_a_block_without_checksums_has_no_function() -> None:
    assert crc_function(pb.Checksum(type=0, chunk_bytes=4)) is None


def test_an_unknown_type_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="checksum type 9"):
        crc_function(pb.Checksum(type=9, chunk_bytes=4))
