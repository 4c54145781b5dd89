"""The partition's table: the function of each event in each state.

The tables of ``docs/design/partition-states.md`` are drawn from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bmq.broker import events as ev
from bmq.broker.events import Effect, Event
from bmq.broker.partition.owned_log import OwnedLog
from bmq.broker.partition.release_transitions import (
    on_give_up,
    on_move,
    on_older_store,
    on_other_epoch,
    on_released,
    on_unreadable,
)
from bmq.broker.partition.segment_transitions import (
    on_closed,
    on_copies_found,
    on_copies_wanted,
    on_covered,
    on_empty_wanted,
    on_file_broken,
    on_flushed,
    on_log_start,
    on_named,
    on_naming_failed,
    on_old_names,
    on_place_wanted,
    on_spare_failed,
    on_spare_ready,
    on_storage_slow,
    on_stored,
    on_swap_wanted,
    on_tick,
    on_write_refused,
)
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.partition.takeover_transitions import (
    on_claim_refused,
    on_claimed,
    on_fence_failed,
    on_fenced,
    on_index_written,
    on_log_covered,
    on_log_damaged,
    on_log_unreadable,
    on_read_failed,
    on_record_read,
    on_recovered,
    on_start,
    on_write_unknown,
)
from bmq.core.transitions import Cell

E = TypeVar("E", bound=Event)
Handler = Callable[[OwnedLog, E, int], list[Effect]]
_Row = tuple[type[Any], tuple[Handler[Any] | Cell, ...]]


def _on(
    event: type[E],
    start: Handler[E] | Cell,
    fence: Handler[E] | Cell,
    recover: Handler[E] | Cell,
    write: Handler[E] | Cell,
    move: Handler[E] | Cell,
) -> _Row:
    """Return an event's row: a cell for each living state. In terminal states every event is late."""
    return event, (start, fence, recover, write, move)


LATE, NEVER = Cell.LATE, Cell.NEVER
# fmt: off
_ROWS = (
    # event                   START             FENCE            RECOVER            WRITE             MOVE
    _on(ev.Start,             on_start,         NEVER,           NEVER,             NEVER,            NEVER),
    _on(ev.RecordRead,        on_record_read,   NEVER,           NEVER,             NEVER,            NEVER),
    _on(ev.RecordStored,      on_claimed,       NEVER,           NEVER,             on_stored,        on_released),
    _on(ev.RecordUnknown,     on_write_unknown, NEVER,           NEVER,             on_write_unknown, on_write_unknown),
    _on(ev.RecordRefused,     on_claim_refused, NEVER,           NEVER,             on_write_refused, on_write_refused),
    _on(ev.RecordUnreadable,  on_unreadable,    on_unreadable,   on_unreadable,     on_unreadable,    on_unreadable),
    _on(ev.SegmentsFenced,    NEVER,            on_fenced,       NEVER,             NEVER,            NEVER),
    _on(ev.FenceFailed,       NEVER,            on_fence_failed, NEVER,             NEVER,            NEVER),
    _on(ev.LogRecovered,      NEVER,            NEVER,           on_recovered,      NEVER,            NEVER),
    _on(ev.IndexWritten,      NEVER,            NEVER,           on_index_written,  on_index_written, on_index_written),
    _on(ev.RecoveryFailed,    NEVER,            NEVER,           on_read_failed,    NEVER,            NEVER),
    _on(ev.LogUnreadable,     NEVER,            NEVER,           on_log_unreadable, NEVER,            NEVER),
    _on(ev.RecoveryRefused,   NEVER,            NEVER,           on_log_damaged,    on_older_store,   on_older_store),
    _on(ev.CheckpointWritten, NEVER,            NEVER,           on_log_covered,    on_covered,       on_covered),
    _on(ev.SpareReady,        NEVER,            NEVER,           NEVER,             on_spare_ready,   on_spare_ready),
    _on(ev.SpareFailed,       NEVER,            NEVER,           NEVER,             on_spare_failed,  on_spare_failed),
    _on(ev.SegmentNamed,      NEVER,            NEVER,           NEVER,             on_named,         on_named),
    _on(ev.NamingFailed,      NEVER,            NEVER,           NEVER,             on_naming_failed, on_naming_failed),
    _on(ev.Flushed,           NEVER,            NEVER,           NEVER,             on_flushed,       on_flushed),
    _on(ev.SegmentFailed,     NEVER,            NEVER,           NEVER,             on_file_broken,   on_file_broken),
    _on(ev.SegmentClosed,     NEVER,            NEVER,           NEVER,             on_closed,        on_closed),
    _on(ev.EpochChanged,      on_other_epoch,   on_other_epoch,  on_other_epoch,    on_other_epoch,   on_other_epoch),
    _on(ev.MoveRequested,     on_give_up,       on_give_up,      on_give_up,        on_move,          LATE),
    _on(ev.LogStartRaised,    LATE,             LATE,            LATE,              on_log_start,     LATE),
    _on(ev.SwapWanted,        LATE,             LATE,            LATE,              on_swap_wanted,   LATE),
    _on(ev.OldNamesUnneeded,  LATE,             LATE,            LATE,              on_old_names,     LATE),
    _on(ev.EmptyWanted,       LATE,             LATE,            LATE,              on_empty_wanted,  LATE),
    _on(ev.PlaceWanted,       LATE,             LATE,            LATE,              on_place_wanted,  LATE),
    _on(ev.CopiesWanted,      LATE,             LATE,            LATE,              on_copies_wanted, LATE),
    _on(ev.CopiesCounted,     NEVER,            NEVER,           NEVER,             on_copies_found,  on_copies_found),
    _on(ev.StorageSlow,       LATE,             LATE,            LATE,              on_storage_slow,  LATE),
    _on(ev.Tick,              LATE,             LATE,            LATE,              on_tick,          on_tick),
)
# fmt: on
TABLE: Mapping[tuple[PartitionState, type[Event]], Handler[Any] | Cell] = {
    (state, event): cell
    for event, cells in _ROWS
    for state, cell in zip(PartitionState, (*cells, *(LATE for _ in TERMINAL)), strict=True)
}
"""The function, or the reason for none, of each (state, event type)."""
EVENTS: tuple[type[Event], ...] = tuple(event for event, _ in _ROWS)
"""Every event type, in the table's order."""
