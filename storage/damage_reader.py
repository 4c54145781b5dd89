"""Reading a file of any size in blocks, and cutting it into right and damaged parts.

Two formats are read in the same way, batches of a ``.log`` and records of a ``.jnl``.  Right items are given one by
one; at a fault the next right item is searched for, so that a single bad byte hides one item, not the rest.  This needs
the memory of one block, or of one item if that is larger.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, Batch, peek_batch
from bmq.storage import journal
from bmq.storage.segment import BATCH_BYTES_MAX, Reads, due_header, with_right_length

BLOCK_BYTES = 4 << 20
_MAGIC_BYTE = bytes([MAGIC])
_OFFSETS_AHEAD_MAX = 1 << 40  # bytes found behind damage that declare an offset further away than this are not a batch


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch that is right by itself: whole, and its CRC matches."""

    position: int
    batch: Batch

    @property
    def end(self) -> int:
        """The position behind the batch."""
        return int(self.position + self.batch.size)


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A journal record that is right by itself."""

    position: int
    size: int
    kind: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of ``size`` bytes that is not a right item; ``fault`` says why.

    ``is_tail``: no right item follows.  ``header`` is that of the batch that should be here, if its size is credible.
    ``mended`` is the batch as it was written, if only its length field is damaged.
    """

    position: int
    size: int
    fault: str
    is_tail: bool
    header: Batch | None = None
    mended: Batch | None = None


class BlockReader:
    """A window on a file that moves forward; ``length`` is the position where reading ends."""

    def __init__(self, fs: Reads, path: str, length: int) -> None:
        self.length = length
        self._fs = fs
        self._path = path
        self._start = 0
        self._buffer = memoryview(b"")

    async def view(self, position: int, size: int) -> memoryview:
        """Return ``size`` bytes from ``position``, fewer only at the end.

        Raises FormatError if the file is shorter than ``length``, and what ``read`` raises.
        """
        size = max(min(size, self.length - position), 0)
        at = position - self._start
        if at < 0 or at + size > len(self._buffer):
            await self._load(position, max(size, min(BLOCK_BYTES, self.length - position)))
            at = 0
        return self._buffer[at : at + size]

    async def _load(self, position: int, size: int) -> None:
        parts: list[bytes] = []
        missing = size
        while missing:
            part = await self._fs.read(self._path, position + size - missing, missing)
            if not part:
                at = position + size - missing
                raise FormatError(f"{self._path}: {self.length} bytes are promised, none can be read at {at}")
            parts.append(part)
            missing -= len(part)
        self._start, self._buffer = position, memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


# ------------------------------------------------------------------------------------------------- batches


async def walk_batches(
    fs: Reads, path: str, position: int, length: int, offset: int
) -> AsyncGenerator[FoundBatch | Damage, None]:
    """Give the batches in [position, length) of a ``.log``, and the damage between them.

    ``offset`` is the one due at ``position``; it only guides the search behind damage.
    """
    reader = BlockReader(fs, path, length)
    while position < length:
        batch, fault = await _batch_at(reader, position)
        if batch is not None:
            yield FoundBatch(position, batch)
            position += batch.size
            offset = batch.next_offset
            continue
        header = await due_header(fs, path, position, length, offset)
        mended = header and await with_right_length(fs, path, position, length, header)
        if mended:
            fault = f"the batch's length field is damaged: it has {mended.size} bytes"
            yield Damage(position, mended.size, fault, is_tail=False, mended=mended)
            position += mended.size
            offset = mended.next_offset
            continue
        damage = await _damaged_batch(reader, position, offset, fault)
        yield damage
        position += damage.size


