"""One walk over record batches, without I/O: bytes in, batches or "more bytes are needed" out.

The walks over batches step a ``BatchCursor``, so that all agree on where a batch ends and what is damage.  The caller
holds the bytes and shows a window of them at each step; nothing is copied here::

    cursor = BatchCursor(position, offset, check=BatchCheck.CRC, length=length)
    while (step := cursor.step(window, cursor.position - start)) is not CursorStep.END:
        BATCH    the bytes [cursor.start, cursor.position) are a batch
        MORE     show at least ``cursor.wanted`` bytes from ``cursor.position`` on, and step again
        DAMAGED  ``cursor.fault`` says why no batch can be passed at ``cursor.position``; ``seek`` to go on elsewhere

A batch's length and its base offset are outside its CRC (KIP-98): only the batch that follows, and the offsets around
it, show whether these are right.  Behind damage, ``find_batch`` searches for the next batch that is right by itself.
Two walks are not made of it, for their speed: the Spark decoder's is compiled (``spark.decoding.kernels.scan``), and
``read_batches`` cuts by lengths alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

from crc32c import crc32c

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, Batch

BATCH_BYTES_MAX = (1 << 30) + LENGTH_OVERHEAD
"""A batch may be as large as a segment; a length field past this is garbage."""
OFFSETS_AHEAD_MAX = 1 << 40
"""Bytes found behind damage that declare an offset further away than this are not a batch."""

_HEAD = struct.Struct(">qiiBIhi")  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
_INT = struct.Struct(">i")
_LENGTH_AT = 8
_MAGIC_AT = 16
_COUNT_AT = 57
_MAGIC_BYTE = bytes([MAGIC])
_UNBOUNDED = (1 << 63) - 1


class CursorStep(Enum):
    """The result of one step."""

    BATCH = "a batch was passed"
    MORE = "the window ends before the batch, or its header"
    DAMAGED = "no right batch is due here"
    END = "the walk's end is reached: its length, or its offset"


class BatchCheck(Enum):
    """The part of a batch that is checked, and must be in the window."""

    HEADER = "its header alone"
    WHOLE = "its header, and that all its bytes are there"
    CRC = "its header and its CRC"


class OffsetOrder(Enum):
    """The base offsets that are right."""

    DENSE = "each batch begins where the one before ends, in a compacted log too"
    ANY = "offsets are not judged"


_BATCH, _MORE, _DAMAGED, _END = CursorStep.BATCH, CursorStep.MORE, CursorStep.DAMAGED, CursorStep.END


class BatchCursor:
    """A walk over the batches from ``position`` on, where offset ``next_offset`` is due.

    ``stop``: the walk ends before a batch that begins at or past this offset.  ``limit``: the offset due at the end of
    the bytes; a batch that reaches past it is damage.  ``length``: the position where the bytes end; a batch that
    reaches past it is damage ("torn").  None: unknown.

    After ``BATCH`` the batch is [``start``, ``position``), of ``size`` bytes, with the offsets [``base_offset``,
    ``next_offset``).  After ``DAMAGED``, ``is_misplaced`` tells whether all but the batch's offsets is right.
    """

    __slots__ = (
        "_checks_crc",
        "_judges_offsets",
        "_length",
        "_limit",
        "_stop",
        "_wants_all",
        "base_offset",
        "fault",
        "is_misplaced",
        "next_offset",
        "position",
        "size",
        "start",
        "wanted",
    )

    def __init__(
        self,
        position: int,
        next_offset: int,
        *,
        check: BatchCheck,
        offsets: OffsetOrder = OffsetOrder.DENSE,
        stop: int | None = None,
        limit: int | None = None,
        length: int | None = None,
    ) -> None:
        self.position = self.start = position
        self.next_offset = self.base_offset = next_offset
        self.size = 0
        self.wanted = 0
        self.fault = ""
        self.is_misplaced = False
        self._checks_crc = check is BatchCheck.CRC
        self._wants_all = check is not BatchCheck.HEADER
        self._judges_offsets = offsets is not OffsetOrder.ANY
        self._stop = _UNBOUNDED if stop is None else stop
        self._limit = _UNBOUNDED if limit is None else limit
        self._length = _UNBOUNDED if length is None else length

    def seek(self, position: int, next_offset: int) -> None:
        """Go on at ``position``, where ``next_offset`` is due."""
        self.position = self.start = position
        self.next_offset = self.base_offset = next_offset
        self.size = 0

    def step(self, data: memoryview | bytes | bytearray, at: int = 0) -> CursorStep:
        """Pass the batch at ``data[at]``, which is the byte at ``position``.  See the module for the results."""
        due, position = self.next_offset, self.position
        if due >= self._stop or position >= self._length:
            return _END
        left = len(data) - at
        if left < HEADER_BYTES:
            return self._need(HEADER_BYTES)
        base, length, _, magic, crc, _, last_delta = _HEAD.unpack_from(data, at)
        size = length + LENGTH_OVERHEAD
        if magic != MAGIC:
            return self._damaged(f"no batch begins here: magic {magic}, not {MAGIC}")
        if not HEADER_BYTES <= size <= BATCH_BYTES_MAX:
            return self._damaged(f"no batch begins here: its length field says {size} bytes")
        if self._checks_crc:  # before the offsets: they are believed of a batch that is otherwise right
            if size > left:
                return self._need(size)
            if crc32c(data[at + CRC_START : at + size]) != crc:
                return self._damaged("the batch's CRC does not match")
        following = base + last_delta + 1
        if self._judges_offsets and (base != due or last_delta < 0 or following > self._limit):
            return self._misplaced(base, last_delta)
        if base >= self._stop:
            self.next_offset = base
            return _END
        if size > left and (self._wants_all or position + size > self._length):
            return self._need(size)
        self.start, self.size, self.base_offset = position, size, base
        self.position, self.next_offset = position + size, following
        return _BATCH

    def _need(self, size: int) -> CursorStep:
        left = self._length - self.position
        if size <= left:
            self.wanted = size
            return _MORE
        if size == HEADER_BYTES and left < HEADER_BYTES:
            return self._damaged(f"the bytes end in a batch's header: {left} bytes")
        return self._damaged(f"the bytes end in a batch: it has {size} bytes, {left} are here")

    def _damaged(self, fault: str, *, is_misplaced: bool = False) -> CursorStep:
        self.fault, self.is_misplaced = fault, is_misplaced
        return _DAMAGED

    def _misplaced(self, base: int, last_delta: int) -> CursorStep:
        due = self.next_offset
        if last_delta < 0:
            return self._damaged(f"the batch's last offset delta is {last_delta}")
        if base != due:
            return self._damaged(f"a batch at offset {base}, but {due} is due", is_misplaced=True)
        last = base + last_delta
        return self._damaged(f"a batch of offsets {base} to {last}, but {self._limit} is due after these bytes")


def read_batches(data: memoryview) -> Iterator[Batch]:
    """Yield the batches that ``data`` consists of, cut by their length fields; nothing else of them is checked.

    Raises RequestError CORRUPT_MESSAGE if they do not fill it.  A fetch response holds one batch of a partition, or a
    few.  A cursor for them costs more than the batches do (1.4 us against 1.1), so it is only asked for the fault.
    """
    position, end = 0, len(data)
    while end - position >= HEADER_BYTES:
        size = _INT.unpack_from(data, position + _LENGTH_AT)[0] + LENGTH_OVERHEAD
        if not HEADER_BYTES <= size <= end - position:
            break
        yield Batch(data[position : position + size])
        position += size
    if position < end:
        cursor = BatchCursor(position, 0, check=BatchCheck.WHOLE, offsets=OffsetOrder.ANY, length=end)
        cursor.step(data, position)
        raise RequestError(ErrorCode.CORRUPT_MESSAGE, cursor.fault)


# ------------------------------------------------------------------------------------------------- behind damage


def is_batch(data: memoryview) -> bool:
    """Return whether ``data`` begins with a whole, right batch of any base offset."""
    cursor = BatchCursor(0, 0, check=BatchCheck.CRC, offsets=OffsetOrder.ANY, length=len(data))
    return cursor.step(data) is _BATCH


def candidates(data: memoryview, offset: int, room: int) -> Iterator[tuple[int, int]]:
    """Give (position, size) of each possible batch at or after ``offset`` that ends within ``room`` bytes.

    Cheap checks of the header: most bytes that look like a magic are not one.
    """
    text = bytes(data)
    at = text.find(_MAGIC_BYTE, _MAGIC_AT)
    while at != -1 and at - _MAGIC_AT + HEADER_BYTES <= len(text):
        start = at - _MAGIC_AT
        base, length, _, _, _, _, last_delta = _HEAD.unpack_from(text, start)
        size = length + LENGTH_OVERHEAD
        if (
            offset <= base < offset + OFFSETS_AHEAD_MAX
            and HEADER_BYTES <= size <= room - start
            and 0 <= _INT.unpack_from(text, start + _COUNT_AT)[0] <= last_delta + 1
        ):
            yield start, size
        at = text.find(_MAGIC_BYTE, at + 1)


def find_batch(data: memoryview, offset: int) -> int | None:
    """Return the position of the first whole, right batch in ``data`` with a base offset of ``offset`` or more.

    None if there is none.
    """
    return next((at for at, size in candidates(data, offset, len(data)) if is_batch(data[at : at + size])), None)
