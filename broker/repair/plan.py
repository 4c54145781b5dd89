"""The plan of a partition's repair: the batches of every segment that can be kept, and the offsets that are lost.

Good batches are kept byte for byte.  Lost offsets become a *gap*: a batch without records, like those that Kafka's
compaction leaves in place of a producer's last batch (``DefaultRecordBatch.writeEmptyHeader``).  So offsets stay dense,
every reader goes on behind the gap, and no offset is ever given to two records.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum

from bmq.broker.repair.transactions import NO_TRANSACTIONS, SegmentEnd, TransactionScan
from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch, build_gap
from bmq.core.records.check import stored_fault
from bmq.core.records.control import end_marker_of
from bmq.core.records.reader import read_records
from bmq.storage.damage_reader import DamagedPart, FoundBatch, walk_batches
from bmq.storage.filesystem import CorruptData, FileSystem, NoSuchFile, StorageError
from bmq.storage.index import SegmentIndex

_CORRUPT_STEP = 4 << 10
_UNREADABLE_STEP = 256 << 10
"""Smallest reads, in bytes, that separate good bytes from bad bytes: from bytes with a wrong checksum, and from bytes
that no datanode returns.  A try of the second kind may take seconds."""


class Choice(Enum):
    """The operator's choice for offsets that are lost at the log's end: skip them, or end the log before them.

    Lost offsets before the end are skipped in any case.
    """

    SKIP = "skip"
    SHORTER = "shorter"


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that are copied from the old file."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Mended:
    """A batch whose length field was damaged, with the right length."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class WrittenMarker:
    """The end of a transaction, which the repair writes."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets [first, end) that are lost; ``position`` is their place in the old file."""

    first: int
    end: int
    position: int
    why: str
    leader_epoch: int


@dataclass(slots=True)
class SegmentPlan:
    """The content of one segment after the repair.

    ``source``: path of the file with its bytes now, "" if there is none; ``length``: bytes of that file; ``position``
    and ``end_offset``: the end of the new segment.
    """

    name: SegmentName
    source: str
    length: int
    leader_epoch: int
    parts: list[Kept | Mended | WrittenMarker | LostOffsets] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    position: int = 0
    end_offset: int = 0
    is_changed: bool = False
    lacks_index: bool = False
    """True if no index of the segment can be read."""
    index: SegmentIndex = field(default_factory=SegmentIndex)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    end: SegmentEnd = NO_TRANSACTIONS

    @property
    def gaps(self) -> list[LostOffsets]:
        """The parts that are gaps."""
        return [part for part in self.parts if isinstance(part, LostOffsets)]

    @property
    def is_empty(self) -> bool:
        """True if the segment has neither batches nor gaps."""
        return not self.parts

    @property
    def lost(self) -> int:
        """Number of offsets that the segment loses."""
        return sum(gap.end - gap.first for gap in self.gaps)


class Planner:
    """Builder of one ``SegmentPlan`` from the batches and the damage that are found.  Pure.

    ``limit``: the next segment's base, None for the last segment; ``with_records``: also check that each batch's
    records can be read; ``scan``: passes each batch that is kept, and all lost offsets.
    """

    def __init__(
        self,
        name: SegmentName,
        source: str,
        length: int,
        limit: int | None,
        *,
        with_records: bool,
        interval_bytes: int,
        scan: TransactionScan,
    ) -> None:
        self.plan = SegmentPlan(name, source, length, name.epoch, end_offset=name.base)
        self.plan.index = SegmentIndex(interval_bytes)
        self._limit = limit
        self._with_records = with_records
        self._scan = scan
        self._fault = ""
        self._fault_at = 0
        self._header: Batch | None = None

    @property
    def is_complete(self) -> bool:
        """True once the plan reaches the next segment's base, so that nothing more need be read."""
        return self._limit is not None and self.plan.end_offset >= self._limit

    def on_damage(self, damage: DamagedPart) -> None:
        """Remember the damage as the cause of a gap that may follow, or keep the batch that could be mended."""
        self._fault, self._fault_at, self._header = damage.fault, damage.position, damage.header
        self.plan.is_changed |= not damage.is_tail
        if damage.mended is not None:
            found = FoundBatch(damage.position, damage.mended)
            self._fault, self._fault_at, self._header = "", 0, None
            self.plan.notes.append(f"{damage.fault}, at {damage.position}: kept with the right length")
            self.on_batch(found, Mended(damage.mended.data))

    def on_batch(self, found: FoundBatch, mended: Mended | None = None) -> None:
        """Keep the batch, as it is in the file or as it is ``mended``, if it can be kept."""
        batch, plan = found.batch, self.plan
        if batch.base_offset < plan.end_offset:
            plan.is_changed = True
            plan.notes.append(f"offsets from {batch.base_offset} are found again at {found.position}: dropped there")
            return
        if self._limit is not None and batch.next_offset > self._limit:
            return
        if batch.base_offset > plan.end_offset:
            self._gap(batch.base_offset, self._fault or "a batch is missing", self._fault_at or found.position)
        why = _unreadable(batch) if self._with_records else _unreadable_marker(batch)
        if why:
            self._header = batch
            self._gap(batch.next_offset, why, found.position)
            return
        last = plan.parts[-1] if plan.parts else None
        if mended is not None:
            plan.parts.append(mended)
        elif isinstance(last, Kept) and last.position + last.size == found.position:
            plan.parts[-1] = Kept(last.position, last.size + batch.size)
        else:
            plan.parts.append(Kept(found.position, batch.size))
        self._note(batch)
        self._scan.keep(batch)

    def finish(self, end_offset: int, *, aborts_hanging: bool = False) -> SegmentPlan:
        """Return the plan, with a gap for the offsets that are missing up to ``end_offset``, where the segment ends.

        ``aborts_hanging``: end the transactions behind this gap whose markers may be lost.
        """
        plan = self.plan
        if plan.end_offset < end_offset:
            where = self._fault_at if self._fault else plan.length
            self._gap(end_offset, self._fault or "the file ends before", where)
        if aborts_hanging:
            for data in self._scan.abort_hanging(plan.end_offset, plan.leader_epoch):
                self._write(data)
        plan.end = self._scan.end(plan.end_offset)
        return plan

    def _gap(self, end: int, why: str, position: int) -> None:
        plan = self.plan
        header = self._header
        if header is not None and (header.base_offset, header.next_offset) != (plan.end_offset, end):
            header = None  # damaged itself, or other offsets are lost too
        for data in self._scan.lose(plan.end_offset, end, plan.leader_epoch, header):
            self._lose(Batch(memoryview(data)).base_offset, why, position)
            self._write(data)
        self._lose(end, why, position)
        self._fault, self._fault_at, self._header = "", 0, None

    def _lose(self, end: int, why: str, position: int) -> None:
        plan = self.plan
        if plan.end_offset >= end:
            return
        plan.parts.append(LostOffsets(plan.end_offset, end, position, why, plan.leader_epoch))
        plan.is_changed = True
        for data in build_gap(plan.end_offset, end, plan.leader_epoch):
            self._note(Batch(memoryview(data)))

    def _write(self, data: bytearray) -> None:
        self.plan.parts.append(WrittenMarker(memoryview(data)))
        self.plan.is_changed = True
        self._note(Batch(memoryview(data)))

    def _note(self, batch: Batch) -> None:
        plan = self.plan
        plan.leader_epoch = max(plan.leader_epoch, batch.leader_epoch)
        plan.index.add(batch.base_offset, plan.position, batch.max_timestamp)
        if not plan.epochs or plan.epochs[-1][0] != batch.leader_epoch:
            plan.epochs.append((batch.leader_epoch, batch.base_offset))
        plan.position += batch.size
        plan.end_offset = batch.next_offset


