"""The driver's effects that are performed at once, without awaiting."""

from __future__ import annotations

import asyncio

from bmq.broker import events as ev
from bmq.broker.partition import segment_effects
from bmq.broker.partition.partition_io import PartitionIo
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.core.errors import RequestError


def wake(driver: PartitionIo, effect: ev.Wake) -> None:
    """Ask the scheduler for a turn to flush."""
    if driver.queued_ms < 0:
        driver.queued_ms = driver.context.now_ms()
    driver.context.scheduler.want(driver)


def acknowledge(driver: PartitionIo, effect: ev.Acknowledge) -> None:
    """Acknowledge the batches: their memory is free, readers see them, their callbacks are called."""
    budget = driver.context.budget
    for pending in effect.batches:
        budget.give_back(pending.batch.size)
    if driver.is_announced:
        machine, listener = driver.machine, driver.context.wiring.flush_listener
        batches = [pending.batch for pending in effect.batches]
        listener.flushed(machine.key, batches, machine.high_watermark, effect.move)
    driver.notify()
    for pending in effect.batches:
        batch = pending.batch
        for callback in pending.token or ():  # type: ignore[attr-defined]
            callback.on_appended(driver.appended(batch.base_offset, batch.max_timestamp))


def reject(driver: PartitionIo, effect: ev.Reject) -> None:
    """Refuse the batches, whose memory is free."""
    for pending in effect.batches:
        driver.context.budget.give_back(pending.batch.size)
        for callback in pending.token or ():  # type: ignore[attr-defined]
            callback.on_failed(RequestError(effect.code, effect.reason))
    driver.notify()  # there is room for other batches


def leave_unacknowledged(driver: PartitionIo, effect: ev.LeaveUnacknowledged) -> None:
    """Refuse the requests of the batches, which stay in the log."""
    for pending in effect.batches:
        waiting, pending.token = pending.token or (), None
        for callback in waiting:  # type: ignore[attr-defined]
            callback.on_failed(RequestError(effect.code, effect.reason))


def abort(driver: PartitionIo, effect: ev.Abort) -> None:
    """Abort the files without a call to storage, and end the tasks."""
    driver.abort_files()
    driver.tasks.cancel()


def report_offline(driver: PartitionIo, effect: ev.ReportOffline) -> None:
    """Report that the partition is OFFLINE."""
    text = (
        "a partition is OFFLINE; `bmq segment repair TOPIC PARTITION` shows whether files are damaged, and what to do"
    )
    epoch = driver.machine.epoch
    driver.context.report(text, **driver.path.log_fields, epoch=epoch, error=effect.reason)


def state_changed(driver: PartitionIo, effect: ev.StateChanged) -> None:
    """Notify those who follow the partition of its state."""
    machine, listener = driver.machine, driver.context.wiring.flush_listener
    if machine.state is PartitionState.WRITE:
        driver.takeover = None
        driver.is_announced = True
        listener.opened(machine.key, machine.epoch, machine.log_start, machine.high_watermark)
    elif driver.is_announced:
        driver.is_announced = False
        listener.closed(machine.key)
    if machine.state is not PartitionState.WRITE:
        driver.on_left()
    if machine.state in TERMINAL:
        driver.context.store_waits.forget([driver])
    if machine.state is PartitionState.FENCED:
        driver.context.state.fenced.append(driver)
    driver.notify()
    if machine.state in TERMINAL:
        driver.on_end()


def swap_stored(driver: PartitionIo, effect: ev.SwapStored) -> None:
    """Count the swap, and notify those who wait for the partition's record."""
    driver.swaps_stored += 1
    driver.notify()


def seal_segment(driver: PartitionIo, effect: ev.SealSegment) -> None:
    """Abort the file at once, then take the segment over."""
    driver.flushes.give_up(effect.entry.name)
    driver.files.abort(effect.entry)
    driver.run(segment_effects.seal_segment, effect)


def run_again(driver: PartitionIo, effect: ev.RunAgain) -> None:
    """Perform the effect later, unless the partition has ended by then."""

    async def wait() -> None:
        await asyncio.sleep(effect.delay_ms / 1000)
        if driver.machine.state not in TERMINAL:
            driver.apply([effect.effect])

    driver.spawn(wait())


def write_checkpoint(driver: PartitionIo, effect: ev.WriteCheckpoint) -> None:
    """Append the checkpoint to the journal."""
    checkpoint = effect.checkpoint

    def covered(future: asyncio.Future[None]) -> None:
        if future.cancelled() or driver.machine.state in TERMINAL:
            return
        driver.durable_start = max(driver.durable_start, checkpoint.log_start)
        driver.post(ev.CheckpointWritten(checkpoint.end_offset, checkpoint.log_start))
        driver.notify()

    # A new log start is stored nowhere else, nor are the producers that a takeover found: the record will not list
    # their segments for long.  Everything else can be read again from the segments and the newest closed index.
    is_only_copy = driver.machine.state is PartitionState.RECOVER or checkpoint.log_start > driver.durable_start
    is_synced = driver.machine.config.flush_sync and is_only_copy
    driver.context.journal.append(checkpoint, sync=is_synced).add_done_callback(covered)
