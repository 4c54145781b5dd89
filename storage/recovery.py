"""The recovery of a log after its owner's end, as a table from facts about its segments to an action.

The partition's record in the key-value store lists every segment not yet known to be closed.  When the segments are
fenced, their *facts* are looked up in ``TABLE``: the first row that fits counts.  Each row names the crash that leads
to it.  ``recover`` gathers the facts: it reads from the last checkpoint only, so its cost does not grow with the
segment or with the log.

The facts about a segment:

* ``Found``: the name under which its file was found: the final name, still the spare name (never written), or none.  A
  file whose final name was registered later than anything that the record knows of is *unlisted*: the record has lost
  what a later state of the store had.  A
  file that is nowhere is *deleted* if all its offsets are below the log start: retention may have removed it.  A file
  with bytes under another name than its final name was *moved*: its inode finds it anywhere, in the trash for instance.
  No broker removes a file that the record lists, nor its spare, so a missing file was not merely unwritten.
* ``Covered``: whether the file reaches the position that a checkpoint says was flushed.
* ``Tail``: the way in which the scan from the checkpoint ended (see ``storage.segment``).
* ``Reach``: whether its good data reaches the next registered segment's base.  Everything before that base was flushed
  when the next one was registered, so less is loss; more is the leftover of a failed write (rule 5).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import Enum

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, ProducerState
from bmq.storage.filesystem import FileSystem
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import logs_from
from bmq.storage.segment import Tail, scan
from bmq.storage.transactions import NOTHING_OPEN, Transactions


class Found(Enum):
    """The place where a segment's file was found."""

    FINAL = "final name"
    SPARE = "spare name"
    MOVED = "with bytes under another name"
    NOWHERE = "nowhere"
    DELETED = "nowhere, and wholly below the log start"
    UNLISTED = "final name, registered after all that the record knows of"


class Covered(Enum):
    """The file's length against the last checkpoint's position in it."""

    NONE = "no checkpoint"
    YES = "reaches it"
    SHORT = "shorter"


class Reach(Enum):
    """The end of the segment's good data against the next segment's base."""

    LAST = "is the last"
    MEETS = "meets or passes it"
    GAP = "ends before it"
    SUPERSEDED = "begins at or after a later one's base, or was flushed past it"


class Action(Enum):
    """The decision about one segment."""

    ACCEPT = "accept up to the end of its last good batch"
    EMPTY = "holds nothing"
    OFFLINE = "take the partition OFFLINE: acknowledged data is missing or damaged"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one segment that decide on its action; see the module's list."""

    found: Found
    covered: Covered
    tail: Tail
    reach: Reach


@dataclass(frozen=True, slots=True)
class Row:
    """A row of ``TABLE``.  A fact that is None matches anything.

    ``label`` names the case, ``crash`` says how it comes about; both are part of the error when it takes a partition
    offline.
    """

    found: Found | None
    covered: Covered | None
    tail: Tail | None
    reach: Reach | None
    action: Action
    label: str
    crash: str

    def fits(self, facts: Facts) -> bool:
        """Return whether the row is about these facts."""
        return all(
            wanted is None or wanted is fact
            for wanted, fact in (
                (self.found, facts.found),
                (self.covered, facts.covered),
                (self.tail, facts.tail),
                (self.reach, facts.reach),
            )
        )


