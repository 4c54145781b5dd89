"""Reading a file of any size in blocks, and cutting it into right and damaged parts.

Two formats are read in the same way, batches of a ``.log`` and records of a ``.jnl``.  Right items are returned one by
one.  At a fault the next right item is searched for, so a single bad byte hides a single item, not the rest.  The
search needs the memory of a block, or of an item if larger.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.core.records.cursor import BatchCheck, BatchCursor, CursorStep, OffsetOrder
from bmq.storage import journal
from bmq.storage.batch_search import READ_BYTES, BlockReader, Reads, due_header, next_batch, with_right_length


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
class DamagedPart:
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


# ------------------------------------------------------------------------------------------------- batches


async def walk_batches(
    fs: Reads, path: str, position: int, length: int, offset: int
) -> AsyncGenerator[FoundBatch | DamagedPart, None]:
    """Give the batches in [position, length) of a ``.log``, and the damage between them.

    ``offset`` is the one due at ``position``; it only guides the search behind damage.
    """
    reader = BlockReader(fs, path, length)
    cursor = BatchCursor(position, offset, check=BatchCheck.CRC, offsets=OffsetOrder.ANY, length=length)
    while (step := await reader.step(cursor)) is not CursorStep.END:
        if step is CursorStep.BATCH:
            yield FoundBatch(cursor.start, reader.batch(cursor))
            continue
        damage = await _damage(reader, cursor)
        yield damage
        due = cursor.next_offset if damage.mended is None else damage.mended.next_offset
        cursor.seek(damage.position + damage.size, due)


async def _damage(reader: BlockReader, cursor: BatchCursor) -> DamagedPart:
    """Return the damage at the cursor, which ends where the next right batch begins."""
    position, offset, fault = cursor.position, cursor.next_offset, cursor.fault
    due = await due_header(reader, position, offset)
    mended = due and await with_right_length(reader, position, due)
    if mended:
        fault = f"the batch's length field is damaged: it has {mended.size} bytes"
        return DamagedPart(position, mended.size, fault, is_tail=False, mended=mended)
    left = reader.length - position
    head = await reader.view(position, HEADER_BYTES)
    header = Batch(head) if len(head) == HEADER_BYTES else None
    if header is not None and HEADER_BYTES <= header.size < left and await reader.is_batch(position + header.size):
        return DamagedPart(position, header.size, fault, is_tail=False, header=header)
    found = await next_batch(reader, position + 1, offset)
    if header is not None and header.size != left:
        header = None
    return DamagedPart(position, (found or reader.length) - position, fault, is_tail=found is None, header=header)


# ------------------------------------------------------------------------------------------------- journal records


async def walk_journal(fs: Reads, path: str, length: int) -> AsyncGenerator[FoundRecord | DamagedPart, None]:
    """Give the records of a journal, first first, and the damage between them."""
    reader = BlockReader(fs, path, length)
    position = 0
    while position < length:
        record, fault = await _record_at(reader, position)
        if record is None:
            found = await _next_record(reader, position + 1)
            yield DamagedPart(position, (found or length) - position, fault, is_tail=found is None)
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
    found = journal.record_before(data, size)
    if found is None or found[2] != 0:
        return None, "the record's CRC does not match"
    return FoundRecord(position, size, kind, found[1]), ""


async def _next_record(reader: BlockReader, start: int) -> int | None:
    overlap = len(journal.MAGIC) - 1
    while start + journal.OVERHEAD <= reader.length:
        text = bytes(await reader.view(start, READ_BYTES))
        at = text.find(journal.MAGIC)
        while at != -1:
            if (await _record_at(reader, start + at))[0] is not None:
                return start + at
            at = text.find(journal.MAGIC, at + 1)
        start += len(text) - overlap
    return None
