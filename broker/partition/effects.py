"""The function that performs each type of effect of a partition: at once, or awaited in a task of the driver."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bmq.broker import events as ev
from bmq.broker.events import Effect, Event
from bmq.broker.partition.immediate_effects import (
    abort,
    acknowledge,
    leave_unacknowledged,
    reject,
    report_offline,
    run_again,
    seal_segment,
    state_changed,
    swap_stored,
    wake,
    write_checkpoint,
)
from bmq.broker.partition.partition_io import PartitionIo
from bmq.broker.partition.record_effects import read_record, store_record
from bmq.broker.partition.segment_effects import (
    check_fence,
    close_segment,
    count_copies,
    create_spare,
    delete_empty,
    drop_spare,
    name_segment,
)
from bmq.broker.partition.slow_pipeline import check_slow_pipeline
from bmq.broker.partition.takeover_effects import fence_segments, recover_log, write_indexes

E = TypeVar("E", bound=Effect)
_Row = tuple[type[Any], Callable[[PartitionIo, Any], None]]


def _at_once(effect: type[E], perform: Callable[[PartitionIo, E], None]) -> _Row:
    return effect, perform


def _awaited(effect: type[E], work: Callable[[PartitionIo, E], Coroutine[Any, Any, Event | None]]) -> _Row:
    return effect, lambda driver, each: driver.run(work, each)


PERFORM = dict[type, Callable[[PartitionIo, Any], None]](
    (
        _at_once(ev.Wake, wake),
        _at_once(ev.Acknowledge, acknowledge),
        _at_once(ev.Reject, reject),
        _at_once(ev.LeaveUnacknowledged, leave_unacknowledged),
        _awaited(ev.ReadRecord, read_record),
        _awaited(ev.StoreRecord, store_record),
        _awaited(ev.FenceSegments, fence_segments),
        _awaited(ev.RecoverLog, recover_log),
        _at_once(ev.WriteIndexes, write_indexes),
        _at_once(ev.WriteCheckpoint, write_checkpoint),
        _awaited(ev.CreateSpare, create_spare),
        _awaited(ev.NameSegment, name_segment),
        _awaited(ev.DropSpare, drop_spare),
        _awaited(ev.CheckSlowPipeline, check_slow_pipeline),
        _awaited(ev.CloseSegment, close_segment),
        _at_once(ev.SealSegment, seal_segment),
        _awaited(ev.DeleteEmpty, delete_empty),
        _awaited(ev.CountCopies, count_copies),
        _awaited(ev.CheckFence, check_fence),
        _at_once(ev.RunAgain, run_again),
        _at_once(ev.Abort, abort),
        _at_once(ev.ReportOffline, report_offline),
        _at_once(ev.SwapStored, swap_stored),
        _at_once(ev.StateChanged, state_changed),
    )
)
"""The function that performs each type of effect."""
