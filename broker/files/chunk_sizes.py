"""Checksum chunks of segment files on HDFS, by the size of the flushes to come.  Pure."""

from __future__ import annotations

CHUNK_BYTES_MIN = 512
CHUNK_BYTES_MAX = 65_536
FIRST_FLUSH_BYTES_MAX = 16 << 10
"""Largest flush size that is assumed from a partition's first batch: it gives chunks of 4 KB, so that little is sent
again if the flushes turn out small.
"""


def chunk_for(flush_bytes: int) -> int:
    """Return the size of HDFS's checksum chunk for flushes of ``flush_bytes``: a power of two from 512 to 64 K.

    At most a quarter of the flush, where 512 allows. A wide chunk costs less per byte, but every flush that ends inside
    a chunk sends again what the chunk already holds.
    """
    chunk = CHUNK_BYTES_MIN
    while chunk * 8 <= flush_bytes and chunk < CHUNK_BYTES_MAX:
        chunk *= 2
    return chunk
