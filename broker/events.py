"""Events that a partition's machine takes, and effects that it returns.

Plain slotted classes on the produce path, frozen dataclasses elsewhere. The driver (``broker.partition.driver``)
performs an effect and posts the event that the effect's docstring names behind "->". Rules: docs/design/rules.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode
from bmq.core.model import SegmentName
from bmq.meta.ownership import NEVER, PartitionRecord, SegmentEntry, Swap
from bmq.storage.aborted import StableMove
from bmq.storage.checkpoint import Checkpoint, ProducerState
from bmq.storage.recovery import FencedSegment, Recovered

# --------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Start:
    """Beginning of the takeover."""


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The partition's record and its revision, as the metadata store has them."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordStored:
    """The stored record, with its new revision: the requested claim, registration, swap or release."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordUnknown:
    """An unknown outcome of ``StoreRecord``: no response, or "unavailable".

    The same write is sent until it is known (rule 3).
    """

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class RecordRefused:
    """A refused ``StoreRecord``: another process wrote in between, and ``record`` is what the store has now."""

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class RecordUnreadable:
    """A record that cannot be decoded: who owns the partition cannot be determined."""

    reason: str


@dataclass(frozen=True, slots=True)
class SegmentsFenced:
    """The listed segments after their fence: no predecessor can write to them any more."""

    segments: tuple[FencedSegment, ...]


@dataclass(frozen=True, slots=True)
class FenceFailed:
    """A fence that storage did not complete; to be tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogRecovered:
    """The end of the log. ``checkpoint`` is the one that recovery began from; None if there was none.

    ``unindexed``: the record's segments whose index is not on storage, whether they were read or not.
    """

    recovered: Recovered
    checkpoint: Checkpoint | None
    producers: tuple[ProducerState, ...]
    log_start: int
    unindexed: frozenset[SegmentName] = frozenset()


@dataclass(frozen=True, slots=True)
class IndexWritten:
    """The end of the work on a recovered segment's index: it is on storage, or was given up."""

    name: SegmentName


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """A recovery that storage, or the metadata store, did not complete; to be tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class LogUnreadable:
    """Bytes that should exist cannot be read: damage, or a passing state of storage."""

    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryRefused:
    """Missing or damaged data that was acknowledged, or a metadata store that is older than storage."""

    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint with this end offset and log start that is durable in the journal."""

    end_offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A spare that was created, on ``copies`` datanodes; 1 where storage has none, as a local folder.

    ``block_bytes``: the block's size, if it is smaller than requested; 0 otherwise.
    """

    entry: SegmentEntry
    copies: int = 1
    block_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SpareFailed:
    """A spare that could not be created, or whose pipeline broke while it was ready and unused.

    ``is_short``: storage gave fewer datanodes than were requested.
    """

    reason: str
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class SegmentNamed:
    """A registered spare that has its final name, and may be written."""

    name: SegmentName


@dataclass(frozen=True, slots=True)
class NamingFailed:
    """A rename of a registered spare that failed; to be tried again."""

    name: SegmentName
    reason: str


class Flushed:
    """An acknowledged flush: the segment's bytes up to ``position``.  The flush of several batches is one event."""

    __slots__ = ("name", "position")

    def __init__(self, name: SegmentName, position: int) -> None:
        self.name = name
        self.position = position


@dataclass(frozen=True, slots=True)
class SegmentFailed:
    """A segment whose pipeline broke, or was given up as silent or too slow.

    ``is_fenced``: storage says that the file was fenced, closed or deleted under its writer; the cause is not known.
    """

    name: SegmentName
    reason: str
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class SegmentClosed:
    """A segment whose file is closed; ``entry`` has its length and end offset.

    Its index is written; or left for the release note (``index_waits``), and written once the partition is released.
    """

    entry: SegmentEntry
    index_waits: bool = False


