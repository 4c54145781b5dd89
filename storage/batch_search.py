"""Reading the batches of a file in blocks, and the search for right ones at and behind damage.

Used by recovery's scan (``storage.segment``) and by the tools' walk (``storage.damage_reader``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from crc32c import crc32c

from bmq.core.errors import FormatError
from bmq.core.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, Batch
from bmq.core.records.check import stored_fault
from bmq.core.records.cursor import (
    BATCH_BYTES_MAX,
    BatchCheck,
    BatchCursor,
    CursorStep,
    OffsetOrder,
    candidates,
    is_batch,
)

READ_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")
_OFFSET = struct.Struct(">q")
_MAGIC_BYTE = bytes([MAGIC])
_CRC_MATCHES_MAX = 4
"""Ends of a batch to check that its CRC allows and its records do not.

Chance makes one in 2^32: more are made on purpose.
"""


class Reads(Protocol):
    """The part of a ``FileSystem`` that reading needs."""

    async def read(self, path: str, position: int, length: int) -> bytes: ...


class BlockReader:
    """A window on a file, which moves forward: a block, or a batch if larger.

    ``length`` is the position where reading ends.  Each method raises FormatError if the file is shorter, and what
    ``Reads.read`` raises.
    """

    def __init__(self, fs: Reads, path: str, length: int) -> None:
        self.length = length
        self._fs = fs
        self._path = path
        self._start = 0
        self._buffer = memoryview(b"")

    async def view(self, position: int, size: int) -> memoryview:
        """Return ``size`` bytes from ``position``, fewer only at the end, and keep the window there."""
        size = max(min(size, self.length - position), 0)
        at = position - self._start
        if at < 0 or at + size > len(self._buffer):
            await self._load(position, size)
            at = 0
        return self._buffer[at : at + size]

    async def read(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes from ``position``, fewer only at the end; the window stays where it is."""
        missing = max(min(size, self.length - position), 0)
        parts: list[bytes] = []
        while missing:
            part = await self._fs.read(self._path, position, missing)
            if not part:
                raise FormatError(f"{self._path}: {self.length} bytes are promised, {position} can be read")
            parts.append(part)
            position += len(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def step(self, cursor: BatchCursor) -> CursorStep:
        """Step with the bytes that the cursor wants.  The result is never ``MORE`` if it knows ``length``."""
        at = cursor.position - self._start
        step = cursor.step(self._buffer, at if at >= 0 else len(self._buffer))
        while step is CursorStep.MORE:
            await self._load(cursor.position, cursor.wanted)
            step = cursor.step(self._buffer)
        return step

    def batch(self, cursor: BatchCursor) -> Batch:
        """Return the batch that the cursor has just passed: a view of the window."""
        return Batch(self._buffer[cursor.start - self._start : cursor.position - self._start])

    async def is_batch(self, position: int) -> bool:
        """Return whether a whole, right batch of any base offset is at ``position``."""
        cursor = BatchCursor(position, 0, check=BatchCheck.CRC, offsets=OffsetOrder.ANY, length=self.length)
        return await self.step(cursor) is CursorStep.BATCH

    async def _load(self, position: int, size: int) -> None:
        data = await self.read(position, max(size, READ_BYTES))
        self._start, self._buffer = position, memoryview(data)


async def next_batch(reader: BlockReader, start: int, offset: int) -> int | None:
    """Return the position of the next right batch at or behind ``start``, None if there is none.

    Its base offset is ``offset`` or more.  It may cross blocks, or be larger than one.
    """
    while start + HEADER_BYTES <= reader.length:
        block = await reader.view(start, READ_BYTES)
        for at, size in candidates(block, offset, reader.length - start):
            is_here = at + size <= len(block)  # else all of it is read: it may be the only one
            if is_batch(block[at : at + size] if is_here else memoryview(await reader.read(start + at, size))):
                return start + at
        start += len(block) - HEADER_BYTES + 1
    return None


async def due_header(reader: BlockReader, position: int, offset: int) -> Batch | None:
    """Return the header at ``position`` if, apart from its length and CRC, it is that of the batch due there.

    ``offset`` is the base offset that is due.  Records of the batch may be missing: compaction removes some or all.
    The result is None if it is another header, or cut off.
    """
    data = await reader.view(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    batch = Batch(data)
    is_due = batch.base_offset == offset and batch.magic == MAGIC and batch.last_offset_delta >= 0
    return batch if is_due and 0 <= batch.count <= batch.last_offset_delta + 1 else None


async def with_right_length(reader: BlockReader, position: int, header: Batch) -> Batch | None:
    """Return the batch at ``position`` with the length field that makes it right; None if no length does.

    The CRC does not cover the length field (KIP-98).  A batch ends where a batch of the next offset begins, or where
    the file ends.  A producer could forge the CRC of a beginning of its batch, but that lacks some of the records.
    """
    following, window = _OFFSET.pack(header.next_offset), READ_BYTES
    while True:
        text = bytearray(await reader.read(position, window))
        data, is_all = memoryview(text), position + len(text) >= reader.length
        crc, done, matches = 0, CRC_START, 0
        for end in _ends(text, following, is_all=is_all):
            crc, done = crc32c(data[done:end], crc), end
            if crc == header.crc and matches < _CRC_MATCHES_MAX:
                if mended := _mended(data[:end]):
                    return mended
                matches += 1
        if is_all or window >= BATCH_BYTES_MAX:
            return None
        window *= 4


def _ends(text: bytearray, following: bytes, *, is_all: bool) -> Iterator[int]:
    """Give the positions where the batch that begins ``text`` may end: before the next offset, or with the file."""
    at = text.find(following, HEADER_BYTES)
    while at != -1:
        if text[at + 16 : at + 17] == _MAGIC_BYTE:
            yield at
        at = text.find(following, at + 1)
    if is_all:
        yield len(text)


def _mended(data: memoryview) -> Batch | None:
    """Return ``data``, whose CRC is right, as a batch of that length; None if its records do not end there."""
    _LENGTH.pack_into(data, 8, len(data) - LENGTH_OVERHEAD)
    batch = Batch(data)
    return None if stored_fault(batch) else batch
