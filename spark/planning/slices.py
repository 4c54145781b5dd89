"""Slices: pieces of work of even size, made of the facts that storage holds about partitions.  Pure.

A ``PartitionLog`` is one partition's live segments with their offsets (names alone show them, rules 3 and 5).
``resolve`` turns the user's limits into a range [start, end) of it, ``slices`` the range into byte ranges of segments,
``pack`` the slices of all partitions into tasks.  A slice is cut only at an index entry, which is where a batch begins;
so every batch belongs to exactly one slice.

Segments and bytes outside a range are left out reliably: names and index entries hold offsets.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from bmq.core.model import SegmentName
from bmq.spark.options import EARLIEST, LATEST, OptionError
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.index import SegmentIndex

_log = logging.getLogger("bmq.spark")
OFFSET_MAX = 2**63 - 1
CUTS_PER_PARTITION = 64
"""Places at which an input partition may end, at most this many for its bytes."""
OPEN_BYTES = 256 << 10
"""Least weight of a slice in bytes: opening a file costs as much as decoding so many bytes."""


class DataLoss(Exception):
    """Records that were selected are gone, or never existed.  With ``failOnDataLoss=false`` this is a warning."""


# ----------------------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A live segment as its folder shows it: offsets [name.base, end).

    ``length`` is as the namespace shows it, exact once the file is closed.  ``coding`` is the erasure-coding policy,
    empty for a replicated file.
    """

    name: SegmentName
    end: int
    length: int
    has_idx: bool
    coding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedSegment:
    """A segment and the facts that an index or a checkpoint adds.  ``entries`` as in ``storage.index``.

    ``position`` is the end of the bytes up to ``segment.end``; None while that is unknown: the other fields then
    describe the bytes before ``known_position``, at which ``known_offset`` is due.  ``open_txns`` are (producer id,
    first offset) of the transactions open at that point.
    """

    segment: Segment
    entries: array[int] = field(default_factory=lambda: array("q"))
    position: int | None = None
    max_timestamp: int | None = None
    first_open_txn: int = -1
    open_txns: tuple[tuple[int, int], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    known_position: int = 0
    known_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """One partition, of which [start, end) may be read."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    segments: tuple[Segment, ...] = ()

    @property
    def label(self) -> str:
        """The topic's name and the partition's number, for texts."""
        return f"{self.topic}-{self.partition}"

    def between(self, start: int, end: int) -> tuple[Segment, ...]:
        """Return the segments that hold offsets of [start, end), oldest first."""
        if start >= end:
            return ()
        first = max(0, bisect_right(self.segments, start, key=_base) - 1)
        held = self.segments[first : bisect_left(self.segments, end, key=_base)]
        return tuple(each for each in held if each.end > max(start, each.name.base))


def _base(segment: Segment) -> int:
    return segment.name.base


# --------------------------------------------------------------------------------------------------------- offsets


@dataclass(frozen=True, slots=True)
class Range:
    """A range [start, end) of a partition's offsets; ``losses`` says what was selected and is not there."""

    start: int
    end: int
    losses: tuple[str, ...] = ()


def resolve(log: PartitionLog, start: int, end: int) -> Range:
    """Return the part of [start, end) that is in the log; each may be ``EARLIEST`` or ``LATEST``.

    Raises OptionError if the start is greater than the end, as Spark's Kafka source does.  ``EARLIEST`` is never
    greater: where it is depends on retention.
    """
    losses = []
    if start != EARLIEST and end not in (EARLIEST, LATEST) and absolute(log, start) > end:
        raise OptionError(
            f"topic {log.topic}, partition {log.partition}: the starting offset {absolute(log, start)} is greater than"
            f" the ending offset {end}"
        )
    if start not in (EARLIEST, LATEST):
        if start < log.start:
            losses.append(f"{log.label}: records from offset {start} are gone, the log begins at {log.start}")
        elif start > log.end:
            losses.append(f"{log.label}: starting offset {start} is past the end, {log.end}")
    elif start == EARLIEST and 0 < end < log.start:  # offset 0 selects nothing, of any log
        losses.append(f"{log.label}: all records before ending offset {end} are gone, the log begins at {log.start}")
    if end not in (EARLIEST, LATEST) and end > log.end:
        losses.append(f"{log.label}: ending offset {end} is past the end, {log.end}")
    first = _clamp(log, start)
    return Range(first, max(first, _clamp(log, end)), tuple(losses))


def absolute(log: PartitionLog, offset: int) -> int:
    """Return ``offset``, or the log's start or end for ``EARLIEST`` or ``LATEST``."""
    if offset == EARLIEST:
        return log.start
    return log.end if offset == LATEST else offset


def _clamp(log: PartitionLog, offset: int) -> int:
    return min(max(absolute(log, offset), log.start), log.end)


# ---------------------------------------------------------------------------------------------------------- slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Bytes [position, end_position) of a segment's log, whole batches, and the offsets [start, end) wanted of them.

    ``offset`` is due at ``position``, ``limit`` at ``end_position``.
    ``coding`` is the segment's.
    ``cuts`` are index entries within, (offset, position) in a flat list: places for further cuts.  ``aborted`` are
    (producer id, first offset, last offset) of the transactions to be left out.
    """

    topic: str
    topic_id: str
    partition: int
    segment: SegmentName
    start: int
    end: int
    offset: int
    position: int
    end_position: int
    limit: int
    aborted: tuple[tuple[int, int, int], ...] = ()
    cuts: array[int] = field(default_factory=lambda: array("q"), repr=False)
    coding: str = ""

    @property
    def size(self) -> int:
        """The slice's bytes."""
        return self.end_position - self.position

    def cut(self, size: int) -> tuple[Slice, Slice] | None:
        """Return two slices, the first of about ``size`` bytes; None if no index entry lies within."""
        count = len(self.cuts) // 2
        if not count:
            return None
        wanted = self.position + size
        at = bisect_left(range(count), wanted, key=lambda i: self.cuts[2 * i + 1])
        if at == count or (at and wanted - self.cuts[2 * at - 1] < self.cuts[2 * at + 1] - wanted):
            at -= 1
        offset, position = self.cuts[2 * at], self.cuts[2 * at + 1]
        head = replace(self, end=min(self.end, offset), end_position=position, limit=offset, cuts=self.cuts[: 2 * at])
        tail = replace(
            self, start=max(self.start, offset), offset=offset, position=position, cuts=self.cuts[2 * at + 2 :]
        )
        return head.leaving_out(self.aborted), tail.leaving_out(self.aborted)

    def leaving_out(self, aborted: Iterable[tuple[int, int, int]]) -> Slice:
        """Return this slice with those transactions of ``aborted`` that have records in it.

        A transaction that ended before the slice's beginning is left out: its producer may have committed since.
        """
        return replace(self, aborted=tuple(each for each in aborted if each[1] < self.end and each[2] >= self.start))


def slices(
    log: PartitionLog,
    wanted: Range,
    facts: Iterable[IndexedSegment],
    *,
    spacing: int = 1,
) -> list[Slice]:
    """Return the byte ranges that hold ``wanted``, of segments whose ``position`` is known.

    ``spacing``: least bytes between the cuts that they may have.
    """
    found = (_slice(log, wanted, each, spacing) for each in facts)
    return [piece for piece in found if piece is not None]


def _slice(log: PartitionLog, wanted: Range, facts: IndexedSegment, spacing: int) -> Slice | None:
    assert facts.position is not None
    segment, index = facts.segment, SegmentIndex(entries=facts.entries)
    start, end = max(wanted.start, segment.name.base), min(wanted.end, segment.end)
    offset, position = index.place_of(start, segment.name.base)
    after = index.count_up_to(end - 1)
    # All that is wanted lies before the first entry at or past the end.
    end_position, limit = facts.position, max(segment.end, facts.known_offset)
    if after < len(index):
        limit, end_position = index.entry_before(after + 1, segment.name.base)
    if start >= end or position >= end_position:
        return None
    last, cuts = position, array("q")
    for i in range(index.count_up_to(start), after):
        entry_offset, entry_position = index.entry_before(i + 1, segment.name.base)
        if entry_position - last >= spacing and entry_position < end_position:
            cuts.extend((entry_offset, entry_position))
            last = entry_position
    return Slice(
        topic=log.topic,
        topic_id=log.topic_id,
        partition=log.partition,
        segment=segment.name,
        start=start,
        end=end,
        offset=offset,
        position=position,
        end_position=end_position,
        limit=limit,
        cuts=cuts,
        coding=segment.coding,
    )


def leave_out(pieces: Iterable[Slice], aborted: Iterable[AbortedTransaction]) -> list[Slice]:
    """Return the slices, each with the aborted transactions that have records in it."""
    known = sorted({(each.producer_id, each.first_offset, each.last_offset) for each in aborted})
    return [piece.leaving_out(known) for piece in pieces]


# ----------------------------------------------------------------------------------------------------------- tasks


def spacing_of(size: int, *, max_bytes: int, min_partitions: int) -> int:
    """Return the bytes between the cuts that ``pack`` needs, where ``size`` bytes are to be packed."""
    return max(1, min(max_bytes, size // min_partitions) // CUTS_PER_PARTITION)


def pack(pieces: Sequence[Slice], *, max_bytes: int, min_partitions: int = 1) -> list[list[Slice]]:
    """Return tasks of even size in the order of the slices, of at most about ``max_bytes`` where cuts allow it.

    All slices are laid end to end and cut at equal distances, each time at the nearest entry: an error of one cut does
    not move the next.
    """
    if not pieces:
        return []
    size = sum(piece.size for piece in pieces)
    least = min(OPEN_BYTES, max_bytes, max(1, size // min_partitions))
    total = sum(max(piece.size, least) for piece in pieces)
    count = max(min_partitions, -(-total // max_bytes))
    tasks: list[list[Slice]] = [[]]
    laid = 0
    for piece in pieces:
        rest = piece
        weight = max(piece.size, least)
        while True:
            room = total * len(tasks) // count - laid
            if room < weight and room <= total // count // 8:  # no slivers
                tasks.append([])
                continue
            halves = rest.cut(room) if room < weight else None
            if halves is None and tasks[-1] and weight > 2 * room:  # cannot be cut, and most lies past the task's end
                tasks.append([])
                continue
            head = rest if halves is None else halves[0]
            tasks[-1].append(replace(head, cuts=array("q")))
            if halves is None:
                laid += weight
                break
            laid += head.size
            weight -= head.size
            rest = halves[1]
            tasks.append([])
    return [task for task in tasks if task]


def raise_or_warn(losses: Iterable[str], *, fail_on_data_loss: bool) -> None:
    """Raise DataLoss for the first loss, or log a warning for each."""
    for loss in losses:
        if fail_on_data_loss:
            raise DataLoss(f"{loss}. Set failOnDataLoss=false to read what is left")
        _log.warning("%s", loss)
