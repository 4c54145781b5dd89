"""Producers of a log where no checkpoint holds them up to the offset at which a takeover begins to read.

An index may be damaged, or removed with its segment by retention, while journals are lost. An unknown transaction must
not count as none: its records would be shown as committed. So the producers are read on from an older source, the
newest sound one of these, by the batches behind it:

| source                                     | known up to                                          |
| ------------------------------------------ | ---------------------------------------------------- |
| an older checkpoint of a journal           | its end offset                                       |
| the index of an older segment              | its end offset                                       |
| the index that is left of a file that was  | its end offset, if the segment ends there; the late  |
| merged into a segment                      | index of a former owner may end elsewhere, and is no |
|                                            | source                                               |
| the first segment that is left             | its base: what began before it has no record to show |

Where batches are missing on the way, each producer's sequence is forgotten, as that of any unknown producer. A
transaction that is open there stays open: its marker may be among the missing batches, or may yet come.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing
from typing import NamedTuple

from bmq.broker.partition.producer_state import ProducerTable
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.damage_reader import DamagedPart, walk_batches
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import ListedSegment, walk
from bmq.storage.segment import decode_idx


class OlderProducers(NamedTuple):
    """The producers of a log up to an offset. ``is_complete`` is False if batches before it are missing."""

    table: ProducerTable
    is_complete: bool


async def producers_before(
    fs: FileSystem, path: PartitionPath, known: Checkpoint | None, end: int, wall_ms: int
) -> OlderProducers:
    """Return the producers of the log's batches below offset ``end``.

    ``known``: the last checkpoint that holds producers, None if there is none. Raises StorageError if storage does not
    respond.
    """
    table = ProducerTable(known.producers if known is not None else ())
    offset = known.end_offset if known is not None else None
    position = 0
    useless: set[SegmentName] = set()
    while segments := await _since_last_index(fs, path, offset or 0, end, useless):
        first = segments[0]
        if not first.has_idx or first.name in useless:
            break
        index = await _index(fs, path, first.name)
        segment_end = next((one.name.base for one in segments[1:] if one.has_log), end)
        is_whole = index is not None and (first.has_log or index.end_offset == segment_end)
        if index is not None and is_whole and (offset or 0) < index.end_offset <= end:
            table, offset, position = ProducerTable(index.producers), index.end_offset, index.position
            break
        useless.add(first.name)
    if offset is None:
        offset = segments[0].name.base if segments else end
    replay = _Replay(table, offset, wall_ms)
    for segment in segments:
        if segment.has_log:
            await replay.read(fs, path, segment, position, end if segment.end is None else min(segment.end, end))
        position = 0
    replay.reach(end)
    # An index lists a transaction whose marker is in its segment: listed behind it, readers would hide later records.
    table.transactions.take_aborted()
    return OlderProducers(table, replay.is_complete)


async def _since_last_index(
    fs: FileSystem, path: PartitionPath, start: int, end: int, useless: Collection[SegmentName]
) -> list[ListedSegment]:
    """Return the segments of [start, end) from the newest index on, without ``useless`` indexes; all if none is left.

    An index without a file counts if its name is later than the live segment: a merge appended its file.
    """
    found: list[ListedSegment] = []
    live = (-1, -1, -1)
    async with aclosing(walk(fs, path)) as listing:
        async for listed in listing:
            if listed.name.base >= end:
                break
            if listed.is_live:
                live = listed.name.order
            counts = listed.is_live or (not listed.has_log and listed.name.order > live)
            if counts and (listed.end is None or listed.end > start):
                is_first = listed.has_idx and listed.name not in useless
                found = [listed] if is_first else [*found, listed]
    return found


async def _index(fs: FileSystem, path: PartitionPath, segment: SegmentName) -> Checkpoint | None:
    """Return the segment's index; None if it is gone or damaged."""
    name = path.idx(segment)
    try:
        return decode_idx(await fs.read(name, 0, (await fs.status(name)).length))
    except (NoSuchFile, CorruptData, FormatError):
        return None


class _Replay:
    """A replay of segments into a table, which notes where batches are missing."""

    def __init__(self, table: ProducerTable, offset: int, wall_ms: int) -> None:
        self._table = table
        self._offset = offset
        self._wall_ms = wall_ms
        self.is_complete = True

    async def read(self, fs: FileSystem, path: PartitionPath, segment: ListedSegment, position: int, end: int) -> None:
        """Replay the segment's batches from ``position`` on, below offset ``end``. Unreadable batches are missing."""
        try:
            due = segment.name.base if position == 0 else self._offset
            batches = walk_batches(fs, path.log(segment.name), position, segment.length, due)
            async with aclosing(batches) as items:
                async for item in items:
                    if isinstance(item, DamagedPart):
                        continue  # the offsets of the next batch show what is missing
                    if item.batch.base_offset >= end:
                        return
                    self._pass(item.batch)
        except (NoSuchFile, CorruptData):
            return

    def _pass(self, batch: Batch) -> None:
        if batch.base_offset < self._offset:
            return  # the source holds it
        self.reach(batch.base_offset)
        try:
            self._table.replay(batch, self._wall_ms)
        except FormatError:
            return  # a marker that cannot be read is missing, too
        self._offset = batch.next_offset

    def reach(self, offset: int) -> None:
        """Note that all batches below ``offset`` were given: those not seen are missing."""
        if offset > self._offset:
            self._table.forget_sequences()
            self.is_complete, self._offset = False, offset
