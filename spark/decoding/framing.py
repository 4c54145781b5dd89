"""Framing: finding the ends of batches in a segment's bytes, which come in chunks.  Pure.

A ``Framer`` reads headers only.  Whole batches of a chunk are returned as a single view of it.  Only a batch that
straddles two chunks is put together apart, so chunks are never copied.

A batch's base offset is not under its CRC (KIP-98), so only its neighbours show whether it is right.  A batch begins
where the batch before it ends, and never passes the offset that the index holds for the end of the bytes.  Compaction
keeps a log dense, too: it leaves empty batches, and batches with missing records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bmq.core.records.batch import HEADER_BYTES, MAGIC, Batch
from bmq.core.records.cursor import BatchCheck, BatchCursor, CursorStep, find_batch

_KEPT_BYTES = 2 << 20  # of damaged data: Kafka's batches are 1 MB at most by default
_OFFSET_MAX = 2**63 - 1
_OFFSET_BYTES = 8


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
    Without one, anything may follow the batches.  The walk ends at ``stop``.
    """

    __slots__ = (
        "_cursor",
        "_is_behind_hole",
        "_limit",
        "_rest",
        "_start",
        "_stop",
        "is_done",
        "is_lost",
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
    ) -> None:
        self._cursor = BatchCursor(position, next_offset, check=BatchCheck.WHOLE, stop=stop, limit=limit)
        self._start = start
        self._stop = stop
        self._limit = _OFFSET_MAX if limit is None else limit
        self._rest = bytearray()  # of a batch that has begun at ``position``
        self.skipped_bytes = 0
        self.is_lost = False  # searching for a batch to continue from
        self._is_behind_hole = False  # the data kept begins with that batch
        self.is_done = next_offset >= stop

    @property
    def position(self) -> int:
        """The position of the next batch."""
        return self._cursor.position

    @property
    def next_offset(self) -> int:
        """The offset that is due there."""
        return self._cursor.next_offset

    @property
    def pending(self) -> int:
        """The bytes held of a batch that is not complete."""
        return len(self._rest)

    def feed(self, chunk: bytes | memoryview) -> Iterator[BatchRun]:
        """Yield the runs that ``chunk``, the bytes after those fed before, completes.  Raises Misframed."""
        view = memoryview(chunk)
        if self.is_lost:
            view = self._find(view)
            if self.is_lost:
                return
        elif self._rest:
            step, view = self._complete(view)
            if step is CursorStep.MORE:
                return
            rest, self._rest = self._rest, bytearray()
            if step is CursorStep.DAMAGED:
                self._rest = rest + view
                raise self._misframed()
            if step is CursorStep.BATCH and self._is_wanted:
                yield BatchRun(self._cursor.start, memoryview(rest))
        yield from self._runs(view)

    def _complete(self, view: memoryview) -> tuple[CursorStep, memoryview]:
        """Complete the batch that has begun, as far as ``view`` reaches, and return the rest of ``view``."""
        cursor = self._cursor
        while (step := cursor.step(self._rest)) is CursorStep.MORE and view:
            missing = cursor.wanted - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
        return step, view

    def _runs(self, view: memoryview) -> Iterator[BatchRun]:
        cursor, origin = self._cursor, self._cursor.position
        at = begin = end = 0
        while (step := cursor.step(view, at)) is CursorStep.BATCH:
            at += cursor.size
            if cursor.next_offset <= self._start:
                begin = end = at
            elif cursor.base_offset < self._stop:
                end = at
        if begin < end:
            yield BatchRun(origin + begin, view[begin:end])  # also before damage: these are right
        self.is_done = step is CursorStep.END
        if not self.is_done:
            self._rest = bytearray(view[at:])
        if step is CursorStep.DAMAGED:
            raise self._misframed()

    @property
    def _is_wanted(self) -> bool:
        """True if the batch passed last has wanted offsets."""
        return self._cursor.next_offset > self._start and self._cursor.base_offset < self._stop

    def _misframed(self) -> Misframed:
        return Misframed(self.position, self.next_offset, self._cursor.fault)

    def skip(self) -> None:
        """Begin, after Misframed, to skip bytes up to the next right batch.  Continue with ``feed(b"")``."""
        self.is_lost = True
        self._is_behind_hole = self._fits(memoryview(self._rest))
        if not self._is_behind_hole:
            self._drop(1)

    def _fits(self, data: memoryview) -> bool:
        """Return whether a batch whose offset was not due is right, because the next batch continues from it.

        Then the batches before it are missing.  Otherwise its own offset is wrong.
        """
        if len(data) < HEADER_BYTES:
            return False
        batch = Batch(data)
        if batch.magic != MAGIC or batch.last_offset_delta < 0 or not HEADER_BYTES <= batch.size <= len(data):
            return False
        if not self.next_offset < batch.base_offset or batch.next_offset > self._limit:
            return False
        follower = data[batch.size : batch.size + _OFFSET_BYTES]
        is_cut = len(follower) < _OFFSET_BYTES
        return batch.next_offset == (self._limit if is_cut else int.from_bytes(follower, "big", signed=True))

    def _find(self, view: memoryview) -> memoryview:
        """Return the bytes from the next right batch on.

        Without a right batch, keep the end: a batch may begin in it.
        """
        data = memoryview(bytes(self._rest) + view)
        self._rest = bytearray(data)
        found = 0 if self._is_behind_hole else self._find_from(data)
        if found is None:
            self._drop(max(0, len(data) - _KEPT_BYTES))
            return memoryview(b"")
        self._drop(found)
        self._cursor.seek(self.position, Batch(data[found:]).base_offset)
        self._rest, self.is_lost, self._is_behind_hole = bytearray(), False, False
        return data[found:]

    def _find_from(self, data: memoryview) -> int | None:
        """Return the position of the first whole batch that is due or later, and ends within ``limit``."""
        at = 0
        while (found := find_batch(data[at:], self.next_offset)) is not None:
            at += found
            if Batch(data[at:]).last_offset < self._limit:
                return at
            at += 1
        return None

    def _drop(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._cursor.seek(self.position + count, self.next_offset)
        self.skipped_bytes += count
