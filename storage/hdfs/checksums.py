"""The checksums that come with a block's bytes, also of blocks that other clients wrote."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import CHECKSUM_CRC32C, WireError, chunk_crcs

_CHECKSUM_NULL = 0
_CHECKSUM_CRC32 = 1


def crc_function(checksum: pb.Checksum) -> Callable[[memoryview], list[int]] | None:
    """Return the function from bytes to the checksums of their chunks; None if the block has none.

    Files of other writers may have another type than CRC-32C.  Raises WireError for an unknown type.
    """
    chunk_bytes = checksum.chunk_bytes
    if checksum.type == CHECKSUM_CRC32C:
        return lambda data: chunk_crcs(data, chunk_bytes)
    if checksum.type == _CHECKSUM_CRC32:
        return lambda data: [zlib.crc32(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    if checksum.type == _CHECKSUM_NULL:
        return None
    raise WireError(f"checksum type {checksum.type}")
