"""The draft of a cleaned segment, written piece by piece, and its index."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from bmq.core.file_access import Access
from bmq.core.model import SegmentName, cleaned_name
from bmq.core.records.batch import LENGTH_OVERHEAD
from bmq.storage.checkpoint import Checkpoint, Cleaned
from bmq.storage.cleaning.round import CleanedFacts
from bmq.storage.filesystem import Appender, CreateOptions, FileSystem, in_time
from bmq.storage.index import SegmentIndex

ROOM = 1.125
"""Bytes of a draft in bytes of its sources: Kafka's codecs and levels may need more than the producers' did, and delete
horizons take some bytes."""
FLUSH_BYTES = 1 << 20
"""Bytes of a draft that are flushed at once: more would delay the flushes of producers behind their own."""
MORE_ROOM = 4.0
"""The same after a draft was full."""
_MB = 1 << 20
_INDEXED = struct.Struct(">qi23xq14xi")  # of a batch's header: base offset, length, largest timestamp, count


class DraftFull(Exception):
    """A cleaned file that needs more bytes than its draft was created for."""


class CleanedFileWriter:
    """A draft under way: ``put`` takes batches, also in a thread, and ``flush`` has storage acknowledge them."""

    def __init__(self, appender: Appender, *, bytes_max: int, interval_bytes: int) -> None:
        self._appender = appender
        self._bytes_max = bytes_max
        self._index = SegmentIndex(interval_bytes)
        self._position = 0
        self._parts: list[bytes | bytearray | memoryview] = []

    @classmethod
    async def create(
        cls, fs: FileSystem, path: str, *, sources_bytes: int, room: float, interval_bytes: int, access: Access
    ) -> CleanedFileWriter:
        """Create the draft ``path`` for sources of ``sources_bytes``.  Raises StorageError."""
        bytes_max = (int(sources_bytes * room) // _MB + 1) * _MB  # HDFS refuses blocks below 1 MB
        appender = await fs.create(path, CreateOptions(block_bytes=bytes_max, access=access))
        return cls(appender, bytes_max=bytes_max, interval_bytes=interval_bytes)

    def put(self, data: bytes | bytearray | memoryview) -> None:
        """Take the bytes of the next batches, which do not change any more.  Raises DraftFull."""
        if self._position + len(data) > self._bytes_max:
            raise DraftFull
        at = 0
        while at < len(data):
            base_offset, length, max_timestamp, count = _INDEXED.unpack_from(data, at)
            if count > 0:
                self._index.add(base_offset, self._position + at, max_timestamp)
            at += LENGTH_OVERHEAD + length
        self._parts.append(data)
        self._position += len(data)

    def join(self) -> None:
        """Join the batches of ``put`` to pieces of FLUSH_BYTES: in a thread, as a copy of megabytes takes a while."""
        if len(self._parts) > 1:
            data = memoryview(b"".join(self._parts))
            self._parts = [data[at : at + FLUSH_BYTES] for at in range(0, len(data), FLUSH_BYTES)]

    async def flush(self, *, sync: bool = False) -> int:
        """Write what was taken, and wait until it is acknowledged, with ``sync`` on disk; return the bytes.

        At most FLUSH_BYTES, and a piece of ``put`` or ``join``, wait for an acknowledgement.  Raises StorageError:
        PipelineFailed if nothing is acknowledged for ``WRITE_ONCE_S``.
        """
        parts, self._parts = self._parts, []
        written = sum(len(part) for part in parts)
        async with in_time(self._appender, "a draft of a cleaned segment: nothing acknowledged"):
            waiting = 0
            for part in parts:
                if waiting >= FLUSH_BYTES:
                    await self._appender.flush()
                    waiting = 0
                self._appender.write(part)
                waiting += len(part)
            await self._appender.flush(sync=sync)
        return written

    async def close(self) -> None:
        """Close the complete draft: it is on disk then.  Raises StorageError as ``flush`` does."""
        await self.flush(sync=True)
        async with in_time(self._appender, "a draft of a cleaned segment: not closed"):
            await self._appender.close()

    def abort(self) -> None:
        """Leave the draft as it is."""
        self._appender.abort()

    def index(
        self, names: Sequence[SegmentName], indexes: Sequence[Checkpoint], facts: CleanedFacts, *, modified_ms: int
    ) -> Checkpoint:
        """Return the index of the cleaned segment that replaces the sources of these names and indexes, in order.

        ``modified_ms``: the time of the last source's file.  It stands for records without timestamps, as in Kafka
        (``Cleaner.cleanSegments``), but where the source was cleaned and its own index has an earlier time.  The index
        has it also beside records with timestamps: a later cleaning may remove these alone.
        """
        last = indexes[-1].cleaned
        if last is not None and last.modified_ms >= 0:
            modified_ms = last.modified_ms
        return replace(
            indexes[-1],
            segment=cleaned_name(names),
            position=self._position,
            is_full=True,
            is_closed=True,
            max_timestamp=self._index.max_timestamp,
            max_timestamp_offset=self._index.max_timestamp_offset,
            index=self._index.entries,
            epochs=_epochs(indexes, facts),
            aborted=tuple(facts.aborted),
            cleaned=Cleaned(
                clean_to=facts.cleaned_up_to,
                horizon=facts.earliest_horizon,
                bytes_before=facts.bytes_before,
                bytes_after=facts.bytes_after,
                tombstones=facts.tombstones,
                markers=facts.markers,
                modified_ms=modified_ms,
            ),
        )


def _epochs(indexes: Sequence[Checkpoint], facts: CleanedFacts) -> tuple[tuple[int, int], ...]:
    """Return the sources' lists of leader epochs together, also where no batch of an epoch is left."""
    found: list[tuple[int, int]] = []
    for one in indexes:
        found += [epoch for epoch in one.epochs if not found or epoch[0] > found[-1][0]]
    return tuple(found or facts.epochs)
