"""Checkpoints of a hundred bytes an offset, and a broker's journal that holds them."""

from __future__ import annotations

from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, encode
from bmq.storage.filesystem import Appender, FileSystem
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_END, frame
from tests.unit.spark.storing import BLOCK, Store

NAME = SegmentName(0, 1, 0)


def said(store: Store, end: int, *, is_full: bool = True, name: SegmentName = NAME, partition: int = 0) -> Checkpoint:
    """Return a checkpoint: the segment is flushed up to ``end``, a hundred bytes an offset."""
    return Checkpoint(
        key=PartitionKey(store.topic_id, partition),
        segment=name,
        position=(end - name.base) * 100,
        end_offset=end,
        log_start=0,
        is_full=is_full,
    )


class Journal:
    """One broker's open journal."""

    def __init__(self, fs: FileSystem, incarnation: str = "0-a", n: int = 1) -> None:
        self.fs = fs
        self.path = layout.journal(incarnation, n)
        self._file: Appender | None = None

    async def write(self, *checkpoints: Checkpoint, tail: bytes = b"") -> None:
        if self._file is None:
            self._file = await self.fs.create(self.path, BLOCK)
            self._file.write(frame(SNAPSHOT_END, b""))
        for each in checkpoints:
            self._file.write(frame(CHECKPOINT, encode(each)))
        if tail:
            self._file.write(tail)
        await self._file.flush()