_ANY = None
TABLE: tuple[Row, ...] = (
    Row(Found.UNLISTED, _ANY, _ANY, _ANY, Action.OFFLINE, "the metadata store is older than storage",
        "a copy or a snapshot of the store was brought back, or another cluster writes to this root; stop every process"
        " and rebuild the store by `bmq cluster rebuild`, see docs/rebuild.md"),
    Row(_ANY, Covered.YES, _ANY, Reach.SUPERSEDED, Action.OFFLINE, "overtaken",
        "a later segment was registered below data that had been flushed: two owners, or a bug"),
    Row(_ANY, Covered.SHORT, _ANY, Reach.SUPERSEDED, Action.OFFLINE, "overtaken",
        "a later segment was registered below data that had been flushed: two owners, or a bug"),
    Row(_ANY, _ANY, _ANY, Reach.SUPERSEDED, Action.EMPTY, "superseded",
        "the owner failed over again before anything in this segment was acknowledged"),
    Row(Found.DELETED, _ANY, _ANY, _ANY, Action.EMPTY, "deleted",
        "retention or DeleteRecords removed it before the record was written again"),
    Row(Found.MOVED, _ANY, _ANY, _ANY, Action.OFFLINE, "renamed or moved",
        "something other than BMQ renamed a segment that had been written, or moved it, into the trash for instance"),
    Row(Found.NOWHERE, Covered.YES, _ANY, _ANY, Action.OFFLINE, "vanished",
        "something other than BMQ removed a segment that had been written"),
    Row(Found.NOWHERE, Covered.SHORT, _ANY, _ANY, Action.OFFLINE, "vanished",
        "something other than BMQ removed a segment that had been written"),
    Row(Found.SPARE, Covered.YES, _ANY, _ANY, Action.OFFLINE, "renamed back",
        "a checkpoint describes a segment that has its spare name: something other than BMQ renamed it back"),
    Row(Found.SPARE, Covered.SHORT, _ANY, _ANY, Action.OFFLINE, "renamed back",
        "a checkpoint describes a segment that has its spare name: something other than BMQ renamed it back"),
    Row(Found.NOWHERE, _ANY, _ANY, Reach.GAP, Action.OFFLINE, "lost whole",
        "a later segment was registered at a greater base, so this one had acknowledged data"),
    Row(Found.SPARE, _ANY, _ANY, Reach.GAP, Action.OFFLINE, "lost whole",
        "a later segment was registered at a greater base, so this one had acknowledged data"),
    Row(Found.NOWHERE, Covered.NONE, _ANY, _ANY, Action.OFFLINE, "vanished before its first checkpoint",
        "something other than BMQ removed a segment that may have been written: an unwritten one has its spare name"),
    Row(Found.SPARE, Covered.NONE, _ANY, _ANY, Action.EMPTY, "never renamed",
        "the owner died between register and rename; nothing is written under a spare name"),
    Row(Found.FINAL, Covered.SHORT, _ANY, _ANY, Action.OFFLINE, "shorter than its checkpoint",
        "storage lost flushed bytes"),
    Row(Found.FINAL, _ANY, Tail.BROKEN, _ANY, Action.OFFLINE, "damaged in the middle",
        "damaged bytes, or two writers: a bad batch with a good one behind it, or one with a wrong length field"),
    Row(Found.FINAL, _ANY, _ANY, Reach.GAP, Action.OFFLINE, "ends before the next one begins",
        "storage lost flushed bytes that no checkpoint had covered yet"),
    Row(Found.FINAL, _ANY, Tail.CLEAN, _ANY, Action.ACCEPT, "whole",
        "the owner died between writes, or closed the segment"),
    Row(Found.FINAL, _ANY, Tail.TORN, _ANY, Action.ACCEPT, "torn",
        "the owner died in a write: the last batch was never acknowledged and ends the log logically"),
)  # fmt: skip


def judge(facts: Facts) -> Row:
    """Return the first row that fits.  Every combination of facts has one (the test goes through all)."""
    for row in TABLE:
        if row.fits(facts):
            return row
    raise AssertionError(f"no row for {facts}")


def combinations() -> Iterator[Facts]:
    """Give every combination of facts."""
    for found, covered, tail, reach in itertools.product(Found, Covered, Tail, Reach):
        yield Facts(found, covered, tail, reach)


# -------------------------------------------------------------------------------------------- gathering the facts


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedSegment:
    """A segment of the record after its fence, with its final ``length`` in bytes.

    ``found`` is never ``DELETED`` or ``MOVED``: ``SPARE`` is any name but the final one, and ``recover`` decides by the
    length.  An entry that is ``UNLISTED`` comes from ``find_unlisted``, not from the record.
    """

    name: SegmentName
    found: Found
    length: int