@dataclass(frozen=True, slots=True)
class EpochChanged:
    """Another epoch in the store's record than this owner's.

    Another broker owns the partition, or the record was deleted.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """Request to hand the partition over: flush, checkpoint, close, release."""


@dataclass(frozen=True, slots=True)
class LogStartRaised:
    """New log start, by retention or DeleteRecords: nothing before ``offset`` is to be read again."""

    offset: int


@dataclass(frozen=True, slots=True)
class SwapWanted:
    """Request to store the record with this swap; with None once the swap is complete, or its draft is gone."""

    swap: Swap | None


@dataclass(frozen=True, slots=True)
class OldNamesUnneeded:
    """Request to store the record without the names of closed segments before the newest.

    A quiet partition registers no segment, so no next record comes by itself.
    """


@dataclass(frozen=True, slots=True)
class EmptyWanted:
    """Request to register a segment at the end of a quiet log, and to close it empty.

    Then the record need not name the segment before it, which can be cleaned. Ignored unless all segments are closed,
    the newest has bytes, and no batch waits.
    """


@dataclass(frozen=True, slots=True)
class PlaceWanted:
    """Request to close the open segment: other partitions wait for a place under the bound of open files."""


@dataclass(frozen=True, slots=True)
class CopiesWanted:
    """Notice that a batch was refused for too few copies: check whether storage gives enough datanodes again."""


@dataclass(frozen=True, slots=True)
class CopiesCounted:
    """Result of ``CountCopies``: the file of the offsets [base, end) has ``copies`` copies on datanodes that respond.

    ``reason``: why they are 0, if storage could not count them.
    """

    base: int
    end: int
    copies: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StorageSlow:
    """Notice that a datanode of the open pipeline is slow against the others.

    The segment is rolled, unless the last such roll was recent.
    """


@dataclass(frozen=True, slots=True)
class Tick:
    """Notice that one of the partition's deadlines has come.

    ``wall_ms``: wall-clock time, which records are stamped with.
    """

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
    | SwapWanted
    | OldNamesUnneeded
    | EmptyWanted
    | IndexWritten
    | PlaceWanted
    | CopiesWanted
    | CopiesCounted
    | StorageSlow
    | Tick
)

# -------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read of the partition's record, repeated by the driver until the store responds.

    -> RecordRead or RecordUnreadable.
    """


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Write of the record if the stored revision is ``revision``.

    -> RecordStored, RecordUnknown, RecordRefused or RecordUnreadable.
    """

    record: PartitionRecord
    revision: int


@dataclass(frozen=True, slots=True)
class FenceSegments:
    """Fence of the listed segments; closed ones need none. -> SegmentsFenced or FenceFailed."""

    entries: tuple[SegmentEntry, ...]


@dataclass(frozen=True, slots=True)
class RecoverLog:
    """Search for the last checkpoint, in ``journals`` and the closed entries' indexes, and read of the log from there.

    ``is_settled``: the last entry's index holds it, if that can be read. ``passes_damaged``: skip a journal that has
    no sound replica. ``epoch`` was just claimed; nothing was registered after ``last``.
    -> LogRecovered, RecoveryFailed, LogUnreadable, or RecoveryRefused; EpochChanged if a later owner
    changed the log meanwhile.
    """

    segments: tuple[FencedSegment, ...]
    entries: tuple[SegmentEntry, ...]
    journals: tuple[str, ...]
    is_settled: bool = False
    passes_damaged: bool = False
    epoch: int = 0
    last: tuple[int, int] = NEVER


@dataclass(frozen=True, slots=True)
class WriteIndexes:
    """Write of the indexes that the record's segments lack. -> IndexWritten of each.

    A segment without an index is scanned by readers, and is not cleaned. So the record names it until the work has
    ended: after the owner's death another takeover does it.
    """

    recovered: Recovered
    log_start: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write of a checkpoint to the journal. -> CheckpointWritten."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class CreateSpare:
    """Creation of a spare on ``copies`` datanodes at least. -> SpareReady or SpareFailed.

    Its block may be as small as ``least_bytes`` where storage has no room for ``block_bytes``; 0: it may not. With
    ``after``, the folder is first searched for segments that were registered later: -> RecoveryRefused.
    """

    epoch: int
    serial: int
    block_bytes: int
    chunk_bytes: int
    copies: int = 1
    least_bytes: int = 0
    after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class NameSegment:
    """Rename of the spare to its registered name. -> SegmentNamed or NamingFailed."""

    entry: SegmentEntry


@dataclass(frozen=True, slots=True)
class DropSpare:
    """Close and removal of an unused spare."""

    entry: SegmentEntry


class Wake:
    """Request for a turn to flush: batches wait for the open segment."""

    __slots__ = ()


WAKE = Wake()
"""The one that all use: it has no fields."""


class Acknowledge:
    """Batches that are flushed, in order: the high watermark has moved past them.

    ``move`` as in ``endpoint.partitions.FlushListener.flushed``.
    """

    __slots__ = ("batches", "move")

    def __init__(self, batches: list[Pending], move: StableMove | None = None) -> None:
        self.batches = batches
        self.move = move


@dataclass(frozen=True, slots=True)
class CheckSlowPipeline:
    """Check of the pipeline of a flush that has hung for ``age_ms``.

    The pipeline is given up if one of its datanodes does not respond or, where ``is_slow``, if a node is an outlier or
    nothing is flushed for twice ``slow_flush_ms``. -> SegmentFailed.
    """

    name: SegmentName
    age_ms: int
    is_slow: bool


@dataclass(frozen=True, slots=True)
class Reject:
    """Batches that are dropped: their producers get ``code``."""

    batches: tuple[Pending, ...]
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveUnacknowledged:
    """Batches that stay in the log, and are written once storage permits, while their producers get ``code``."""

    batches: tuple[Pending, ...]
    code: ErrorCode
    reason: str


@dataclass(frozen=True, slots=True)
class CloseSegment:
    """Close of a segment whose bytes are all acknowledged, and write of its index, repeated until done.

    ``index_may_wait``: nothing is lost if the index is never written, since the journal, or the beginning of the log,
    shows what was before this segment. Else the index is on storage before the partition is released. -> SegmentClosed.
    """

    entry: SegmentEntry
    checkpoint: Checkpoint | None
    index_may_wait: bool = False


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Takeover of this owner's own file after its pipeline failed: prove ownership, fence the file, write its index.

    -> SegmentClosed or EpochChanged.
    """

    entry: SegmentEntry
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class DeleteEmpty:
    """Deletion of segments without flushed records that the record of the partition does not list any more.

    Retention deletes those for which it fails.
    """

    names: tuple[SegmentName, ...]


