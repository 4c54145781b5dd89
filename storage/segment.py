"""The ``.idx`` file of a closed segment, and the scan of a ``.log``.

``.idx``, written once when its segment closes (big-endian)::

    magic     8s    b"BMQIDX1\\n"
    length    u32   of the body
    body            a full, closed checkpoint (see ``storage.checkpoint``): position is the segment's length
    crc       u32   CRC-32C of the body

A cleaned segment's index is of format 2, which adds fields (``storage.checkpoint.Cleaned``) before the checkpoint::

    magic     8s    b"BMQIDX2\\n"
    length    u32   of the body
    body            cleaning u32, clean up to i64, earliest delete horizon i64, bytes before i64, bytes after i64,
                    tombstones i64, markers i64, then the checkpoint as in format 1
    crc       u32   CRC-32C of the body
    trailer         only if the last source's time is known: modified i64 (milliseconds), CRC-32C of it u32; earlier
                    versions, which read up to the body's CRC, pass it over

An index covers the first ``position`` bytes of its ``.log``.  It stays valid for a log that ``concat`` made longer: the
rest is scanned until the index is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from enum import Enum

from crc32c import crc32c

from bmq.core.aio.steps import Steps, finish_steps
from bmq.core.errors import FormatError
from bmq.core.model import CLEANING_MAX
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.core.records.cursor import BATCH_BYTES_MAX, BatchCheck, BatchCursor, CursorStep
from bmq.storage.batch_search import BlockReader, due_header, next_batch, with_right_length
from bmq.storage.checkpoint import UNKNOWN_CLEANED, Checkpoint, Cleaned, decode_steps, encode_steps
from bmq.storage.filesystem import FileSystem

IDX_MAGIC = b"BMQIDX1\n"
CLEANED_IDX_MAGIC = b"BMQIDX2\n"
_CLEANED = struct.Struct(">Iqqqqqq")
_MODIFIED = struct.Struct(">q")
_LENGTH = struct.Struct(">I")
IDX_OVERHEAD = len(IDX_MAGIC) + 2 * _LENGTH.size
"""The bytes of an ``.idx`` file around its checkpoint."""


class EndsEarly(FormatError):
    """The beginning of an index, without the rest: its writer has not written the rest yet, or never will."""


def encode_idx(checkpoint: Checkpoint) -> bytes:
    """Return the content of an ``.idx`` file."""
    return finish_steps(encode_idx_steps(checkpoint))


def encode_idx_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Do the same as ``encode_idx``, with a pause after each ``PRODUCERS_A_STEP`` producers."""
    body = yield from encode_steps(checkpoint)
    magic, trailer = IDX_MAGIC, b""
    if checkpoint.segment.cleaning:
        *facts, modified_ms = astuple(checkpoint.cleaned or UNKNOWN_CLEANED)
        magic, body = CLEANED_IDX_MAGIC, _CLEANED.pack(checkpoint.segment.cleaning, *facts) + body
        if modified_ms >= 0:
            trailer = _MODIFIED.pack(modified_ms)
            trailer += _LENGTH.pack(crc32c(trailer))
    return magic + _LENGTH.pack(len(body)) + body + _LENGTH.pack(crc32c(body)) + trailer


def decode_idx(data: bytes) -> Checkpoint:
    """Return the checkpoint in an ``.idx`` file.  Raises FormatError that says what is wrong with the file."""
    return finish_steps(decode_idx_steps(data))


def decode_idx_steps(data: bytes, *, with_producers: bool = True) -> Steps[Checkpoint]:
    """Do the same as ``decode_idx``, with pauses; arguments as in ``checkpoint.decode_steps``."""
    is_cleaned = data[:8] == CLEANED_IDX_MAGIC
    if len(data) < 12 and IDX_MAGIC.startswith(data[:8]):
        raise EndsEarly("index ends early")
    if data[:8] != IDX_MAGIC and not is_cleaned:
        raise FormatError(f"not an index: begins with {bytes(data[:8])!r}")
    if len(data) < 12:
        raise EndsEarly("index ends early")
    (length,) = _LENGTH.unpack_from(data, 8)
    body = memoryview(data)[12 : 12 + length]
    if len(body) != length or len(data) < 16 + length:
        raise EndsEarly(f"index ends early: {len(data)} bytes, expected {16 + length}")
    if crc32c(body) != _LENGTH.unpack_from(data, 12 + length)[0]:
        raise FormatError("index CRC does not match")
    if not is_cleaned:
        return (yield from decode_steps(body, with_producers=with_producers))
    if len(body) < _CLEANED.size:
        raise FormatError(f"index ends early: {len(body)} bytes of a cleaned segment")
    cleaning, *facts = _CLEANED.unpack_from(body)
    if not 0 < cleaning <= CLEANING_MAX or min(facts) < -1:
        raise FormatError(f"index of cleaning {cleaning} with {facts}")
    checkpoint = yield from decode_steps(body[_CLEANED.size :], with_producers=with_producers)
    segment = checkpoint.segment._replace(cleaning=cleaning)
    return replace(
        checkpoint, segment=segment, cleaned=replace(Cleaned(*facts), modified_ms=_modified_ms(data[16 + length :]))
    )


