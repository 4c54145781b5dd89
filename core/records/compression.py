"""Recompression of a batch's records, for topics with a ``compression.type`` of their own.

Never on the produce path of other topics, and never on the loop: a batch of 1 MB takes milliseconds.

The records' bytes stay as the producer encoded them; ``core.records.check`` checks that they are what the header says.
Framing is what Kafka's clients write (``core.records.reader`` reads all of it):

* gzip, zstd: one member, one frame.
* snappy: ``xerial``'s: 16 bytes of head, then blocks of 32 KB, each behind its i32 length.
* lz4: a frame of *independent* blocks of 64 KB without checksums.  cramjam's own frames have dependent blocks, which
  Java's ``Lz4BlockInputStream`` refuses.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import cramjam
from crc32c import crc32c

from bmq.core.records.batch import CODEC_MASK, CODECS, CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, Batch
from bmq.core.records.reader import RECORDS_BYTES_MAX, decompress

_XERIAL_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)  # version, least version that can read it
_SNAPPY_BLOCK_BYTES = 32 << 10
_LZ4_HEAD = bytes.fromhex("04224d18 60 40 82")  # magic; version 1, independent blocks; 64 KB; the checksum of those two
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_END = bytes(4)
_LZ4_STORED = 1 << 31  # the block is not compressed
_LZ4_FAST_LEVEL = 9
"""Kafka's default level, 9, which its code takes as "the fast compressor" (``Lz4BlockOutputStream``)."""
_GZIP = 31  # zlib's number for "gzip framing, largest window"


@dataclass(frozen=True, slots=True)
class Compression:
    """A codec, by its name in ``CODECS``, and its level, as in Kafka's ``compression.<codec>.level``.

    The level has no meaning for none and snappy.
    """

    codec: str
    level: int = 0

    @property
    def number(self) -> int:
        """The codec's number in a batch's attributes."""
        return CODECS.index(self.codec)


def recompress(batch: Batch, compression: Compression, *, bytes_max: int = RECORDS_BYTES_MAX) -> bytearray:
    """Return the same batch with its records under another codec.

    Raises FormatError if they cannot be decompressed within ``bytes_max`` bytes.
    """
    plain = decompress(batch.attributes & CODEC_MASK, batch.data[HEADER_BYTES : batch.size], bytes_max)
    return repack(batch, plain, compression)


def repack(batch: Batch, plain: memoryview, compression: Compression) -> bytearray:
    """Return the batch with its decompressed records ``plain`` under a codec."""
    out = bytearray(batch.data[:HEADER_BYTES])
    out += compress(compression, plain)
    struct.pack_into(">i", out, 8, len(out) - LENGTH_OVERHEAD)
    struct.pack_into(">h", out, CRC_START, batch.attributes & ~CODEC_MASK | compression.number)
    struct.pack_into(">I", out, CRC_START - 4, crc32c(memoryview(out)[CRC_START:]))
    return out


def compress(compression: Compression, data: memoryview) -> bytes | bytearray | memoryview:
    """Return ``data`` under the codec, framed as Kafka's clients frame it."""
    return _COMPRESS[compression.codec](data, compression.level)


def _none(data: memoryview, level: int) -> memoryview:
    return data


def _gzip(data: memoryview, level: int) -> bytes:
    packer = zlib.compressobj(level, wbits=_GZIP)
    return packer.compress(data) + packer.flush()


def _snappy(data: memoryview, level: int) -> bytearray:
    out = bytearray(_XERIAL_HEAD)
    for at in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[at : at + _SNAPPY_BLOCK_BYTES]))
        out += struct.pack(">i", len(block))
        out += block
    return out


def _lz4(data: memoryview, level: int) -> bytearray:
    mode: Literal["fast", "high_compression"] = "fast" if level == _LZ4_FAST_LEVEL else "high_compression"
    out = bytearray(_LZ4_HEAD)
    for at in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[at : at + _LZ4_BLOCK_BYTES]
        block = memoryview(cramjam.lz4.compress_block(plain, mode=mode, compression=level, store_size=False))
        if len(block) < len(plain):
            out += struct.pack("<I", len(block))
            out += block
        else:
            out += struct.pack("<I", len(plain) | _LZ4_STORED)
            out += plain
    out += _LZ4_END
    return out


def _zstd(data: memoryview, level: int) -> memoryview:
    return memoryview(cramjam.zstd.compress(data, level=level))


_COMPRESS: dict[str, Callable[[memoryview, int], bytes | bytearray | memoryview]] = {
    "none": _none,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}
