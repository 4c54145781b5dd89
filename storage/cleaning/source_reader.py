"""The reader of a source: a closed segment, read piece by piece, whose batches a thread checks; and its throttle."""

from __future__ import annotations

from collections.abc import Iterator

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import BatchCheck, BatchCursor, CursorStep
from bmq.storage.cleaning.plain_runs import WINDOW_BYTES, Window, may_be_plain
from bmq.storage.filesystem import FileSystem


class SourceReader:
    """A walk over the batches of a closed segment: offsets [``base``, ``end_offset``) in its first ``length`` bytes.

    ``read`` and ``batches`` alternate until ``is_over``::

        while not reader.is_over:
            await reader.read()
            take(reader.batches())          in a thread; or reader.parts()

    Memory: one piece of ``piece_bytes``.  A larger batch is read whole.
    """

    def __init__(self, fs: FileSystem, path: str, *, base: int, end_offset: int, length: int, piece_bytes: int) -> None:
        self._fs = fs
        self._path = path
        self._length = length
        self._end_offset = end_offset
        self._piece_bytes = piece_bytes
        self._cursor = BatchCursor(0, base, check=BatchCheck.CRC, limit=end_offset, length=length)
        self._piece = memoryview(b"")

    @property
    def is_over(self) -> bool:
        """True behind the last batch."""
        return self._cursor.position >= self._length

    async def read(self) -> int:
        """Read the next piece, with at least one whole batch; return its bytes.  Raises StorageError."""
        wanted = min(max(self._piece_bytes, self._cursor.wanted), self._length - self._cursor.position)
        self._piece = memoryview(await self._fs.read(self._path, self._cursor.position, wanted))
        return len(self._piece)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that the piece has whole, without I/O.  Raises FormatError at the first damaged batch."""
        return (part for part in self._parts(has_windows=False) if isinstance(part, Batch))

    def parts(self) -> Iterator[Batch | Window]:
        """Yield batches as ``batches``, and windows: the taker may pass batches of a window itself.

        A window comes where the next batch may be plain.  The batch behind what was passed follows.
        """
        return self._parts(has_windows=True)

    def _parts(self, *, has_windows: bool) -> Iterator[Batch | Window]:
        cursor, piece = self._cursor, self._piece
        start = cursor.position
        is_short = start + len(piece) < min(start + max(self._piece_bytes, cursor.wanted), self._length)
        while True:
            at = cursor.position - start
            if has_windows and may_be_plain(piece, at):
                window = Window(piece[at : at + WINDOW_BYTES], cursor.next_offset, self._end_offset)
                yield window
                if window.passed:
                    cursor.seek(cursor.position + window.passed, window.next_offset)
                    continue
            if (step := cursor.step(piece, at)) is not CursorStep.BATCH:
                break
            yield Batch(piece[at : cursor.position - start])
        if step is CursorStep.DAMAGED:
            raise FormatError(cursor.fault)
        if step is CursorStep.MORE and is_short:
            raise FormatError(f"the file ends at {start + len(piece)}, but its index covers {self._length} bytes")
        if self.is_over and cursor.next_offset != self._end_offset:
            text = f"its bytes end at offset {cursor.next_offset}"
            raise FormatError(f"{text}, but its index ends at {self._end_offset}")


class Throttle:
    """A bound of bytes in a second.  Pure."""

    def __init__(self, bytes_s: int) -> None:
        self._bytes_s = bytes_s
        self._free_ms = 0.0  # the bytes so far are within the bound from this time on

    def wait_ms(self, count: int, now_ms: int) -> float:
        """Count bytes that were moved; return the milliseconds to wait before more are moved."""
        self._free_ms = max(self._free_ms, now_ms) + count * 1000 / self._bytes_s
        return self._free_ms - now_ms