@dataclass(frozen=True, slots=True)
class Offline:
    """The result of a recovery that refuses the log: ``reason`` names the file, the fault and the row."""

    segment: SegmentName
    reason: str


@dataclass(slots=True, kw_only=True)
class RecoveredSegment:
    """A segment that holds data, ready for its ``.idx`` if ``has_whole_index``.

    A journal keeps no index of a closed segment: if the last checkpoint is that of a closed segment, ``index`` has only
    the entries behind it.  ``producers`` and ``first_open_txn`` are as of the segment's end; ``aborted`` has the
    transactions whose abort markers are in it.
    """

    name: SegmentName
    length: int
    end_offset: int
    index: SegmentIndex
    epochs: list[tuple[int, int]]
    has_whole_index: bool = True
    first_open_txn: int = NOTHING_OPEN
    aborted: list[AbortedTransaction] = field(default_factory=list)
    producers: tuple[ProducerState, ...] = ()


@dataclass(slots=True, kw_only=True)
class Recovered:
    """The log's end, and the segments that were scanned to find it.

    ``bytes_read`` counts the scanned bytes; ``labels`` has the name and the row of each segment that was judged.
    """

    end_offset: int
    segments: list[RecoveredSegment]
    bytes_read: int
    labels: list[str]


def ends(names: Sequence[SegmentName]) -> list[int | None]:
    """Return the offset where each segment ends (rule 5): the smallest base of any later one, None for the last.

    ``names`` are in the order of registration.
    """
    result: list[int | None] = []
    limit: int | None = None
    for name in reversed(names):
        result.append(limit)
        limit = name.base if limit is None else min(limit, name.base)
    return result[::-1]


async def find_unlisted(
    fs: FileSystem,
    path: PartitionPath,
    listed: Sequence[FencedSegment],
    last: tuple[int, int],
    epoch: int,
    length_of: Callable[[SegmentName], Awaitable[int | None]],
    drop: Callable[[SegmentName], Awaitable[None]] | None = None,
) -> FencedSegment | None:
    """Return a file that proves the record to be older than storage; None if there is none.

    ``listed`` are the segments of the record, and ``last`` is the (epoch, n) of the last one that was registered. A
    final name is registered before it is given (rule 3), and a registration compares the record.  So once ``epoch`` is
    claimed, a name that was registered after ``last`` is of another, later state of the store.

    | the file                           | then                                                                    |
    | ---------------------------------- | ----------------------------------------------------------------------- |
    | has bytes                          | is proof: a process wrote to it under its final name                    |
    | is empty, of ``epoch`` or a later  | is proof, and readers would take it for the successor of what is to     |
    |                                    | come                                                                    |
    | is empty, and the newest of        | is proof: an owner deletes an empty file that its record does not list  |
    | ``listed`` has no file             | any more, once the next one is registered                               |
    | is empty, of an earlier epoch      | proves nothing: ``bmq cluster rebuild`` may have read the folder before |
    |                                    | a rename that was under way arrived. Its base may lie below the end of  |
    |                                    | a file before it, which it would hide: the owner drops it               |

    ``length_of`` returns a file's length in bytes, after its fence if it may have a writer; None for another
    owner's.  ``drop`` gets the files that prove nothing.  Later registrations never
    begin below the last one, so the listing begins there: as a rule it gives that segment's files alone, however long
    the log is.  Raises StorageError.
    """
    newest = max(listed, key=lambda segment: segment.name.order, default=None)
    is_newest_missing = newest is not None and newest.found is Found.NOWHERE
    async with aclosing(logs_from(fs, path, newest.name.base if newest is not None else 0)) as names:
        async for name in names:
            if name.registration <= last:
                continue
            length = await length_of(name)
            if length is None:
                continue
            if length > 0 or name.epoch >= epoch or is_newest_missing:
                return FencedSegment(name=name, found=Found.UNLISTED, length=length)
            if drop is not None:
                await drop(name)
    return None


