"""Events and effects of a journal's machine.

The shell (``storage.journal_writer``) performs the effects in order.  An effect with "->" is the last one of its list:
the shell waits for its result, and the result is the next event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import CreateOptions


class Completion(Protocol):
    """The future of a record's caller.  The machine passes it on and does not touch it."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...

    def cancel(self) -> bool: ...


class QueuedRecord(NamedTuple):
    """A record to be written, or a checkpoint with so many producers that the shell encodes its record in turns.

    ``is_synced``: the record has to be on disk.  ``is_probe``: the record holds no checkpoint.
    """

    record: bytes | Checkpoint
    size: int
    future: Completion
    is_synced: bool
    is_probe: bool


# --------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Start:
    """Beginning of the writer's task."""


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """Request to write the queue, and then to end."""


@dataclass(frozen=True, slots=True)
class RenewalRequested:
    """Request for a new file, although the open one is not full."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Notice of the early end of the writer's task, by a cancellation or a bug."""


class Turn:
    """Notice that there may be work for the open file.

    ``position``: bytes written to the file.  ``is_broken``: the file's pipeline has failed.  ``is_next_known``: storage
    has created the next file, or has failed to.
    """

    __slots__ = ("is_broken", "is_next_known", "position")

    def __init__(self, position: int, *, is_broken: bool = False, is_next_known: bool = False) -> None:
        self.position = position
        self.is_broken = is_broken
        self.is_next_known = is_next_known


@dataclass(frozen=True, slots=True)
class Created:
    """The next file, on ``copies`` datanodes (0: storage has none), with a block of ``block_bytes``.

    ``open_copies``: the datanodes of the open file, as of now; 0 if no file is open.
    """

    copies: int
    block_bytes: int
    open_copies: int = 0


@dataclass(frozen=True, slots=True)
class NumberTaken:
    """A next file whose name exists: a failed attempt has left a file of this number."""


@dataclass(frozen=True, slots=True)
class CreateFailed:
    """A next file that storage did not create.  ``is_no_room``: because it has no room."""

    reason: str
    is_no_room: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotFlushed:
    """A snapshot of ``size`` bytes that storage has acknowledged, in a file on ``copies`` datanodes."""

    copies: int
    size: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A snapshot of ``size`` bytes that storage has not acknowledged.

    ``is_late``: storage has not responded in time.  ``is_no_room``: storage has no room.
    """

    reason: str
    size: int
    is_late: bool = False
    is_no_room: bool = False


class Flushed:
    """An acknowledged flush of the records that ``take`` returned; synced if a record of them asked for it.

    ``position`` and ``is_next_known`` as in ``Turn``.
    """

    __slots__ = ("is_next_known", "position")

    def __init__(self, position: int, *, is_next_known: bool = False) -> None:
        self.position = position
        self.is_next_known = is_next_known


@dataclass(frozen=True, slots=True)
class FlushFailed:
    """A flush that storage has not acknowledged.  ``is_late``: storage has not responded in time."""

    is_late: bool = False


@dataclass(frozen=True, slots=True)
class FileLeft:
    """End of the probes of the datanodes whose pipeline was given up."""


@dataclass(frozen=True, slots=True)
class PauseOver:
    """End of the pause before the next try for a file."""


@dataclass(frozen=True, slots=True)
class FormerClosed:
    """End of the close of the former file.  ``is_closed``: False if it was left open."""

    is_closed: bool


@dataclass(frozen=True, slots=True)
class NextDropped:
    """End of the removal of a next file that is not needed."""


@dataclass(frozen=True, slots=True)
class FileClosed:
    """End of the close of the last file."""


Event = (
    Start
    | CloseRequested
    | RenewalRequested
    | Stopped
    | Turn
    | Created
    | NumberTaken
    | CreateFailed
    | SnapshotFlushed
    | SnapshotFailed
    | Flushed
    | FlushFailed
    | FileLeft
    | PauseOver
    | FormerClosed
    | NextDropped
    | FileClosed
)

# -------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class CreateNext:
    """Creation of the next file, in the background: it takes 15 s to fail without a NameNode."""

    options: CreateOptions


@dataclass(frozen=True, slots=True)
class AwaitNext:
    """Wait for the next file.  -> Created, NumberTaken or CreateFailed."""


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write and flush of a snapshot to the next file; after the flush the next file is the open one.

    -> SnapshotFlushed or SnapshotFailed.
    """


@dataclass(frozen=True, slots=True)
class LeaveNext:
    """End of the next file's pipeline, without a call to storage; the file is closed later."""


@dataclass(frozen=True, slots=True)
class LeaveFile:
    """End of the open file's pipeline, and probes of the file's datanodes; the file is closed later.  -> FileLeft."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause of ``seconds``.  ``ends_with_work``: it ends at once when there is work.  -> PauseOver."""

    seconds: float
    ends_with_work: bool = False


@dataclass(frozen=True, slots=True)
class WaitForWork:
    """Wait for a record, a request, or a time that was planned.  -> Turn."""


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Write and flush of the records that ``JournalMachine.take`` returns.  -> Flushed or FlushFailed."""


class Acknowledge:
    """Records that are flushed, in order: their futures are done."""

    __slots__ = ("records", "size")

    def __init__(self, records: Sequence[QueuedRecord], size: int) -> None:
        self.records = records
        self.size = size


@dataclass(frozen=True, slots=True)
class Requeue:
    """Count of ``size`` bytes that are in the queue again: the next file is to hold them."""

    size: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Records that will not be written: their futures are cancelled."""

    records: Sequence[QueuedRecord]


@dataclass(frozen=True, slots=True)
class ReportNoRoom:
    """Report that storage has no room for the next file."""

    reason: str


@dataclass(frozen=True, slots=True)
class ConfirmRenewal:
    """Notice for the callers that asked for a new file: its snapshot is flushed."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Turn at the time ``at`` or later, also if nothing is written meanwhile."""

    at: float


@dataclass(frozen=True, slots=True)
class WakeNow:
    """Turn at once."""


@dataclass(frozen=True, slots=True)
class DeleteOld:
    """Deletion of former files, in the background.  Nothing is done if there are none."""


@dataclass(frozen=True, slots=True)
class CloseFormer:
    """Close of the former file, since the open file repeats its content.  -> FormerClosed."""


@dataclass(frozen=True, slots=True)
class KeepFormer:
    """Note that the former file was closed in order, with all its copies: it is kept for its readers."""


@dataclass(frozen=True, slots=True)
class NoteOld:
    """Note that another file was begun: older files may be deleted."""


@dataclass(frozen=True, slots=True)
class DropNext:
    """Close and deletion of the next file, since it has no more copies than the open file.  -> NextDropped."""


@dataclass(frozen=True, slots=True)
class DiscardNext:
    """Wait for the next file, then its close and deletion: the journal ends.  -> NextDropped."""


@dataclass(frozen=True, slots=True)
class CloseFile:
    """Close of the open file: the journal ends.  -> FileClosed."""


@dataclass(frozen=True, slots=True)
class AbortFiles:
    """Abort of the open file, and of the former one if it is being closed, without a call to storage."""


Effect = (
    CreateNext
    | AwaitNext
    | WriteSnapshot
    | LeaveNext
    | LeaveFile
    | Pause
    | WaitForWork
    | WriteRecords
    | Acknowledge
    | Requeue
    | Cancel
    | ReportNoRoom
    | ConfirmRenewal
    | WakeAt
    | WakeNow
    | DeleteOld
    | CloseFormer
    | KeepFormer
    | NoteOld
    | DropNext
    | DiscardNext
    | CloseFile
    | AbortFiles
)
