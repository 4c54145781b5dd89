"""The writer of a broker's journal as a state machine without I/O.

Events go into ``JournalMachine.handle``, effects come out; time is an argument.  ``journal_states`` describes the
states; ``TABLE`` has a function for each (state, event) pair (``core.transitions``).  docs/design/journal-states.md is
drawn from them.  Three promises hold in any order of events:

* A record is acknowledged after its flush, or after the flush of a snapshot and of the record behind the snapshot.
* Records are acknowledged in the order in which they were accepted.  A flush that fails puts its records back in front.
* Writes never overlap: the records of a flush, or a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.transitions import Cell
from bmq.storage import journal_events as ev
from bmq.storage.filesystem import CreateOptions
from bmq.storage.journal_copies import JournalCopies
from bmq.storage.journal_events import Effect, Event, QueuedRecord
from bmq.storage.journal_states import REFUSING, TERMINAL, JournalState

PATIENCE_MAX_S = 10.0
SYNC_S = 2.0
"""Seconds added to the patience with a flush that waits for disks."""
SLOW_BYTES_PER_S = 10 << 20
ROLL_AGAIN_S = 1.0
"""The time from a roll that storage did not serve to the next try, whatever is written to the open file meanwhile.

Nothing waits for the roll, the block has room for more, and each try is a file of the NameNode.
"""
IDLE_RETRY_S = 1.0
"""The time from a next file that storage did not serve to the next try, while no checkpoint waits for the file."""
_BLOCK_BYTES_MIN = 64 << 20


def block_bytes_for(roll_bytes: int) -> int:
    """Return the block size of a file: it has one block, for the snapshot, the records until the roll, and a flush."""
    megabyte = 1 << 20
    return max(_BLOCK_BYTES_MIN, 2 * -(-roll_bytes // megabyte) * megabyte)


# Effects without fields, made once.
_AWAIT_NEXT, _WRITE_SNAPSHOT, _LEAVE_NEXT = ev.AwaitNext(), ev.WriteSnapshot(), ev.LeaveNext()
_WAIT_FOR_WORK, _WRITE_RECORDS, _LEAVE_FILE = ev.WaitForWork(), ev.WriteRecords(), ev.LeaveFile()
_WAKE_NOW, _DELETE_OLD = ev.WakeNow(), ev.DeleteOld()


class _NextFile(NamedTuple):
    """A next file.  ``is_fuller``: it is wanted only if it has more copies than the open one."""

    options: CreateOptions
    is_fuller: bool


class JournalMachine:
    """One journal's writer.  Times are seconds of one clock; ``late_s`` is the shortest patience with a flush."""

    __slots__ = (
        "_access",
        "_began_at",
        "_block_bytes",
        "_copies",
        "_former_has_all",
        "_is_closing",
        "_late_s",
        "_next",
        "_next_block_bytes",
        "_patience_s",
        "_queue",
        "_retry_s",
        "_roll_at",
        "_taken",
        "_taken_size",
        "_wants_renewal",
        "is_synced",
        "roll_bytes",
        "snapshot_bytes",
        "state",
    )

    def __init__(
        self, *, roll_bytes: int = 16 << 20, retry_s: float = 0.2, late_s: float = 0.3, access: Access = NO_ACCESS
    ) -> None:
        self.state = JournalState.START
        self.roll_bytes = roll_bytes
        self.snapshot_bytes = 0
        self.is_synced = False
        """True once a record had to be on disk: the snapshots that repeat the record have to be on disk, too."""
        self._access = access
        self._retry_s = retry_s
        self._late_s = late_s
        self._patience_s = late_s
        self._queue: list[QueuedRecord] = []
        self._taken: list[QueuedRecord] = []  # the records of the flush that is under way
        self._taken_size = 0
        self._is_closing = False
        self._wants_renewal = False
        self._block_bytes = 0  # of the open file
        self._next: _NextFile | None = None
        self._next_block_bytes = 0
        self._began_at = 0.0  # when the machine turned to the next file
        self._roll_at = 0.0  # no roll is tried before this time
        self._former_has_all = False
        self._copies = JournalCopies()

    def __repr__(self) -> str:
        return (
            f"<JournalMachine {self.state.name} queue={len(self._queue)} taken={len(self._taken)}"
            f"{' closing' if self._is_closing else ''}{' renewal' if self._wants_renewal else ''} {self._copies!r}>"
        )

    # -------------------------------------------------------------------------------------------------------- records

    def accept(self, record: QueuedRecord) -> bool:
        """Queue a record, for the next flush.  Return False in a state in which nothing more is written."""
        if self.state in REFUSING:
            return False
        self._queue.append(record)
        if record.is_synced:
            self.is_synced = True
        return True

    def take(self, bytes_max: int) -> tuple[list[QueuedRecord], int, bool]:
        """Take the records of one flush off the queue; return them, their bytes, and whether the flush is to be synced.

        Their bytes are at most ``bytes_max``, or they are one record.  A file must hold them beside its snapshot, so
        they are not the whole of a long queue.
        """
        assert not self._taken
        size = count = 0
        for queued in self._queue:
            if count and size + queued.size > bytes_max:
                break
            size += queued.size
            count += 1
        self._taken, self._queue, self._taken_size = self._queue[:count], self._queue[count:], size
        return self._taken, size, any(queued.is_synced for queued in self._taken)

    def patience_s(self, size: int, *, sync: bool) -> float:
        """Return the seconds after which a flush of ``size`` bytes counts as failed.

        A silent pipeline is left before storage itself gives it up (5 s): takeovers wait for checkpoints, and a new
        file costs 30 ms.  The patience doubles each time, lest storage that is slow everywhere be flooded with files.
        """
        return self._patience_s + size / SLOW_BYTES_PER_S + (SYNC_S if sync else 0.0)

    @property
    def has_all_copies(self) -> bool:
        """True if the open file has as many copies as it is to have."""
        return self._copies.has_all

    @property
    def has_ended(self) -> bool:
        """True if nothing is written any more, and no file is open."""
        return self.state is JournalState.ENDED

    # ------------------------------------------------------------------------------------------------------ the table

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order."""
        cell = TABLE[self.state, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {self.state.name}"
            return []
        return cell(self, event, now)

    # ------------------------------------------------------------------------------------------------ from the outside

    def _on_start(self, event: ev.Start, now: float) -> list[Effect]:
        """Create the first file; end at once if the close was requested before."""
        return self._try_next(now)

    def _on_close_requested(self, event: ev.CloseRequested, now: float) -> list[Effect]:
        """Note the request: the writer ends once the queue is written."""
        self._is_closing = True
        return [_WAKE_NOW]

    def _on_renewal_requested(self, event: ev.RenewalRequested, now: float) -> list[Effect]:
        """Note the request: the open file is rolled as if it were full; without an open file the next one counts."""
        self._wants_renewal = True
        return [_WAKE_NOW]

    def _on_stopped(self, event: ev.Stopped, now: float) -> list[Effect]:
        """Abort the files, and cancel every record that is not acknowledged."""
        records = self._taken + self._queue
        self._taken, self._queue = [], []
        self.state = JournalState.ENDED
        return [ev.AbortFiles(), ev.Cancel(records)]

    # ------------------------------------------------------------------------------------------------------- the queue

    def _on_turn(self, event: ev.Turn, now: float) -> list[Effect]:
        """Write the queue, if there is one; leave a file whose pipeline has failed."""
        if event.is_broken:
            return self._leave_file()
        if self._queue:
            self.state = JournalState.FLUSH
            return [_WRITE_RECORDS]
        return self._look_after_file(event.position, event.is_next_known, now)

    def _on_flushed(self, event: ev.Flushed, now: float) -> list[Effect]:
        """Acknowledge the records of the flush; then see whether the file is to be replaced."""
        self._flushed_in_time()
        effects: list[Effect] = [ev.Acknowledge(self._taken, self._taken_size)]
        self._taken = []
        if self._queue:
            effects.append(_WAKE_NOW)
        return effects + self._look_after_file(event.position, event.is_next_known, now)

    def _on_flush_failed(self, event: ev.FlushFailed, now: float) -> list[Effect]:
        """Put the records back in front of the queue, and leave the file.

        The next file's snapshot holds what these records say, or later facts: the records are done when the next file
        has them.
        """
        if event.is_late:
            self._lose_patience()
        self._queue = self._taken + self._queue
        self._taken = []
        return [ev.Requeue(self._taken_size), *self._leave_file()]

    def _look_after_file(self, position: int, is_next_known: bool, now: float) -> list[Effect]:
        """Go on in the next file if it is there, or have one created if it is due; then wait, or end."""
        effects: list[Effect] = [_DELETE_OLD]
        if self._next is not None:
            if is_next_known:
                self._began_at = now
                self.state = JournalState.ROLL
                return [_DELETE_OLD, _AWAIT_NEXT]
        elif (self._wants_renewal or self._is_full(position)) and now >= self._roll_at:
            effects.append(self._create_next(now))
        elif self._copies.is_fuller_due(now):
            effects += [self._plan_fuller_file(now), self._create_next(now, is_fuller=True)]
        return effects + self._go_on()

    def _is_full(self, position: int) -> bool:
        return position > min(max(self.roll_bytes, 4 * self.snapshot_bytes), self._block_bytes // 2)

    def _leave_file(self) -> list[Effect]:
        self.state = JournalState.LEAVE
        return [_LEAVE_FILE]

    def _on_left(self, event: ev.FileLeft, now: float) -> list[Effect]:
        """Begin the next file: it avoids the datanodes that did not respond to their probe."""
        if self._is_done and self._next is not None:
            return self._discard_next()
        return self._try_next(now)

    # --------------------------------------------------------------------------------------------------- the next file

    def _try_next(self, now: float) -> list[Effect]:
        """Begin a file, since none is open; end if the close was requested and the queue is empty."""
        if self._is_done:
            self.state = JournalState.ENDED
            return []
        effects: list[Effect] = [] if self._next is not None else [self._create_next(now)]
        self._began_at = now
        self.state = JournalState.CREATE
        return [*effects, _AWAIT_NEXT]

    def _go_on(self) -> list[Effect]:
        """Wait for work for the open file; close the file if the close was requested and the queue is empty."""
        if self._is_done:
            self.state = JournalState.CLOSE
            return [ev.CloseFile()]
        self.state = JournalState.OPEN
        return [_WAIT_FOR_WORK]

    @property
    def _is_done(self) -> bool:
        return self._is_closing and not self._queue

    def _create_next(self, now: float, *, is_fuller: bool = False) -> Effect:
        """Return the effect that creates the next file, with fewer copies if storage has lacked room for a while."""
        options = CreateOptions(
            block_bytes=block_bytes_for(max(self.roll_bytes, 4 * self.snapshot_bytes)),
            chunk_bytes=512,
            all_copies=is_fuller or self._copies.waits_for_all(now),
            access=self._access,
        )
        self._next = _NextFile(options, is_fuller)
        return ev.CreateNext(options)

    def _plan_fuller_file(self, now: float) -> Effect:
        """Have the open file replaced by one with more copies after a while, also if nothing is written meanwhile."""
        return ev.WakeAt(self._copies.plan_fuller(now))

    def _on_created(self, event: ev.Created, now: float) -> list[Effect]:
        """Write the snapshot, now that the file is open: data flushed later has a record behind the snapshot."""
        self._next_block_bytes = event.block_bytes
        self.state = JournalState.SNAPSHOT
        return [_WRITE_SNAPSHOT]

    def _on_number_taken(self, event: ev.NumberTaken, now: float) -> list[Effect]:
        """Take the next number."""
        self._next = None
        return self._try_next(now)

    def _on_create_failed(self, event: ev.CreateFailed, now: float) -> list[Effect]:
        """Try again after a pause."""
        return [*self._fail_next(event.reason, is_no_room=event.is_no_room), *self._pause()]

    def _on_begun(self, event: ev.SnapshotFlushed, now: float) -> list[Effect]:
        """Go on in the next file: its snapshot is durable."""
        return [*self._begin_next(event, now), *self._go_on()]

    def _on_snapshot_failed(self, event: ev.SnapshotFailed, now: float) -> list[Effect]:
        """Leave the next file, and try again after a pause."""
        return [*self._fail_snapshot(event), *self._pause()]

    def _pause(self) -> list[Effect]:
        self.state = JournalState.PAUSE
        return [ev.Pause(self._retry_s)]

    def _on_pause_over(self, event: ev.PauseOver, now: float) -> list[Effect]:
        """Try again, or pause for longer if no checkpoint waits for the file, since each try makes a file.

        A probe does not count: no takeover waits for it.  A journal that is to close, with nothing to write, ends.
        """
        if self._is_done or any(not queued.is_probe for queued in self._queue):
            return self._try_next(now)
        self.state = JournalState.IDLE_PAUSE
        return [ev.Pause(IDLE_RETRY_S - self._retry_s, ends_with_work=True)]

    def _on_idle_pause_over(self, event: ev.PauseOver, now: float) -> list[Effect]:
        """Try again."""
        return self._try_next(now)

    def _begin_next(self, event: ev.SnapshotFlushed, now: float) -> list[Effect]:
        """Make the next file the open one."""
        following = self._next
        assert following is not None
        self._flushed_in_time()
        self.snapshot_bytes = event.size
        self._next, self._block_bytes = None, self._next_block_bytes
        effects: list[Effect] = []
        if not self._copies.begun(event.copies, following.options):
            effects.append(self._plan_fuller_file(now))
        effects.append(_WAKE_NOW)
        if self._wants_renewal:
            self._wants_renewal = False
            effects.append(ev.ConfirmRenewal())
        return effects

    def _fail_snapshot(self, event: ev.SnapshotFailed) -> list[Effect]:
        self.snapshot_bytes = event.size
        if event.is_late:
            self._lose_patience()
        return [_LEAVE_NEXT, *self._fail_next(event.reason, is_no_room=event.is_no_room)]

    def _fail_next(self, reason: str, *, is_no_room: bool) -> list[Effect]:
        following, self._next = self._next, None
        assert following is not None
        if is_no_room and not following.is_fuller:
            self._copies.no_room(self._began_at)
            return [ev.ReportNoRoom(reason)]
        return []

    def _flushed_in_time(self) -> None:
        self._patience_s = max(self._late_s, 0.99 * self._patience_s)

    def _lose_patience(self) -> None:
        self._patience_s = min(2 * self._patience_s, PATIENCE_MAX_S)

    # -------------------------------------------------------------------------------------------------------- the roll

    def _on_roll_created(self, event: ev.Created, now: float) -> list[Effect]:
        """Write the snapshot to the next file; drop a file that was to have more copies and has not."""
        assert self._next is not None
        if self._next.is_fuller and event.open_copies >= max(1, event.copies):
            self.state = JournalState.DROP
            return [ev.DropNext()]
        self._next_block_bytes = event.block_bytes
        self._former_has_all = self._copies.has_all
        self.state = JournalState.ROLL_SNAPSHOT
        return [_WRITE_SNAPSHOT]

    def _on_roll_number_taken(self, event: ev.NumberTaken, now: float) -> list[Effect]:
        """Go on in the open file, and try again later."""
        self._next = None
        return self._roll_later(now)

    def _on_roll_create_failed(self, event: ev.CreateFailed, now: float) -> list[Effect]:
        """Go on in the open file, and try again later."""
        return [*self._fail_next(event.reason, is_no_room=event.is_no_room), *self._roll_later(now)]

    def _on_roll_snapshot_failed(self, event: ev.SnapshotFailed, now: float) -> list[Effect]:
        """Leave the next file, go on in the open one, and try again later."""
        return [*self._fail_snapshot(event), *self._roll_later(now)]

    def _on_dropped(self, event: ev.NextDropped, now: float) -> list[Effect]:
        """Go on in the open file, and try again later."""
        self._next = None
        return self._roll_later(now)

    def _roll_later(self, now: float) -> list[Effect]:
        self._roll_at = now + ROLL_AGAIN_S
        effects: list[Effect] = [ev.WakeAt(self._roll_at)]
        if self._queue:
            effects.append(_WAKE_NOW)
        return effects + self._go_on()

    def _on_rolled(self, event: ev.SnapshotFlushed, now: float) -> list[Effect]:
        """Go on in the next file, and close the former one first."""
        effects = self._begin_next(event, now)
        self.state = JournalState.REPLACE
        return [*effects, ev.CloseFormer()]

    def _on_former_closed(self, event: ev.FormerClosed, now: float) -> list[Effect]:
        """Keep the former file for its readers if it was closed in order, with all its copies."""
        effects: list[Effect] = [ev.KeepFormer()] if event.is_closed and self._former_has_all else []
        return [*effects, ev.NoteOld(), _WAKE_NOW, *self._go_on()]

    # --------------------------------------------------------------------------------------------------------- the end

    def _on_file_closed(self, event: ev.FileClosed, now: float) -> list[Effect]:
        """End; remove the next file first, if one was being created.

        The next file comes last: its creation may take longer than the process has to end.
        """
        if self._next is not None:
            return self._discard_next()
        self.state = JournalState.ENDED
        return []

    def _discard_next(self) -> list[Effect]:
        self.state = JournalState.DISCARD
        return [ev.DiscardNext()]

    def _on_discarded(self, event: ev.NextDropped, now: float) -> list[Effect]:
        """End."""
        self._next = None
        self.state = JournalState.ENDED
        return []


E = TypeVar("E", bound=Event)
Handler = Callable[[JournalMachine, E, float], list[Effect]]
_Row = tuple[type[Any], dict[JournalState, Handler[Any] | Cell]]
_M, _S = JournalMachine, JournalState
_LIVING = [state for state in _S if state not in TERMINAL]


def _at(event: type[E], cells: dict[JournalState, Handler[E]]) -> _Row:
    """Return the row of an event that can occur in the states of ``cells`` only: the result of an effect."""
    return event, {state: cells.get(state, Cell.NEVER) for state in _S}


def _any(event: type[E], handler: Handler[E]) -> _Row:
    """Return the row of a request from outside; the request is late once the journal writes nothing more."""
    return event, {state: Cell.LATE if state in REFUSING else handler for state in _S}


# The shell waits for one result at a time, and each state waits for one: the other events cannot occur in the state.
_ROWS: tuple[_Row, ...] = (
    _at(ev.Start, {_S.START: _M._on_start}),
    _any(ev.CloseRequested, _M._on_close_requested),
    _any(ev.RenewalRequested, _M._on_renewal_requested),
    _at(ev.Stopped, {state: _M._on_stopped for state in _LIVING if state is not _S.START}),
    _at(ev.Turn, {_S.OPEN: _M._on_turn}),
    _at(ev.Created, {_S.CREATE: _M._on_created, _S.ROLL: _M._on_roll_created}),
    _at(ev.NumberTaken, {_S.CREATE: _M._on_number_taken, _S.ROLL: _M._on_roll_number_taken}),
    _at(ev.CreateFailed, {_S.CREATE: _M._on_create_failed, _S.ROLL: _M._on_roll_create_failed}),
    _at(ev.SnapshotFlushed, {_S.SNAPSHOT: _M._on_begun, _S.ROLL_SNAPSHOT: _M._on_rolled}),
    _at(ev.SnapshotFailed, {_S.SNAPSHOT: _M._on_snapshot_failed, _S.ROLL_SNAPSHOT: _M._on_roll_snapshot_failed}),
    _at(ev.Flushed, {_S.FLUSH: _M._on_flushed}),
    _at(ev.FlushFailed, {_S.FLUSH: _M._on_flush_failed}),
    _at(ev.FileLeft, {_S.LEAVE: _M._on_left}),
    _at(ev.PauseOver, {_S.PAUSE: _M._on_pause_over, _S.IDLE_PAUSE: _M._on_idle_pause_over}),
    _at(ev.FormerClosed, {_S.REPLACE: _M._on_former_closed}),
    _at(ev.NextDropped, {_S.DROP: _M._on_dropped, _S.DISCARD: _M._on_discarded}),
    _at(ev.FileClosed, {_S.CLOSE: _M._on_file_closed}),
)
TABLE: Mapping[tuple[JournalState, type[Event]], Handler[Any] | Cell] = {
    (state, event): cell for event, cells in _ROWS for state, cell in cells.items()
}
"""The function, or the reason for none, of each (state, event type)."""