async def _batch_at(reader: BlockReader, position: int) -> tuple[Batch | None, str]:
    left = reader.length - position
    head = await reader.view(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return None, f"the file ends in a batch's header: {left} bytes"
    size = _declared_size(head)
    if head[16] != MAGIC:
        return None, f"no batch begins here: magic {head[16]}, not {MAGIC}"
    if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
        return None, f"no batch begins here: its length field says {size} bytes"
    if size > left:
        return None, f"the file ends in a batch: it has {size} bytes, {left} are here"
    data = await reader.view(position, size)
    batch = Batch(data)
    if peek_batch(data, 0, batch.base_offset, BATCH_BYTES_MAX).fault:
        return None, "the batch's CRC does not match"
    return batch, ""


async def _damaged_batch(reader: BlockReader, position: int, offset: int, fault: str) -> Damage:
    left = reader.length - position
    head = await reader.view(position, HEADER_BYTES)
    size = _declared_size(head) if len(head) == HEADER_BYTES else 0
    if HEADER_BYTES <= size < left:
        follower, _ = await _batch_at(reader, position + size)
        if follower is not None:
            return Damage(position, size, fault, is_tail=False, header=Batch(head))
    found = await _next_batch(reader, position + 1, offset)
    header = Batch(head) if size == left else None
    return Damage(position, (found or reader.length) - position, fault, is_tail=found is None, header=header)


async def _next_batch(reader: BlockReader, start: int, offset: int) -> int | None:
    """Return the position of the next right batch at or behind ``start``, None if there is none.

    The batch may cross blocks, or be larger than one.
    """
    while start + HEADER_BYTES <= reader.length:
        block = await reader.view(start, BLOCK_BYTES)
        text = bytes(block)
        at = text.find(_MAGIC_BYTE, 16)
        while at != -1 and at - 16 + HEADER_BYTES <= len(text):
            if _is_plausible(block[at - 16 :], offset) and (await _batch_at(reader, start + at - 16))[0] is not None:
                return start + at - 16
            at = text.find(_MAGIC_BYTE, at + 1)
        start += len(block) - HEADER_BYTES + 1
    return None


def _is_plausible(head: memoryview, offset: int) -> bool:
    """Return whether a batch may begin here, by cheap checks: most bytes that look like a magic are not one."""
    base = int(struct.unpack_from(">q", head)[0])
    if not (offset <= base < offset + _OFFSETS_AHEAD_MAX and HEADER_BYTES <= _declared_size(head) <= BATCH_BYTES_MAX):
        return False
    batch = Batch(head)
    is_gap = batch.count == 0 <= batch.last_offset_delta
    return bool(is_gap or (batch.count > 0 and batch.count == batch.last_offset_delta + 1))


def _declared_size(head: memoryview) -> int:
    return int(struct.unpack_from(">i", head, 8)[0]) + LENGTH_OVERHEAD


# ------------------------------------------------------------------------------------------------- journal records


async def walk_journal(fs: Reads, path: str, length: int) -> AsyncGenerator[FoundRecord | Damage, None]:
    """Give the records of a journal, first first, and the damage between them."""
    reader = BlockReader(fs, path, length)
    position = 0
    while position < length:
        record, fault = await _record_at(reader, position)
        if record is None:
            found = await _next_record(reader, position + 1)
            yield Damage(position, (found or length) - position, fault, is_tail=found is None)
            position = found or length
            continue
        yield record
        position += record.size


async def _record_at(reader: BlockReader, position: int) -> tuple[FoundRecord | None, str]:
    left = reader.length - position
    head = await reader.view(position, journal.HEAD.size)
    if len(head) < journal.HEAD.size:
        return None, f"the file ends in a record's head: {left} bytes"
    magic, kind, payload_bytes = journal.HEAD.unpack(head)
    size = journal.OVERHEAD + payload_bytes
    if magic != journal.MAGIC:
        return None, "no record begins here"
    if payload_bytes > journal.RECORD_BYTES_MAX:
        return None, f"no record begins here: its length field says {payload_bytes} bytes"
    if size > left:
        return None, f"the file ends in a record: it has {size} bytes, {left} are here"
    data = await reader.view(position, size)
    for found_kind, payload in journal.read_backwards(data):
        if found_kind == kind and len(payload) == payload_bytes:
            return FoundRecord(position, size, kind, payload), ""
        break
    return None, "the record's CRC does not match"


async def _next_record(reader: BlockReader, start: int) -> int | None:
    overlap = len(journal.MAGIC) - 1
    while start + journal.OVERHEAD <= reader.length:
        text = bytes(await reader.view(start, BLOCK_BYTES))
        at = text.find(journal.MAGIC)
        while at != -1:
            if (await _record_at(reader, start + at))[0] is not None:
                return start + at
            at = text.find(journal.MAGIC, at + 1)
        start += len(text) - overlap
    return None
