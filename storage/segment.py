"""The ``.idx`` file of a closed segment, and the scan of a ``.log``.

``.idx``, written once when its segment closes (big-endian)::

    magic     8s    b"BMQIDX1\\n"
    length    u32   of the body
    body            a full, closed checkpoint (see ``storage.checkpoint``): position is the segment's length
    crc       u32   CRC-32C of the body

It covers the first ``position`` bytes of its ``.log``.  It stays valid for a log that ``concat`` made longer: the rest
is scanned until the index is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from crc32c import crc32c

from bmq.core.aio.steps import Steps, finish_steps
from bmq.core.errors import FormatError, RequestError
from bmq.core.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, Batch, BatchRules, peek_batch
from bmq.core.records.check import check_records, unpack
from bmq.storage.checkpoint import Checkpoint, decode_steps, encode_steps
from bmq.storage.filesystem import FileSystem

IDX_MAGIC = b"BMQIDX1\n"
READ_BYTES = 4 << 20
BATCH_BYTES_MAX = (1 << 30) + LENGTH_OVERHEAD  # a batch may be as large as a segment; past this a length is garbage
_LENGTH = struct.Struct(">I")
IDX_OVERHEAD = len(IDX_MAGIC) + 2 * _LENGTH.size
"""The bytes of an ``.idx`` file around its checkpoint."""
_OFFSET = struct.Struct(">q")
_MAGIC_BYTE = bytes([MAGIC])
_ANY_TIME = BatchRules(timestamp_after_max_ms=(1 << 63) - 1)
_CRC_MATCHES_MAX = 4
"""Ends of a batch to check that its CRC allows and its records do not.

Chance makes one in 2^32: more are made on purpose.
"""


def encode_idx(checkpoint: Checkpoint) -> bytes:
    """Return the content of an ``.idx`` file."""
    return finish_steps(encode_idx_steps(checkpoint))


def encode_idx_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Do the same as ``encode_idx``, with a pause after each ``PRODUCERS_A_STEP`` producers."""
    body = yield from encode_steps(checkpoint)
    return IDX_MAGIC + _LENGTH.pack(len(body)) + body + _LENGTH.pack(crc32c(body))


def decode_idx(data: bytes) -> Checkpoint:
    """Return the checkpoint in an ``.idx`` file.  Raises FormatError that says what is wrong with the file."""
    return finish_steps(decode_idx_steps(data))


def decode_idx_steps(data: bytes, *, with_producers: bool = True) -> Steps[Checkpoint]:
    """Do the same as ``decode_idx``, with pauses; arguments as in ``checkpoint.decode_steps``."""
    if data[:8] != IDX_MAGIC:
        raise FormatError(f"not an index: begins with {bytes(data[:8])!r}")
    if len(data) < 12:
        raise FormatError("index ends early")
    (length,) = _LENGTH.unpack_from(data, 8)
    body = memoryview(data)[12 : 12 + length]
    if len(body) != length or len(data) < 16 + length:
        raise FormatError(f"index ends early: {len(data)} bytes, expected {16 + length}")
    if crc32c(body) != _LENGTH.unpack_from(data, 12 + length)[0]:
        raise FormatError("index CRC does not match")
    return (yield from decode_steps(body, with_producers=with_producers))


