"""Where batches end in a segment's bytes, as these come in chunks.  Pure.

A ``Framer`` looks at headers only.  Whole batches of a chunk are given as one view of it; the one batch that straddles
two chunks is put together apart, so that chunks are never copied.  Offsets may have gaps (a compacted log) but never
go back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bmq.core.records import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from bmq.storage.segment import BATCH_BYTES_MAX, find_batch

_KEPT_BYTES = 2 << 20  # of damaged data: Kafka's batches are 1 MB at most unless told otherwise
_HEAD = struct.Struct(">qiiBIhi")  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta


class Run(NamedTuple):
    """Whole batches, the first of which begins at ``position`` of the file."""

    position: int
    data: memoryview


class Misframed(Exception):
    """No batch begins where one should."""

    def __init__(self, position: int, offset: int, fault: str) -> None:
        super().__init__(fault)
        self.position = position
        self.offset = offset
        self.fault = fault


class Framer:
    """Follows the batches of a segment from ``position``, where offset ``next_offset`` is due.

    Batches wholly below ``start`` are stepped over; one that begins at or past ``stop`` ends the walk (``is_done``).
    """

    __slots__ = ("_rest", "_start", "_stop", "is_done", "is_lost", "next_offset", "position", "skipped_bytes")

    def __init__(self, position: int, next_offset: int, *, start: int, stop: int) -> None:
        self.position = position  # of the next batch
        self.next_offset = next_offset
        self.is_done = next_offset >= stop
        self.skipped_bytes = 0
        self._start = start
        self._stop = stop
        self._rest = bytearray()  # of a batch that has begun at ``position``
        self.is_lost = False  # looking for a batch to go on from

    @property
    def pending(self) -> int:
        """Bytes of a batch that has not ended yet."""
        return len(self._rest)

    def feed(self, chunk: bytes | memoryview) -> Iterator[Run]:
        """The runs that ``chunk``, the bytes behind those fed before, completes.  Misframed."""
        view = memoryview(chunk)
        if self.is_lost:
            view = self._find(view)
        elif self._rest:
            view = self._fill(view)
            rest = memoryview(self._rest)
            try:
                size = self._step(rest, 0)
            except Misframed:
                self._rest = self._rest + view
                raise
            if not size:
                return
            self._rest = bytearray()
            if self.next_offset > self._start:
                yield Run(self.position - size, rest)
        if not self.is_done and not self.is_lost:
            yield from self._runs(view)

    def _fill(self, view: memoryview) -> memoryview:
        """Complete what has begun as far as ``view`` goes; what is left of it."""
        for wanted in (HEADER_BYTES, 0):
            size = wanted or self._size(memoryview(self._rest))
            missing = size - len(self._rest)
            self._rest += view[: max(0, missing)]
            view = view[max(0, missing) :]
            if len(self._rest) < size:
                break
        return view

    def _size(self, data: memoryview) -> int:
        """Of the batch whose header is there; what is no size is found out by ``_step``."""
        size = int(_HEAD.unpack_from(data)[1]) + LENGTH_OVERHEAD
        return size if HEADER_BYTES <= size <= BATCH_BYTES_MAX else HEADER_BYTES

    def _runs(self, view: memoryview) -> Iterator[Run]:
        at = begin = 0
        origin = self.position
        while not self.is_done:
            try:
                size = self._step(view, at)
            except Misframed:
                if begin < at:
                    yield Run(origin + begin, view[begin:at])  # what stands before the fault is right
                self._rest = bytearray(view[at:])
                raise
            if not size:
                break
            at += size
            if self.next_offset <= self._start:
                begin = at
        if begin < at:
            yield Run(origin + begin, view[begin:at])
        if not self.is_done:
            self._rest = bytearray(view[at:])

    def _step(self, data: memoryview, at: int) -> int:
        """Pass the batch at ``at``: its size, 0 when it is not all there or is not wanted (``is_done``)."""
        if len(data) - at < HEADER_BYTES:
            return 0
        base, length, _, magic, _, _, last_delta = _HEAD.unpack_from(data, at)
        size = int(length) + LENGTH_OVERHEAD
        fault = _fault(base, size, magic, last_delta, self.next_offset)
        if fault:
            raise Misframed(self.position, self.next_offset, fault)
        if base >= self._stop:
            self.is_done = True
            return 0
        if size > len(data) - at:
            return 0
        self.position += size
        self.next_offset = int(base + last_delta + 1)
        self.is_done = self.next_offset >= self._stop
        return size

    def skip(self) -> None:
        """After Misframed: step over whatever comes before the next whole batch.  Go on with ``feed(b"")``."""
        self.is_lost = True
        self._drop(1)

    def _find(self, view: memoryview) -> memoryview:
        """From the next whole batch on; where there is none, the end is kept for one that begins in it."""
        data = memoryview(bytes(self._rest) + view)
        self._rest = bytearray(data)
        found = find_batch(data, self.next_offset)
        if found is None:
            self._drop(max(0, len(data) - _KEPT_BYTES))
            return memoryview(b"")
        self._drop(found)
        self._rest, self.is_lost = bytearray(), False
        return data[found:]

    def _drop(self, count: int) -> None:
        self._rest = self._rest[count:]
        self.position += count
        self.skipped_bytes += count


def _fault(base: int, size: int, magic: int, last_delta: int, expected: int) -> str:
    if magic != MAGIC:
        return f"magic {magic}"
    if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        return f"a batch of {size} bytes"
    if base < expected:
        return f"a batch at offset {base}, {expected} is due"
    if last_delta < 0:
        return f"last offset delta {last_delta}"
    return ""
