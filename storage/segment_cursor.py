"""A cursor over the batches of one segment: it reads blocks through the process's ``BlockCache``."""

from __future__ import annotations

from collections import deque

from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.core.records.cursor import BatchCheck, BatchCursor, CursorStep
from bmq.storage.block_cache import BlockCache, SegmentKnowledge
from bmq.storage.filesystem import Buffer, CorruptData


class MissingRecords(CorruptData):
    """A segment ends before the offset that its name and the watermark promise: bytes are gone."""


class SegmentCursor:
    """A cursor from batch to batch of one segment, by headers, as far as the segment may be read.

    ``start`` is (offset, position) of the first batch.  ``stop`` is the first offset that must not be shown;
    ``watermark`` is the high watermark of the caller, under which reads of uncertain bytes are shared.  Blocks are read
    as far as ``until``, a position, while that suffices; None: as far as is certain.  After a ``step`` the current
    batch is [``position``, ``end``).
    """

    def __init__(
        self,
        pool: BlockCache,
        path: str,
        facts: SegmentKnowledge,
        start: tuple[int, int],
        stop: int,
        watermark: int,
        until: int | None = None,
    ):
        self.facts = facts
        self._until = until
        self.kept_from: int | None = None  # bytes from here on stay in the buffer; None: from the batch's beginning
        self.run = 1  # blocks to read at once
        self._cursor = BatchCursor(start[1], start[0], check=BatchCheck.HEADER, stop=stop)
        self._pool = pool
        self._path = path
        self._stop = stop
        self._watermark = watermark
        self._pieces: deque[tuple[int, memoryview]] = deque()  # of blocks, in order and without gaps
        self._reached = start[1]  # where the last piece ends
        self._opened: dict[int, Buffer] = {}
        self._data, self._data_at = memoryview(b""), 0  # the current batch's header

    @property
    def header(self) -> Batch:
        """The current batch's header: a view of that alone."""
        return Batch(self._data[self._data_at : self._data_at + HEADER_BYTES])

    @property
    def position(self) -> int:
        """The position of the current batch."""
        return self._cursor.start

    @property
    def end(self) -> int:
        """The position behind the current batch."""
        return self._cursor.position

    @property
    def next_offset(self) -> int:
        """The offset behind the current batch."""
        return self._cursor.next_offset

    async def step(self) -> bool:
        """Step to the next batch that lies wholly below ``stop``; return False if there is none.

        Raises CorruptData if no right header stands there, MissingRecords if the file ends first.
        """
        cursor = self._cursor
        data, at = self._at(cursor.position)
        while (step := cursor.step(data, at)) is CursorStep.MORE:
            await self._fill(cursor.position, cursor.wanted)
            data, at = self._at(cursor.position)
        if step is CursorStep.DAMAGED:
            raise CorruptData(f"{self._path} at {cursor.position}, offset {cursor.next_offset}: {cursor.fault}")
        if step is CursorStep.END or cursor.next_offset > self._stop:
            return False
        self._data, self._data_at = data, at
        if cursor.start == self.facts.known_position and self.facts.is_ours:
            self.facts.extend(self.header)
        return True

    @property
    def is_loaded(self) -> bool:
        """True if the whole current batch was read, not only its header."""
        return self._cursor.position <= self._reached

    async def load(self) -> None:
        """Read the whole current batch."""
        await self._fill(self.position, self._cursor.size)

    def copy(self, start: int, end: int) -> bytes:
        """Return the bytes of [start, end), which must have been loaded and kept."""
        return b"".join(self.views(start, end))

    def views(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes of [start, end), which must have been loaded and kept, as views of their blocks."""
        return [
            piece[max(0, start - at) : end - at] for at, piece in self._pieces if start < at + len(piece) and at < end
        ]

    def finish(self) -> None:
        """Give the bytes and the index entries that have become certain to the cache."""
        if not self.facts.is_ours:
            return
        block = self._pool.config.block_bytes
        for number, data in self._opened.items():
            certain = self.facts.known_position - number * block
            if certain > 0:
                self._pool.keep(self._path, number, data if certain >= len(data) else data[:certain])
        self._pool.keep_facts(self._path, self.facts)

    def _at(self, position: int) -> tuple[memoryview, int]:
        """Return the header at ``position``, as far as ``_fill`` has read it, as (bytes, position in these)."""
        for at, piece in reversed(self._pieces):
            if at <= position:
                if position + HEADER_BYTES <= at + len(piece):
                    return piece, position - at
                break
        return memoryview(self.copy(position, position + HEADER_BYTES)), 0

    async def _fill(self, position: int, length: int) -> None:
        """Read the pieces of [position, position + length), and drop those before the kept bytes."""
        if position + length <= self._reached:
            return
        kept_from = position if self.kept_from is None else self.kept_from
        pieces = self._pieces
        while pieces and pieces[0][0] + len(pieces[0][1]) <= kept_from:
            pieces.popleft()
        if not pieces:
            self._reached = kept_from
        block = self._pool.config.block_bytes
        while self._reached < position + length:
            reached = self._reached
            number = reached // block
            data = await self._block(number, reached)
            piece = memoryview(data)[reached - number * block :]
            if not piece:
                raise MissingRecords(
                    f"{self._path} ends at {reached}: offset {self.next_offset} is missing, {self._stop} is promised"
                )
            pieces.append((reached, piece))
            self._reached += len(piece)

    @property
    def wanted_until(self) -> int:
        """The position as far as blocks are read, and read ahead."""
        known = self.facts.known_position
        return known if self._until is None else min(known, self._until)

    async def _block(self, number: int, reached: int) -> Buffer:
        known = self.facts.known_position
        if reached < known:
            wanted = self.wanted_until
            certain = wanted if reached < wanted else known
            return await self._pool.certain_block(self._path, number, certain, self.run)
        data = await self._pool.open(self._path, number, self._watermark)
        self._opened[number] = data
        return data