def _unreadable(batch: Batch) -> str:
    """Return why consumers cannot read the batch's records; "" if they can."""
    if batch.count == 0:
        return ""
    if not stored_fault(batch):
        return _unreadable_marker(batch)
    try:
        for _ in read_records(batch):
            pass
    except FormatError as error:
        return f"its records cannot be read: {error}"
    return _unreadable_marker(batch)


def _unreadable_marker(batch: Batch) -> str:
    """Return why no reader can read a control batch's record; "" if it can, and for a batch of data."""
    if batch.is_control:
        try:
            end_marker_of(batch)
        except FormatError as error:
            return f"its marker cannot be read: {error}"
    return ""


class Salvage:
    """Reader of a damaged file: bytes that cannot be read are returned as zeros, and fail their batch's CRC.

    Bytes without a right checksum on any replica are lost.  Bytes that no datanode returns now are lost only if
    ``unreadable_is_lost``: a datanode that has them may come back.
    """

    def __init__(self, fs: FileSystem, *, unreadable_is_lost: bool) -> None:
        self._fs = fs
        self._unreadable_is_lost = unreadable_is_lost

    async def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes.  Raises NoSuchFile, and StorageError if the bytes may come back."""
        try:
            return await self._fs.read(path, position, length)
        except NoSuchFile:
            raise
        except CorruptData:
            step = _CORRUPT_STEP
        except StorageError:
            if not self._unreadable_is_lost:
                raise
            step = _UNREADABLE_STEP
        if length <= step:
            return bytes(length)
        half = max(step, length // 2 // step * step)
        return await self.read(path, position, half) + await self.read(path, position + half, length - half)


async def plan_segment(
    salvage: Salvage,
    name: SegmentName,
    source: str,
    length: int,
    limit: int | None,
    acknowledged: int,
    *,
    choice: Choice,
    with_records: bool,
    aborts_hanging: bool,
    interval_bytes: int,
    scan: TransactionScan,
) -> SegmentPlan:
    """Read one segment completely and return its plan.

    ``limit``: the next segment's base, None for the last segment.  ``acknowledged``: for the last segment, the log's
    end as far as the record and checkpoints show it.  ``aborts_hanging``: end the transactions whose markers may be
    lost, at the end of the last segment.  Raises NoSuchFile, and StorageError if bytes may come back.
    """
    planner = Planner(name, source, length, limit, with_records=with_records, interval_bytes=interval_bytes, scan=scan)
    if source:
        async with aclosing(walk_batches(salvage, source, 0, length, name.base)) as items:
            async for item in items:
                if planner.is_complete:
                    break
                if isinstance(item, FoundBatch):
                    planner.on_batch(item)
                else:
                    planner.on_damage(item)
    if limit is not None:
        return planner.finish(limit)
    return planner.finish(acknowledged if choice is Choice.SKIP else name.base, aborts_hanging=aborts_hanging)
