"""A closed segment's ``.idx`` file, and scanning a ``.log``.

``.idx``, written once when its segment closes (big-endian)::

    magic     8s    b"BMQIDX1\\n"
    length    u32   of the body
    body            a full, closed checkpoint (see ``storage.checkpoint``): position is the segment's length
    crc       u32   CRC-32C of the body

It covers the first ``position`` bytes of its ``.log``.  A log that ``concat`` made longer is still right: the rest is
scanned until the index is written anew.
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
"""Bytes of an ``.idx`` file around its checkpoint."""
_OFFSET = struct.Struct(">q")
_MAGIC_BYTE = bytes([MAGIC])
_ANY_TIME = BatchRules(timestamp_after_max_ms=(1 << 63) - 1)
_CRC_MATCHES_MAX = 4
"""Ends of a batch that its CRC allows and its records do not.  Chance makes one in 2^32: more are made on purpose."""


def encode_idx(checkpoint: Checkpoint) -> bytes:
    """Return the content of an ``.idx`` file."""
    return finish_steps(encode_idx_steps(checkpoint))


def encode_idx_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Do the same as ``encode_idx`` with a pause after some producers."""
    body = yield from encode_steps(checkpoint)
    return IDX_MAGIC + _LENGTH.pack(len(body)) + body + _LENGTH.pack(crc32c(body))


def decode_idx(data: bytes) -> Checkpoint:
    """Return what an ``.idx`` file says.  Raises FormatError with what is wrong."""
    return finish_steps(decode_idx_steps(data))


def decode_idx_steps(data: bytes, *, with_producers: bool = True) -> Steps[Checkpoint]:
    """Do the same as ``decode_idx`` with a pause after some producers; see ``decode_steps``."""
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
    """How a scan of batches ended."""

    CLEAN = "clean"  # the bytes end where a batch ends
    TORN = "torn"  # the last batch is cut short, or its bytes are bad and nothing good follows
    BROKEN = "broken"  # damage: a bad batch with a good one behind it, or a whole one whose length field is wrong


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Good batches reach to ``position`` and ``next_offset``."""

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

    ``on_batch(position, batch)`` is called for each good one.  The scan stops before a batch that reaches
    ``offset_limit`` (the next segment's base, rule 5).  Memory: one read block, or one batch if that is larger.
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
    """What the header at ``at`` says of its batch's size, bounded; 0 when it is not all there."""
    if len(buffer) - at < LENGTH_OVERHEAD:
        return 0
    size = int(struct.unpack_from(">i", buffer, at + 8)[0]) + LENGTH_OVERHEAD
    return size if HEADER_BYTES <= size <= BATCH_BYTES_MAX else 0


async def _judge(fs: FileSystem, path: str, position: int, length: int, offset: int, fault: str) -> ScanResult:
    """A bad batch at ``position``: is anything good behind it?  Then bytes were damaged, not merely cut short.

    A right batch at ``position`` itself with the wrong base offset counts: a batch is missing or stands twice.  What
    lies inside the bad batch does not: a record's value may well be a whole batch (a mirrored topic), and whoever wrote
    it must not be able to take the partition offline by a crash of its owner.  But a batch that is right with another
    length was written whole: its length field has changed since, and hides what follows.
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
            if at + size > len(data):  # it reaches past what was read: look at all of it, it may be the only one
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
    """Return the header at ``position`` if it is, but for length and CRC, that of the batch that is due there."""
    data = memoryview(await fs.read(path, position, min(HEADER_BYTES, length - position)))
    if len(data) < HEADER_BYTES:
        return None
    batch = Batch(data)
    is_gap = batch.count == 0 <= batch.last_offset_delta
    is_due = batch.base_offset == offset and batch.magic == MAGIC
    return batch if is_due and (is_gap or 0 <= batch.last_offset_delta < batch.count) else None


async def with_right_length(fs: Reads, path: str, position: int, length: int, header: Batch) -> Batch | None:
    """Return the batch at ``position`` with the length field that makes it right; None if there is none.

    The length field is not under the CRC (KIP-98).  A batch ends where the next offset stands, or where the file ends.
    A producer could forge the CRC of a beginning of its batch, but that has not all of the records.
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
    """Yield where the batch that begins ``text`` may end: in front of a batch of the next offset, or with the file."""
    at = text.find(following, HEADER_BYTES)
    while at != -1:
        if text[at + 16 : at + 17] == _MAGIC_BYTE:
            yield at
        at = text.find(following, at + 1)
    if is_all:
        yield len(text)


def _mended(data: memoryview) -> Batch | None:
    """Return ``data``, whose CRC is right, as a batch of its length; None if that is not where its records end."""
    _LENGTH.pack_into(data, 8, len(data) - LENGTH_OVERHEAD)
    batch = Batch(data)
    records = unpack(batch)
    is_right = not isinstance(records, RequestError) and check_records(batch, records, _ANY_TIME, 0) is None
    return batch if is_right else None


def find_batch(data: memoryview, offset: int) -> int | None:
    """Position of the first whole batch in ``data`` whose base offset is at least ``offset``; None if there is none."""
    return next((at for at, size in _headers(data, offset, len(data)) if _is_batch(data[at : at + size])), None)


def _headers(data: memoryview, offset: int, room: int) -> Iterator[tuple[int, int]]:
    """(position, size) of what may be a batch at or after ``offset`` that ends within ``room`` bytes."""
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
    """Whether ``data`` begins with a whole, right batch, whatever its base offset."""
    if len(data) < HEADER_BYTES:
        return False
    return not peek_batch(data, 0, Batch(data).base_offset, BATCH_BYTES_MAX).fault
