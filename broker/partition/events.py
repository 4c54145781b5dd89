"""What a partition hears (events) and what it asks for (effects).

Plain slotted classes on the produce path, frozen dataclasses everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.errors import ErrorCode
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint, ProducerState
from bmq.storage.recovery import FencedSegment, Recovered


class Pending:
    """An accepted batch on its way to storage.  ``token`` belongs to the shell: who waits for it."""

    __slots__ = ("batch", "copies", "end_position", "producer", "sent_ms", "start_position", "token", "was_sent")

    def __init__(self, batch: Batch, producer: ProducerState | None, copies: int) -> None:
        self.batch = batch
        self.producer = producer
        self.copies = copies  # at least, of the segment that it is written to
        self.start_position = -1
        self.end_position = -1
        self.sent_ms = -1
        self.was_sent = False  # to any file, also one that was given up since
        self.token: object = None

    def __repr__(self) -> str:
        return f"<Pending {self.batch!r} at {self.start_position}..{self.end_position}>"


# --------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Start:
    """Take the partition over."""


@dataclass(frozen=True, slots=True)
class RecordRead:
    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordStored:
    """The record asked for is written (claimed, registered or released, whichever was asked)."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordUnknown:
    """No answer, or "unavailable": the same is asked again until it is known (rule 3)."""

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class RecordRefused:
    """Somebody else wrote: ``record`` is what is there."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordUnreadable:
    """The partition's record cannot be decoded, so nobody can say who owns the partition."""

    reason: str


@dataclass(frozen=True, slots=True)
class SegmentsFenced:
    segments: tuple[FencedSegment, ...]


@dataclass(frozen=True, slots=True)
class FenceFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class LogRecovered:
    """The log's end is known.  ``checkpoint`` is the one recovery began from."""

    recovered: Recovered
    checkpoint: Checkpoint | None
    producers: tuple[ProducerState, ...]
    log_start: int


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """Storage did not answer; to be tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogUnreadable:
    """Bytes that are there by all accounts cannot be read: damage, or a moment's state of storage."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryRefused:
    """Acknowledged data is missing or damaged."""

    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint with this end offset and log start is durable in the journal."""

    end_offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class SpareReady:
    """``copies``: nodes that it is written to; 1 where storage has no such thing."""

    entry: SegmentEntry
    copies: int = 1


@dataclass(frozen=True, slots=True)
class SpareFailed:
    """A spare that could not be created, or whose pipeline broke when it was ready and unused.

    ``is_short``: storage has fewer nodes to give than were asked for.
    """

    reason: str
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class SegmentNamed:
    """A registered spare has its final name: it may be written."""

    name: SegmentName


@dataclass(frozen=True, slots=True)
class NamingFailed:
    name: SegmentName
    reason: str


class Flushed:
    """Bytes up to ``position`` of the segment are acknowledged.  One for each flush, with all its batches."""

    __slots__ = ("name", "position")

    def __init__(self, name: SegmentName, position: int) -> None:
        self.name = name
        self.position = position


@dataclass(frozen=True, slots=True)
class SegmentFailed:
    """The segment's write path is broken or given up as too slow."""

    name: SegmentName
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentClosed:
    """The segment's file is closed and its index written, as far as ``entry`` says."""

    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class EpochChanged:
    """The store's record has this epoch, not ours: somebody else owns the partition, or the record was deleted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """Hand the partition over: flush, checkpoint, close, release."""


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    """Retention or DeleteRecords: nothing before ``offset`` is to be read again."""

    offset: int


@dataclass(frozen=True, slots=True)
class PlaceWanted:
    """Others wait for a place to open a file: close the segment."""


@dataclass(frozen=True, slots=True)
class CopiesWanted:
    """A batch was refused for want of copies: see whether storage gives enough nodes again."""


@dataclass(frozen=True, slots=True)
class CopiesCounted:
    """The result of ``CountCopies``: the file of the offsets [base, end) has so many copies on nodes that answer.

    ``reason``: why they are 0, if storage could not say.
    """

    base: int
    end: int
    copies: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StorageSlow:
    """A node of the open pipeline is slow against the others: go on elsewhere, when the last such roll is long ago."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has come to one of the partition's deadlines.  ``wall_ms`` is what records are stamped with."""

    wall_ms: int


