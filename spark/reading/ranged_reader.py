"""Reading slices of segments: whole batches in order, from ranged reads a few chunks ahead.

Memory: ``AHEAD`` chunks being read, the one being decoded, and one batch if it is larger than a chunk.  A file that is
gone since planning (merged with its neighbour, or deleted: rule 10) is searched for again by its offsets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from bmq.spark.decoding.corrupt import CorruptSegment
from bmq.spark.decoding.framing import BatchRun, Framer, Misframed
from bmq.spark.planning.permissions import not_readable
from bmq.spark.planning.slices import Slice, raise_or_warn
from bmq.spark.reading.buffers import BUFFERS, CHUNK_BYTES
from bmq.spark.reading.storage_loop import StorageLoop
from bmq.storage.filesystem import FileSystem, NoSuchFile, NotAllowed, read_into
from bmq.storage.layout import PartitionPath

_log = logging.getLogger("bmq.spark")

AHEAD = 3
"""Chunks read ahead: enough to hide storage's latency behind decoding, and few enough for many tasks on a machine."""
RELOCATIONS_MAX = 3

Find = Callable[[Slice], tuple[Sequence[Slice], Sequence[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """The reader's response to faults.  ``find`` searches again for the offsets of a slice whose file is gone."""

    find: Find
    fail_on_data_loss: bool = True
    permissive: bool = False


def path_of(piece: Slice) -> str:
    """Return the path of the slice's ``.log`` file within the root."""
    return PartitionPath(piece.topic, piece.topic_id, piece.partition).log(piece.segment)


class RangedReader:
    """A reader of slices, one after the other."""

    def __init__(self, io: StorageLoop, fs: FileSystem, policy: ReadPolicy) -> None:
        self._io = io
        self._fs = fs
        self._policy = policy
        self.skipped_places = 0

    def runs(self, pieces: Iterable[Slice]) -> Iterator[tuple[Slice, BatchRun]]:
        """Yield (slice, run of whole batches).  Raises DataLoss, CorruptSegment or StorageError."""
        with _Ahead(self._io, self._fs, pieces) as ahead:
            for piece, chunks in ahead:
                yield from self._runs(piece, chunks, RELOCATIONS_MAX)

    def _runs(self, piece: Slice, chunks: Iterator[memoryview], relocations: int) -> Iterator[tuple[Slice, BatchRun]]:
        framer = Framer(
            piece.position,
            piece.offset,
            start=piece.start,
            stop=piece.end,
            limit=piece.limit,
        )
        got = 0
        try:
            for chunk in chunks:
                got += len(chunk)
                for run in self._framed(piece, framer, chunk):
                    yield piece, run
                if framer.is_done:
                    return
        except NotAllowed as error:
            raise self._io.run(not_readable(self._fs, piece.topic, error)) from error
        except NoSuchFile:
            if not relocations:
                raise
            yield from self._moved(replace(piece, start=max(piece.start, framer.next_offset)), relocations - 1)
            return
        if got < piece.size:
            self._lost(
                f"{path_of(piece)} ends at {piece.position + got}, before {piece.end_position} as planned:"
                f" offsets {max(framer.next_offset, piece.start)} to {piece.end} of {piece.topic}-{piece.partition}"
                " are missing"
            )
        elif framer.is_lost:  # reported when it began
            return
        elif framer.pending:
            self._damaged(piece, framer, f"the batch does not end before {piece.end_position}")
        elif framer.next_offset < piece.end:
            self._damaged(piece, framer, f"the batches end here, but should reach offset {piece.end}")

    def _framed(self, piece: Slice, framer: Framer, chunk: memoryview) -> Iterator[BatchRun]:
        while True:
            try:
                yield from framer.feed(chunk)
                return
            except Misframed as error:
                self._damaged(piece, framer, error.fault)
                framer.skip()
                chunk = chunk[:0]

    def _damaged(self, piece: Slice, framer: Framer, reason: str) -> None:
        error = CorruptSegment(path_of(piece), framer.position, framer.next_offset, reason)
        if not self._policy.permissive:
            raise error
        self.skipped_places += 1
        _log.warning("%s; skipped", error)

    def _moved(self, piece: Slice, relocations: int) -> Iterator[tuple[Slice, BatchRun]]:
        found, losses = self._policy.find(piece)
        self._lost(*losses)
        reached = piece.start
        with _Ahead(self._io, self._fs, found) as ahead:
            for each, chunks in ahead:
                self._gap(piece, reached, each.start)
                yield from self._runs(each, chunks, relocations)
                reached = each.end
        self._gap(piece, reached, piece.end)

    def _gap(self, piece: Slice, reached: int, start: int) -> None:
        if reached < start:
            self._lost(f"{piece.topic}-{piece.partition}: offsets {reached} to {start} were deleted while being read")

    def _lost(self, *losses: str) -> None:
        raise_or_warn(losses, fail_on_data_loss=self._policy.fail_on_data_loss)


class _Ahead:
    """The chunks of several slices in order, ``AHEAD`` of them being read before they are needed.

    A chunk's memory is used again once the next one is taken.
    """

    def __init__(self, io: StorageLoop, fs: FileSystem, pieces: Iterable[Slice]) -> None:
        self._io = io
        self._fs = fs
        self._wanted = _requests(pieces)
        self._flying: deque[tuple[Slice, memoryview, Future[int]]] = deque()

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, _, future in self._flying:
            future.cancel()

    def __iter__(self) -> Iterator[tuple[Slice, Iterator[memoryview]]]:
        self._read_ahead()
        while self._flying:
            piece = self._flying[0][0]
            yield piece, self._chunks(piece)
            while self._flying and self._flying[0][0] is piece:  # the rest of the slice is not needed
                self._flying.popleft()[2].cancel()
                self._read_ahead()

    def _chunks(self, piece: Slice) -> Iterator[memoryview]:
        """Yield a slice's chunks; the last one is short if the file ends early."""
        while self._flying and self._flying[0][0] is piece:
            _, buffer, future = self._flying.popleft()
            self._read_ahead()
            length = future.result()
            try:
                yield buffer[:length]
            finally:
                BUFFERS.give_back(buffer)  # a read that was cancelled or failed may still write, and does not get here
            if length < len(buffer):
                return

    def _read_ahead(self) -> None:
        while len(self._flying) < AHEAD and (request := next(self._wanted, None)) is not None:
            piece, position, length = request
            buffer = BUFFERS.take(length)
            future = self._io.submit(read_into(self._fs, path_of(piece), position, buffer))
            self._flying.append((piece, buffer, future))


def _requests(pieces: Iterable[Slice]) -> Iterator[tuple[Slice, int, int]]:
    for piece in pieces:
        for position in range(piece.position, piece.end_position, CHUNK_BYTES):
            yield piece, position, min(CHUNK_BYTES, piece.end_position - position)
