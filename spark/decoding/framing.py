"""Framing: finding the ends of batches in a segment's bytes, which come in chunks.  Pure.

A ``Framer`` reads headers only.  Whole batches of a chunk are given as one view of it; the one batch that straddles two
chunks is put together apart, so that chunks are never copied.

A batch's base offset is not under its CRC (KIP-98), so only its neighbours show whether it is right.  Offsets never go
back, and never pass the offset that the index holds for the end of the bytes.  In a dense log each batch begins where
the one before ends; only compaction leaves holes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bmq.core.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from bmq.core.records.cursor import BATCH_BYTES_MAX, find_batch

_KEPT_BYTES = 2 << 20  # of damaged data: Kafka's batches are 1 MB at most by default
_OFFSET_MAX = 2**63 - 1
_HEAD = struct.Struct(">qiiBIhi")  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta


class BatchRun(NamedTuple):
    """A run of whole batches, the first of which begins at ``position`` of the file."""

    position: int
    data: memoryview


class Misframed(Exception):
    """No valid batch begins at ``position``, where ``offset`` is due; ``fault`` is the reason."""

    def __init__(self, position: int, offset: int, fault: str) -> None:
        super().__init__(fault)
        self.position = position
        self.offset = offset
        self.fault = fault


class Framer:
    """An iteration over the batches of a segment from ``position``, where offset ``next_offset`` is due.

    Batches wholly below ``start``, and those that begin at or past ``stop``, are not returned.

    ``limit`` is the offset due at the end of the bytes to be fed, which hold whole batches: none may reach past it.
    Without one, anything may follow the batches, and the first that begins at or past ``stop`` ends the walk.
    ``is_dense``: the log has no holes.  The walk then ends at ``stop``.  Where there may be holes it continues to the
    end of the bytes, because a wrong base offset at or past ``stop`` shows only in the batches after it.
    """

    __slots__ = (
        "_goes_on",
        "_is_behind_hole",
        "_is_dense",
        "_is_past",
        "_limit",
        "_rest",
        "_start",
        "_stop",
        "is_done",
        "is_lost",
        "next_offset",
        "position",
        "skipped_bytes",
    )

    def __init__(
        self,
        position: int,
        next_offset: int,
        *,
        start: int,
        stop: int,
        limit: int | None = None,
        is_dense: bool = False,
    ) -> None:
        self.position = position  # of the next batch
        self.next_offset = next_offset
        self.skipped_bytes = 0
        self._start = start
        self._stop = stop
        self._limit = _OFFSET_MAX if limit is None else limit
        self._is_dense = is_dense
        self._goes_on = limit is not None and not is_dense
        self._is_past = False  # the batch passed last begins at or past ``stop``
        self._rest = bytearray()  # of a batch that has begun at ``position``
        self.is_lost = False  # searching for a batch to continue from
        self._is_behind_hole = False  # the data kept begins with that batch
        self.is_done = next_offset >= stop and not self._goes_on

    @property
    def pending(self) -> int:
        """The bytes held of a batch that is not complete."""
        return len(self._rest)

    def feed(self, chunk: bytes | memoryview) -> Iterator[BatchRun]:
        """Yield the runs that ``chunk``, the bytes after those fed before, completes.  Raises Misframed."""
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
            if self.next_offset > self._start and not self._is_past:
                yield BatchRun(self.position - size, rest)
        if not self.is_done and not self.is_lost:
            yield from self._runs(view)

    def _fill(self, view: memoryview) -> memoryview:
        """Complete the batch that has begun, as far as ``view`` reaches, and return the rest of ``view``."""
        for wanted in (HEADER_BYTES, 0):
            size = wanted or self._size(memoryview(self._rest))
            missing = size - len(self._rest)
            self._rest += view[: max(0, missing)]
            view = view[max(0, missing) :]
            if len(self._rest) < size:
                break
        return view

    def _size(self, data: memoryview) -> int:
        """Return the size of the batch whose header is complete; HEADER_BYTES if its length is invalid, which ``_step``
        finds."""
        size = int(_HEAD.unpack_from(data)[1]) + LENGTH_OVERHEAD
        return size if HEADER_BYTES <= size <= BATCH_BYTES_MAX else HEADER_BYTES

    def _runs(self, view: memoryview) -> Iterator[BatchRun]:
        at = begin = end = 0
        origin = self.position
        while not self.is_done:
            try:
                size = self._step(view, at)
            except Misframed:
                if begin < end:
                    yield BatchRun(origin + begin, view[begin:end])  # the batches before the fault are right
                self._rest = bytearray(view[at:])
                raise
            if not size:
                break
            at += size
            if self.next_offset <= self._start:
                begin = end = at
            elif not self._is_past:
                end = at
        if begin < end:
            yield BatchRun(origin + begin, view[begin:end])
        if not self.is_done:
            self._rest = bytearray(view[at:])

    def _step(self, data: memoryview, at: int) -> int:
        """Pass the batch at ``at`` and return its size; 0 if it is not complete or not wanted (``is_done``).  Raises
        Misframed."""
        if len(data) - at < HEADER_BYTES:
            return 0
        base, length, _, magic, _, _, last_delta = _HEAD.unpack_from(data, at)
        size = int(length) + LENGTH_OVERHEAD
        fault = self._fault(base, size, magic, last_delta)
        if fault:
            raise Misframed(self.position, self.next_offset, fault)
        if base >= self._stop and not self._goes_on:
            self.is_done = True
            return 0
        if size > len(data) - at:
            return 0
        self.position += size
        self.next_offset = int(base + last_delta + 1)
        self._is_past = base >= self._stop
        self.is_done = self.next_offset >= self._stop and not self._goes_on
        return size

    def _fault(self, base: int, size: int, magic: int, last_delta: int) -> str:
        if magic != MAGIC:
            return f"magic {magic}"
        if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
            return f"a batch of {size} bytes"
        if last_delta < 0:
            return f"last offset delta {last_delta}"
        if base < self.next_offset or (self._is_dense and base > self.next_offset):
            return f"a batch at offset {base}, but {self.next_offset} is due"
        if base + last_delta >= self._limit:
            return f"a batch of offsets {base} to {base + last_delta}, but {self._limit} is due after these bytes"
        return ""

    def skip(self) -> None:
        """Begin, after Misframed, to skip bytes up to the next right batch.  Continue with ``feed(b"")``."""
        self.is_lost = True
        self._is_behind_hole = self._fits(self._rest)
        if not self._is_behind_hole:
            self._drop(1)

    def _fits(self, data: bytearray) -> bool:
        """Return whether a batch whose offset was not due is right, because the next batch continues from it.

        Then the batches before it are missing.  Otherwise its own offset is wrong.
        """
        if len(data) < HEADER_BYTES:
            return False
        base, length, _, magic, _, _, last_delta = _HEAD.unpack_from(data)
        size, behind = length + LENGTH_OVERHEAD, base + last_delta + 1
        if magic != MAGIC or last_delta < 0 or not HEADER_BYTES <= size <= len(data):
            return False
        if not self.next_offset < base or behind > self._limit:
            return False
        follower = data[size : size + _HEAD.size]
        if len(follower) < _HEAD.size:
            return bool(behind == self._limit)
        return bool(_HEAD.unpack(follower)[0] == behind)

    def _find(self, view: memoryview) -> memoryview:
        """Return the bytes from the next right batch on.  Without one, keep the end, in which one may begin."""
        data = memoryview(bytes(self._rest) + view)
        self._rest = bytearray(data)
        found = 0 if self._is_behind_hole else self._find_from(data)
        if found is None:
            self._drop(max(0, len(data) - _KEPT_BYTES))
            return memoryview(b"")
        self._drop(found)
        self.next_offset = int(_HEAD.unpack_from(data, found)[0])
        self._rest, self.is_lost, self._is_behind_hole = bytearray(), False, False
        return data[found:]

    def _find_from(self, data: memoryview) -> int | None:
        """Return the position of the first whole batch that is due or later, and ends within ``limit``."""
        at = 0
        while (found := find_batch(data[at:], self.next_offset)) is not None:
            at += found
            base, _, _, _, _, _, last_delta = _HEAD.unpack_from(data, at)
            if base + last_delta < self._limit:
                return at
            at += 1
        return None

    def _drop(self, count: int) -> None:
        self._rest = self._rest[count:]
        self.position += count
        self.skipped_bytes += count