async def recover(
    fs: FileSystem,
    path: PartitionPath,
    segments: Sequence[FencedSegment],
    checkpoint: Checkpoint | None,
    on_batch: Callable[[Batch], None],
    *,
    log_start: int = 0,
    index_interval_bytes: int = 65_536,
    producers: Callable[[], tuple[ProducerState, ...]] | None = None,
) -> Recovered | Offline:
    """Judge each fenced segment in the order of registration, and return the log that they make.

    ``checkpoint`` is the partition's last one; ``on_batch`` is called for every batch behind it, in order, so that the
    caller can restore the producers' state.  ``producers`` returns this state, for each segment's index; before the
    first batch it is the checkpoint's, or that of an older source.  ``log_start``
    is the durable one: files that end at or below it may have been deleted.  Without any segment or checkpoint the log
    is empty at 0.  The result is Offline if a segment's row says so.  Raises StorageError if storage does not respond,
    FormatError if a file is shorter than its length.
    """
    for segment in segments:  # first: whatever else an outdated record lacks is its consequence
        if segment.found is Found.UNLISTED:
            return Offline(segment.name, refusal_of(path, segment))
    result = Recovered(end_offset=checkpoint.end_offset if checkpoint else 0, segments=[], bytes_read=0, labels=[])
    segments = sorted(segments, key=lambda segment: segment.name.order)
    limits = ends([segment.name for segment in segments])
    producers = producers or (lambda: checkpoint.producers if checkpoint is not None else ())
    transactions = Transactions.of(producers())

    def note(batch: Batch) -> None:
        transactions.pass_batch(batch)
        on_batch(batch)

    for segment, limit in zip(segments, limits, strict=True):
        if checkpoint is not None and segment.name.order < checkpoint.segment.order:
            continue  # wholly described by the checkpoint of a later one
        if segment.found is Found.SPARE and segment.length > 0:
            segment = replace(segment, found=Found.MOVED)
        if segment.found is Found.NOWHERE and limit is not None and limit <= log_start:
            segment = replace(segment, found=Found.DELETED)
        count = len(result.segments)
        verdict = await _judge_segment(fs, path, segment, limit, checkpoint, result, note, index_interval_bytes)
        if verdict is not None:
            return verdict
        for accepted in result.segments[count:]:
            accepted.aborted += transactions.take_aborted()
            accepted.first_open_txn, accepted.producers = transactions.first_open, producers()
    return result


async def _judge_segment(
    fs: FileSystem,
    path: PartitionPath,
    segment: FencedSegment,
    limit: int | None,
    checkpoint: Checkpoint | None,
    result: Recovered,
    on_batch: Callable[[Batch], None],
    interval: int,
) -> Offline | None:
    own = checkpoint if checkpoint is not None and checkpoint.segment == segment.name else None
    covered = Covered.NONE
    if own is not None and own.position > 0:
        covered = Covered.YES if own.position <= segment.length else Covered.SHORT
    end, tail, fault, found_segment = segment.name.base, Tail.CLEAN, "", None
    # A segment flushed past a later one's base is as bad as one that begins behind it: records would stand twice.
    start = own.end_offset if covered is not Covered.NONE and own is not None else segment.name.base
    is_superseded = limit is not None and (segment.name.base >= limit or start > limit)
    if segment.found is Found.FINAL and covered is not Covered.SHORT and not is_superseded:
        found_segment = _start(segment, own, interval)

        def on_good_batch(position: int, batch: Batch) -> None:
            _note(found_segment, position, batch)
            on_batch(batch)

        position = own.position if own else 0
        start = own.end_offset if own else segment.name.base
        scanned = await scan(
            fs, path.log(segment.name), position, segment.length, start, on_good_batch, offset_limit=limit
        )
        end, tail, fault = scanned.next_offset, scanned.tail, scanned.fault
        found_segment.length, found_segment.end_offset = scanned.position, end
        result.bytes_read += scanned.position - position
    reach = Reach.SUPERSEDED if is_superseded else _reach(end, limit)
    facts = Facts(segment.found, covered, tail, reach)
    row = judge(facts)
    result.labels.append(f"{segment.name}: {row.label}")
    if row.action is Action.OFFLINE:
        return Offline(segment.name, _reason(path, segment.name, row, fault))
    if row.action is Action.ACCEPT and found_segment is not None:
        result.end_offset = end
        if found_segment.length > 0:
            result.segments.append(found_segment)
    elif not is_superseded:
        result.end_offset = segment.name.base
    return None