@dataclass(frozen=True, slots=True)
class CountCopies:
    """Count of the copies of the file that holds ``offset``; the log is flushed up to ``end``. -> CopiesCounted."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class CheckFence:
    """Search for the process that fenced the open segment ``entry``.

    -> EpochChanged if another broker owns the partition, SegmentFailed if the file is gone. Else no process of this
    cluster fenced it, and this one ends.
    """

    entry: SegmentEntry
    reason: str


@dataclass(frozen=True, slots=True)
class RunAgain:
    """Delayed effect: perform ``effect`` after ``delay_ms``, unless the partition has ended by then."""

    delay_ms: int
    effect: Effect


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort of every open file of this partition, without a call to storage."""


@dataclass(frozen=True, slots=True)
class ReportOffline:
    """Report to the operator, in the log, that the partition is OFFLINE for ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class SwapStored:
    """Notice of a stored record whose swap differs from the swap before."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Notice of the new state, for those that wait for it."""

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
    | CheckSlowPipeline
    | Acknowledge
    | Reject
    | LeaveUnacknowledged
    | CloseSegment
    | SealSegment
    | DeleteEmpty
    | CountCopies
    | CheckFence
    | RunAgain
    | Abort
    | ReportOffline
    | SwapStored
    | StateChanged
)
