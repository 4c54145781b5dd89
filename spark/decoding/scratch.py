"""Decompressed records of many batches side by side, so that one call of the kernels takes them all."""

from __future__ import annotations

from collections.abc import Callable

import cramjam
import numpy as np
import numpy.typing as npt

from bmq.core.records.batch import CODECS
from bmq.core.records.reader import decompress

Bytes = npt.NDArray[np.uint8]

_INTO: dict[int, Callable[[memoryview, memoryview], int]] = {
    CODECS.index("lz4"): cramjam.lz4.decompress_into,
    CODECS.index("zstd"): cramjam.zstd.decompress_into,
}
"""Codecs that write straight into the buffer; other codecs' output is copied there."""


class Scratch:
    """Two buffers of ``size`` bytes, filled in turn.

    The caller is done with one before it asks for more than the other holds.  Fresh memory for each would cost as much
    as a fast codec.
    """

    __slots__ = ("_batch_bytes_max", "_buffer", "_end", "_other", "_size")

    def __init__(self, size: int, batch_bytes_max: int) -> None:
        self._size = size
        self._batch_bytes_max = batch_bytes_max
        self._buffer: Bytes = np.empty(0, np.uint8)  # until something is compressed
        self._other = self._buffer
        self._end = 0

    def put(self, codec: int, data: memoryview) -> tuple[Bytes, int, int]:
        """Decompress ``data`` and return (buffer, start, end).

        Data larger than a buffer gets one of its own.  Raises FormatError if it is damaged or exceeds the limit.
        """
        into = _INTO.get(codec)
        if into is not None:
            size = self._put_straight(into, data)
            if size is None and self._end:  # the rest of the buffer was too small, or the data is damaged
                self._renew()
                size = self._put_straight(into, data)
            if size is not None:
                return self._buffer, self._end - size, self._end
        plain = np.frombuffer(decompress(codec, data, self._batch_bytes_max), np.uint8)
        size = len(plain)
        if size > self._size:
            return plain, 0, size
        if size > len(self._buffer) - self._end:
            self._renew()
        self._buffer[self._end : self._end + size] = plain
        self._end += size
        return self._buffer, self._end - size, self._end

    def _put_straight(self, into: Callable[[memoryview, memoryview], int], data: memoryview) -> int | None:
        """Return the size, or None if ``decompress`` must do it, or find the fault."""
        if not len(self._buffer):
            self._renew()
        try:
            size = into(data, self._buffer.data[self._end : self._end + self._batch_bytes_max])
        except cramjam.DecompressionError:
            return None
        self._end += size
        return size

    def _renew(self) -> None:
        """Change to the other buffer: the bytes in this one may not be decoded yet."""
        self._buffer, self._other = self._other, self._buffer
        if not len(self._buffer):
            self._buffer = np.empty(self._size, np.uint8)
        self._end = 0