def refusal_of(path: PartitionPath, segment: FencedSegment) -> str:
    """Return the reason that an unlisted segment gives for taking its partition offline."""
    assert segment.found is Found.UNLISTED
    return _reason(path, segment.name, judge(Facts(segment.found, Covered.NONE, Tail.CLEAN, Reach.LAST)))


def _reason(path: PartitionPath, name: SegmentName, row: Row, fault: str = "") -> str:
    detail = f" ({fault})" if fault else ""
    return f"{path.log(name)}: {row.label}{detail}: {row.crash}"


def _reach(end: int, limit: int | None) -> Reach:
    if limit is None:
        return Reach.LAST
    return Reach.MEETS if end >= limit else Reach.GAP


def _start(segment: FencedSegment, own: Checkpoint | None, interval: int) -> RecoveredSegment:
    index = SegmentIndex(interval, own.index[:] if own else None)  # the checkpoint is kept, and used again
    if own is not None:
        index.max_timestamp, index.max_timestamp_offset = own.max_timestamp, own.max_timestamp_offset
    return RecoveredSegment(
        name=segment.name,
        length=0,
        end_offset=segment.name.base,
        index=index,
        epochs=list(own.epochs) if own else [],
        aborted=list(own.aborted) if own else [],
        has_whole_index=own is None or not own.is_closed or bool(own.index) or own.position <= interval,
    )


async def index_again(
    fs: FileSystem, path: PartitionPath, segment: RecoveredSegment, interval_bytes: int
) -> RecoveredSegment:
    """Read the whole segment, and return it with its whole index.

    Raises StorageError, and FormatError if the segment does not end where the recovery found its end.
    """
    whole = RecoveredSegment(
        name=segment.name,
        length=segment.length,
        end_offset=segment.end_offset,
        index=SegmentIndex(interval_bytes),
        epochs=[],
        first_open_txn=segment.first_open_txn,
        aborted=segment.aborted,
        producers=segment.producers,
    )
    await read_whole(fs, path, whole, lambda batch: None)
    return whole


async def read_whole(
    fs: FileSystem,
    path: PartitionPath,
    segment: RecoveredSegment,
    on_batch: Callable[[Batch], None],
    *,
    is_length_known: bool = True,
) -> None:
    """Read the whole of a closed segment; fill its index and its epochs, and call ``on_batch`` for each batch.

    Without ``is_length_known`` the file may have leftover of a failed write behind the end offset. The segment's length
    becomes the length up to the end offset. Raises StorageError, and FormatError if the segment does
    not end at its end offset.
    """

    def note(position: int, batch: Batch) -> None:
        _note(segment, position, batch)
        on_batch(batch)

    name, end = path.log(segment.name), segment.end_offset
    scanned = await scan(fs, name, 0, segment.length, segment.name.base, note, offset_limit=end)
    if not is_length_known and scanned.next_offset == end:
        segment.length = scanned.position
    if (scanned.position, scanned.next_offset) != (segment.length, end):
        raise FormatError(f"{name}: ends at offset {scanned.next_offset}, not at {end} {scanned.fault}".rstrip())


def _note(segment: RecoveredSegment | None, position: int, batch: Batch) -> None:
    assert segment is not None
    segment.index.add(batch.base_offset, position, batch.max_timestamp)
    if not segment.epochs or segment.epochs[-1][0] != batch.leader_epoch:
        segment.epochs.append((batch.leader_epoch, batch.base_offset))
