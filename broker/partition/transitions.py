"""The partition's states, and the handler of each event in each of them.

A cell is the name of a ``PartitionMachine`` method, or says why there is none. The tables of
``docs/design/partition-states.md`` are drawn from here.
"""

from __future__ import annotations

from enum import Enum

from bmq.broker import events as ev
from bmq.broker.events import Event


class State(Enum):
    """The life of one ownership. A partition that this broker owns again begins a new one."""

    START = "reading and raising the epoch"
    FENCE = "stopping the writers of the predecessor's segments"
    RECOVER = "reading behind the last checkpoint"
    WRITE = "accepting and flushing batches"
    MOVE = "flushing what was accepted, then handing over"
    FENCED = "another broker owns the partition; nothing may be acknowledged"
    CLOSED = "handed over"
    OFFLINE = "acknowledged data is missing or damaged; waits for an operator"


TERMINAL = frozenset({State.FENCED, State.CLOSED, State.OFFLINE})
"""States that an ownership does not leave."""


class Cell(Enum):
    """The meaning of a (state, event) pair without a handler."""

    LATE = "late: the result of something that is no longer wanted; ignored"
    NEVER = "never: nothing could have caused it; a bug"


_S = State
_LATE, _NEVER = Cell.LATE, Cell.NEVER


def _table() -> dict[tuple[State, type[Event]], str | Cell]:
    """Return the table, from rows of handlers by event.

    A pair of a living state that its row does not name is NEVER; in terminal states every event is LATE.
    """
    rows: dict[type[Event], dict[State, str | Cell]] = {
        ev.Start: {_S.START: "_on_start"},
        ev.RecordRead: {_S.START: "_on_record_read"},
        ev.RecordStored: {_S.START: "_on_claimed", _S.WRITE: "_on_registered", _S.MOVE: "_on_released"},
        ev.RecordUnknown: {
            _S.START: "_on_record_unknown",
            _S.WRITE: "_on_record_unknown",
            _S.MOVE: "_on_record_unknown",
        },
        ev.RecordRefused: {
            _S.START: "_on_claim_refused",
            _S.WRITE: "_on_register_refused",
            _S.MOVE: "_on_register_refused",
        },
        ev.RecordUnreadable: {
            _S.START: "_on_record_unreadable",
            _S.FENCE: "_on_record_unreadable",
            _S.RECOVER: "_on_record_unreadable",
            _S.WRITE: "_on_record_unreadable",
            _S.MOVE: "_on_record_unreadable",
        },
        ev.SegmentsFenced: {_S.FENCE: "_on_fenced"},
        ev.FenceFailed: {_S.FENCE: "_on_fence_failed"},
        ev.LogRecovered: {_S.RECOVER: "_on_recovered"},
        ev.RecoveryFailed: {_S.RECOVER: "_on_recovery_failed"},
        ev.LogUnreadable: {_S.RECOVER: "_on_log_unreadable"},
        ev.RecoveryRefused: {_S.RECOVER: "_on_recovery_refused"},
        ev.CheckpointWritten: {_S.RECOVER: "_on_recovery_covered", _S.WRITE: "_on_covered", _S.MOVE: "_on_covered"},
        ev.SpareReady: {_S.WRITE: "_on_spare_ready", _S.MOVE: "_on_spare_ready"},
        ev.SpareFailed: {_S.WRITE: "_on_spare_failed", _S.MOVE: "_on_spare_failed"},
        ev.SegmentNamed: {_S.WRITE: "_on_named", _S.MOVE: "_on_named"},
        ev.NamingFailed: {_S.WRITE: "_on_naming_failed", _S.MOVE: "_on_naming_failed"},
        ev.Flushed: {_S.WRITE: "_on_flushed", _S.MOVE: "_on_flushed"},
        ev.SegmentFailed: {_S.WRITE: "_on_pipeline_failed", _S.MOVE: "_on_pipeline_failed"},
        ev.SegmentClosed: {_S.WRITE: "_on_closed", _S.MOVE: "_on_closed"},
        ev.EpochChanged: {
            _S.START: "_on_epoch_changed",
            _S.FENCE: "_on_epoch_changed",
            _S.RECOVER: "_on_epoch_changed",
            _S.WRITE: "_on_epoch_changed",
            _S.MOVE: "_on_epoch_changed",
        },
        ev.MoveRequested: {
            _S.START: "_on_give_up",
            _S.FENCE: "_on_give_up",
            _S.RECOVER: "_on_give_up",
            _S.WRITE: "_on_move",
            _S.MOVE: _LATE,
        },
        ev.LogStartRaised: {
            _S.START: _LATE,
            _S.FENCE: _LATE,
            _S.RECOVER: _LATE,
            _S.WRITE: "_on_log_start",
            _S.MOVE: _LATE,
        },
        ev.PlaceWanted: {
            _S.START: _LATE,
            _S.FENCE: _LATE,
            _S.RECOVER: _LATE,
            _S.WRITE: "_on_place_wanted",
            _S.MOVE: _LATE,
        },
        ev.CopiesWanted: {
            _S.START: _LATE,
            _S.FENCE: _LATE,
            _S.RECOVER: _LATE,
            _S.WRITE: "_on_copies_wanted",
            _S.MOVE: _LATE,
        },
        ev.CopiesCounted: {_S.WRITE: "_on_copies_counted", _S.MOVE: "_on_copies_counted"},
        ev.StorageSlow: {
            _S.START: _LATE,
            _S.FENCE: _LATE,
            _S.RECOVER: _LATE,
            _S.WRITE: "_on_storage_slow",
            _S.MOVE: _LATE,
        },
        ev.Tick: {
            _S.START: _LATE,
            _S.FENCE: _LATE,
            _S.RECOVER: _LATE,
            _S.WRITE: "_on_tick",
            _S.MOVE: "_on_tick",
        },
    }
    return {
        (state, event): _LATE if state in TERMINAL else row.get(state, _NEVER)
        for event, row in rows.items()
        for state in State
    }


TABLE = _table()
"""The method of ``PartitionMachine``, or the reason for none, of each (state, event type)."""
EVENTS: tuple[type[Event], ...] = tuple(dict.fromkeys(event for _, event in TABLE))
"""Every event type, in the table's order."""