class Reads(Protocol):
    """The part of a ``FileSystem`` that reading needs."""

    async def read(self, path: str, position: int, length: int) -> bytes: ...


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
    ``offset_limit`` (the next segment's base, rule 5).  It needs the memory of one read block, or of one batch if that
    is larger.  Raises FormatError if the file is shorter than ``length``, and what ``fs.read`` raises.
    """
    buffer = memoryview(b"")
    start = position  # of the buffer in the file
    while True:
        at = position - start
        if offset_limit is not None and next_offset >= offset_limit:
            return ScanResult(position, next_offset, Tail.CLEAN)
        found = peek_batch(buffer, at, next_offset, BATCH_BYTES_MAX)
        if found.size:
            batch = Batch(buffer[at : at + found.size])
            on_batch(position, batch)
            position += found.size
            next_offset = batch.next_offset
            continue
        if start + len(buffer) < length and found.fault == "torn":
            had = start + len(buffer) - position
            wanted = max(READ_BYTES, _declared_size(buffer, at))
            buffer = memoryview(await fs.read(path, position, min(wanted, length - position)))
            start = position
            if len(buffer) <= had:
                raise FormatError(f"{path}: {length} bytes are promised, {position + len(buffer)} can be read")
            continue
        if position >= length:
            return ScanResult(position, next_offset, Tail.CLEAN)
        return await _judge(fs, path, position, length, next_offset, found.fault)


def _declared_size(buffer: memoryview, at: int) -> int:
    """Return the batch size that the header at ``at`` declares; 0 if it is cut off, or the size is out of range."""
    if len(buffer) - at < LENGTH_OVERHEAD:
        return 0
    size = int(struct.unpack_from(">i", buffer, at + 8)[0]) + LENGTH_OVERHEAD
    return size if HEADER_BYTES <= size <= BATCH_BYTES_MAX else 0


async def _judge(fs: FileSystem, path: str, position: int, length: int, offset: int, fault: str) -> ScanResult:
    """Decide whether the bad batch at ``position`` is a torn end, or damage with a good batch behind it.

    ===================================================  ======  ======================================================
    at or behind ``position``                            tail    because
    ===================================================  ======  ======================================================
    a right batch with another base offset               BROKEN  a batch is missing or stands twice
    a good batch behind the bad one                      BROKEN  bytes were damaged, not merely cut short
    the batch is right with another length               BROKEN  its length field has changed, and hides what follows
    none of these                                        TORN    the end of a write is missing
    ===================================================  ======  ======================================================

    A batch inside the bad one does not count: a record's value may well be a whole batch (a mirrored topic), and its
    producer must not be able to take the partition offline by a crash of the owner.
    """
    if fault.startswith("base offset"):
        return ScanResult(position, offset, Tail.BROKEN, fault)
    header = await due_header(fs, path, position, length, offset)
    is_credible = header is not None and HEADER_BYTES <= header.size <= BATCH_BYTES_MAX
    start = position + (header.size if header is not None and is_credible else 1)
    overlap = HEADER_BYTES
    while start + HEADER_BYTES <= length:
        data = memoryview(await fs.read(path, start, min(READ_BYTES, length - start)))
        for at, size in _headers(data, offset, length - start):
            whole = data[at : at + size]
            if at + size > len(data):  # it reaches past what was read: check all of it, it may be the only one
                whole = memoryview(await fs.read(path, start + at, size))
            if _is_batch(whole):
                return ScanResult(position, offset, Tail.BROKEN, f"{fault}; a good batch follows at {start + at}")
        if len(data) <= overlap or start + len(data) >= length:
            break
        start += len(data) - overlap
    mended = None if header is None else await with_right_length(fs, path, position, length, header)
    if mended is not None:
        return ScanResult(position, offset, Tail.BROKEN, f"{fault}; the batch is right with {mended.size} bytes")
    return ScanResult(position, offset, Tail.TORN, fault)


async def due_header(fs: Reads, path: str, position: int, length: int, offset: int) -> Batch | None:
    """Return the header at ``position`` if, apart from its length and CRC, it is that of the batch due there.

    ``offset`` is the base offset that is due.  The result is None if it is another header, or cut off.
    """
    data = memoryview(await fs.read(path, position, min(HEADER_BYTES, length - position)))
    if len(data) < HEADER_BYTES:
        return None
    batch = Batch(data)
    is_gap = batch.count == 0 <= batch.last_offset_delta
    is_due = batch.base_offset == offset and batch.magic == MAGIC
    return batch if is_due and (is_gap or 0 <= batch.last_offset_delta < batch.count) else None


async def with_right_length(fs: Reads, path: str, position: int, length: int, header: Batch) -> Batch | None:
    """Return the batch at ``position`` with the length field that makes it right; None if no length does.

    The CRC does not cover the length field (KIP-98).  A batch ends where a batch of the next offset begins, or where
    the file ends.  A producer could forge the CRC of a beginning of its batch, but that lacks some of the records.
    """
    following, window = _OFFSET.pack(header.next_offset), READ_BYTES
    while True:
        text = bytearray(await fs.read(path, position, min(window, length - position)))
        data, is_all = memoryview(text), position + len(text) >= length
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
    records = unpack(batch)
    is_right = not isinstance(records, RequestError) and check_records(batch, records, _ANY_TIME, 0) is None
    return batch if is_right else None


def find_batch(data: memoryview, offset: int) -> int | None:
    """Return the position of the first whole batch in ``data`` with a base offset of ``offset`` or more, or None."""
    return next((at for at, size in _headers(data, offset, len(data)) if _is_batch(data[at : at + size])), None)


def _headers(data: memoryview, offset: int, room: int) -> Iterator[tuple[int, int]]:
    """Give (position, size) of each possible batch at or after ``offset`` that ends within ``room`` bytes."""
    text = bytes(data)
    at = text.find(_MAGIC_BYTE, 16)
    while at != -1:
        start = at - 16
        if start + HEADER_BYTES <= len(data):
            base, size = struct.unpack_from(">qi", data, start)
            size += LENGTH_OVERHEAD
            if offset <= base < offset + (1 << 40) and HEADER_BYTES <= size <= room - start:
                yield start, size
        at = text.find(_MAGIC_BYTE, at + 1)


def _is_batch(data: memoryview) -> bool:
    """Return whether ``data`` begins with a whole, right batch of any base offset."""
    if len(data) < HEADER_BYTES:
        return False
    return not peek_batch(data, 0, Batch(data).base_offset, BATCH_BYTES_MAX).fault