Event = (
    Start
    | RecordRead
    | RecordStored
    | RecordUnknown
    | RecordRefused
    | RecordUnreadable
    | SegmentsFenced
    | FenceFailed
    | LogRecovered
    | RecoveryFailed
    | LogUnreadable
    | RecoveryRefused
    | CheckpointWritten
    | SpareReady
    | SpareFailed
    | SegmentNamed
    | NamingFailed
    | Flushed
    | SegmentFailed
    | SegmentClosed
    | EpochChanged
    | MoveRequested
    | LogStartRaised
    | PlaceWanted
    | CopiesWanted
    | CopiesCounted
    | StorageSlow
    | Tick
)

# -------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """-> RecordRead (the shell retries until the store answers)."""


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Compare ``revision`` and write.  -> RecordStored, RecordUnknown, RecordRefused or RecordUnreadable."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class FenceSegments:
    """-> SegmentsFenced or FenceFailed.  Closed entries need no fence."""

    entries: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True)
class RecoverLog:
    """Find the last checkpoint in ``journals`` (or the closed entry's index) and read on.

    ``is_settled``: the closed entry's index has it, if it can be read.  ``passes_damaged``: do without a journal that
    has no sound replica.  -> LogRecovered, RecoveryFailed, LogUnreadable or RecoveryRefused.
    """

    segments: tuple[FencedSegment, ...]
    entries: tuple[SegmentEntry, ...]
    journals: tuple[str, ...]
    is_settled: bool = False
    passes_damaged: bool = False


@dataclass(frozen=True, slots=True)
class WriteIndexes:
    """Write the ``.idx`` of recovered segments, the last with ``producers``.  Best done, not needed: no answer."""

    recovered: Recovered
    log_start: int
    producers: tuple[ProducerState, ...]


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """-> CheckpointWritten."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class CreateSpare:
    """-> SpareReady or SpareFailed.  ``copies``: on so many nodes at least."""

    epoch: int
    serial: int
    block_bytes: int
    chunk_bytes: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class NameSegment:
    """Rename the spare to its registered name.  -> SegmentNamed or NamingFailed."""

    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class DropSpare:
    """Abandon and delete an unused spare."""

    entry: SegmentEntry


class Wake:
    """There are batches to send on the current segment: ask for a turn."""

    __slots__ = ()


class Acknowledge:
    """These batches are flushed, in order; the high watermark has moved."""

    __slots__ = ("batches",)

    def __init__(self, batches: list[Pending]) -> None:
        self.batches = batches


@dataclass(frozen=True, slots=True)
class Suspect:
    """The oldest flush has hung for ``age_ms``: give the pipeline up if one of its nodes does not answer, or, if
    ``is_slow``, if the nodes are outliers.  -> PipelineFailed."""

    name: SegmentName
    age_ms: int
    is_slow: bool


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer everything that waits with ``code``."""

    batches: tuple[Pending, ...]
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveUnacknowledged:
    """Answer whoever waits for these with ``code``; they stay in the log, and are written when storage lets us."""

    batches: tuple[Pending, ...]
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class CloseSegment:
    """All its bytes are acknowledged: close the file, write its index.  -> SegmentClosed (retried until then).

    ``index_may_wait``: nothing is lost if the index never comes, since the journal, or the log's beginning, tells what
    was before this segment.  Else the index is on storage before the partition is released.
    """

    entry: SegmentEntry
    checkpoint: Checkpoint | None
    index_may_wait: bool = False


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Its pipeline failed: prove the ownership, take the file over, write its index.

    -> SegmentClosed, EpochChanged.
    """

    entry: SegmentEntry
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class DeleteEmpty:
    """Delete segments that hold nothing that was flushed and that the record lists no more.  What fails is left to
    retention."""

    names: tuple[SegmentName, ...]


@dataclass(frozen=True, slots=True)
class CountCopies:
    """Count the copies of the file that holds ``offset``.  The log is flushed up to ``end`` at least."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Perform ``effect`` after ``delay_ms``."""

    delay_ms: int
    effect: Effect


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop every open file of this partition, telling storage nothing."""


@dataclass(frozen=True, slots=True)
class Alarm:
    reason: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The shell tells whoever waits for it."""

    state: str


Effect = (
    ReadRecord
    | StoreRecord
    | FenceSegments
    | RecoverLog
    | WriteIndexes
    | WriteCheckpoint
    | CreateSpare
    | NameSegment
    | DropSpare
    | Wake
    | Suspect
    | Acknowledge
    | Reject
    | LeaveUnacknowledged
    | CloseSegment
    | SealSegment
    | DeleteEmpty
    | CountCopies
    | RunAgain
    | Abort
    | Alarm
    | StateChanged
)