def _modified_ms(trailer: bytes) -> int:
    """Return the time in the trailer of a cleaned segment's index, -1 without a trailer.  Raises FormatError."""
    if not trailer:
        return -1
    if len(trailer) < _MODIFIED.size + _LENGTH.size:
        raise FormatError(f"index ends early: {len(trailer)} bytes of a trailer")
    (modified_ms,) = _MODIFIED.unpack_from(trailer)
    if crc32c(trailer[: _MODIFIED.size]) != _LENGTH.unpack_from(trailer, _MODIFIED.size)[0] or modified_ms < 0:
        raise FormatError("the CRC of the index's trailer does not match")
    return int(modified_ms)


class Tail(Enum):
    """The way in which a scan of batches ended."""

    CLEAN = "clean"  # the bytes end where a batch ends
    TORN = "torn"  # the last batch is cut short, or its bytes are bad and no good batch follows
    BROKEN = "broken"  # damage: a bad batch with a good one behind it, or a whole one whose length field is wrong


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The end of the good batches, as ``position`` and ``next_offset``, and the reason why they end there.

    ``fault`` says what is wrong behind it, "" if the tail is clean.
    """

    position: int
    next_offset: int
    tail: Tail
    fault: str = ""


async def scan(
    fs: FileSystem,
    path: str,
    position: int,
    length: int,
    next_offset: int,
    on_batch: Callable[[int, Batch], None],
    *,
    offset_limit: int | None = None,
) -> ScanResult:
    """Read the batches in [position, length) of ``path``, checking each CRC and that offsets are dense.

    ``on_batch(position, batch)`` is called for each good one.  The scan stops before a batch that begins at or past
    ``offset_limit`` (the next segment's base, rule 5).  The scan needs the memory of a read block, or of a batch if the
    batch is larger.  Raises FormatError if the file is shorter than ``length``, and what ``fs.read`` raises.
    """
    reader = BlockReader(fs, path, length)
    cursor = BatchCursor(position, next_offset, check=BatchCheck.CRC, stop=offset_limit, length=length)
    while (step := await reader.step(cursor)) is CursorStep.BATCH:
        on_batch(cursor.start, reader.batch(cursor))
    if step is CursorStep.DAMAGED:
        return await _judge(reader, cursor)
    return ScanResult(cursor.position, cursor.next_offset, Tail.CLEAN)


async def _judge(reader: BlockReader, cursor: BatchCursor) -> ScanResult:
    """Decide whether the bad batch at the cursor is a torn end, or damage with a good batch behind it.

    ===================================================  ======  ======================================================
    at or behind its position                            tail    because
    ===================================================  ======  ======================================================
    a right batch with another base offset               BROKEN  a batch is missing or stands twice
    a good batch behind the bad one                      BROKEN  bytes were damaged, not merely cut short
    the batch is right with another length               BROKEN  its length field has changed, and hides what follows
    none of these                                        TORN    the end of a write is missing
    ===================================================  ======  ======================================================

    A batch inside the bad one does not count: a record's value may well be a whole batch (a mirrored topic), and its
    producer must not be able to take the partition offline by a crash of the owner.
    """
    position, offset, fault = cursor.position, cursor.next_offset, cursor.fault
    if cursor.is_misplaced:
        return ScanResult(position, offset, Tail.BROKEN, fault)
    header = await due_header(reader, position, offset)
    is_credible = header is not None and HEADER_BYTES <= header.size <= BATCH_BYTES_MAX
    found = await next_batch(reader, position + (header.size if header is not None and is_credible else 1), offset)
    if found is not None:
        return ScanResult(position, offset, Tail.BROKEN, f"{fault}; a good batch follows at {found}")
    mended = None if header is None else await with_right_length(reader, position, header)
    if mended is not None:
        return ScanResult(position, offset, Tail.BROKEN, f"{fault}; the batch is right with {mended.size} bytes")
    return ScanResult(position, offset, Tail.TORN, fault)
