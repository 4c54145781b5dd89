"""The driver's effects on the partition's segments. An effect returns the event that reports it, if it has one."""

from __future__ import annotations

import asyncio

from bmq.broker import events as ev
from bmq.broker.events import Event
from bmq.broker.files.segment_files import TooFewNodes, copies_of
from bmq.broker.partition.copy_counter import CopyCounter
from bmq.broker.partition.partition_io import PartitionIo
from bmq.broker.partition.recovery import find_later_store
from bmq.core.model import SegmentName
from bmq.meta.kv import KvError
from bmq.meta.ownership import SegmentEntry
from bmq.storage.filesystem import StorageError


async def create_spare(driver: PartitionIo, effect: ev.CreateSpare) -> Event | None:
    """Create an open file for the next segment.  A log without segments first has its folder searched for later files.

    Returns None if another broker owns the partition: it may have registered what was found.
    """
    context = driver.context
    try:
        if effect.after is not None:
            refused = await find_later_store(context, driver.segments, (), effect.after, effect.epoch, driver.is_ours)
            if refused is not None:
                return refused if await driver.is_ours() else None
    except (StorageError, KvError) as error:
        context.state.trouble = str(error)
        return ev.SpareFailed(repr(error))
    try:
        appender, block_bytes = await driver.files.create(effect)
    except StorageError as error:
        is_short = isinstance(error, TooFewNodes)
        if is_short:
            context.state.short.add(driver)
        context.state.trouble = str(error)
        return ev.SpareFailed(repr(error), is_short)
    lease = appender.lease
    context.state.busy.add(driver)
    unnamed = SegmentName(-1, effect.epoch, -1)
    entry = SegmentEntry(name=unnamed, spare=lease.paths[0], holder=lease.holder, file_id=lease.file_id)
    return ev.SpareReady(entry, copies_of(appender), block_bytes if block_bytes < effect.block_bytes else 0)


async def drop_spare(driver: PartitionIo, effect: ev.DropSpare) -> None:
    """Close and delete the unused file."""
    await driver.closing.drop(effect.entry)


async def name_segment(driver: PartitionIo, effect: ev.NameSegment) -> Event | None:
    """Give the segment's file its final name. Returns None if another broker owns the partition."""
    entry = effect.entry
    try:
        try:
            await driver.segments.rename(entry, driver.path.log(entry.name))
        except StorageError:
            if await driver.is_ours():  # if not, the successor's janitor may have removed the spare
                raise
            return None
    except (StorageError, KvError) as error:
        return ev.NamingFailed(entry.name, repr(error))
    return ev.SegmentNamed(entry.name)


async def close_segment(driver: PartitionIo, effect: ev.CloseSegment) -> Event | None:
    """Close and index the segment. Returns None if another broker owns the partition."""
    return _closed(driver, await driver.closing.close(effect))


async def seal_segment(driver: PartitionIo, effect: ev.SealSegment) -> Event | None:
    """Take over the segment, whose file was aborted. Returns None if another broker owns the partition."""
    return _closed(driver, await driver.closing.seal(effect.entry, effect.checkpoint))


def _closed(driver: PartitionIo, entry: SegmentEntry | None) -> Event | None:
    return None if entry is None else ev.SegmentClosed(entry, entry.name in driver.closing.left)


async def delete_empty(driver: PartitionIo, effect: ev.DeleteEmpty) -> None:
    """Delete files that hold nothing, and their indexes; what storage refuses to delete is left to retention."""
    for name in effect.names:
        try:
            await driver.context.fs.delete(driver.path.idx(name))
            await driver.context.fs.delete(driver.path.log(name))
        except StorageError:
            return  # retention deletes the rest once the log start has passed it


async def check_fence(driver: PartitionIo, effect: ev.CheckFence) -> Event | None:
    """Find out who fenced the open segment, whose writes storage refuses; end the process if two clusters use the root.

    A successor, and a repair, first raise the epoch in the store, and then fence: a record read now shows the claim. So
    the store is asked until it responds, which costs nothing: without it no new file can be registered.
    """
    context, entry = driver.context, effect.entry
    attempt = 0
    while True:
        try:
            if not await driver.is_ours():
                return None
            is_in_place = await driver.is_in_place(entry)
            break
        except (StorageError, KvError) as error:
            attempt += 1
            context.state.trouble = str(error)
            await asyncio.sleep(context.config.retry_ms.pause(attempt) / 1000)
    if not is_in_place:
        return ev.SegmentFailed(entry.name, effect.reason)  # an operator deleted or moved it
    context.on_foreign_fence(
        f"{driver.path.log(entry.name)} was fenced by a process that the metadata store does not know, while the store"
        " names this process as the owner: another cluster, or a copy of this cluster's store, uses the same root."
        " Keep one of the two. If there is no other, the NameNode took the lease back (after an hour without a renewal,"
        " or by `hdfs debug recoverLease`): start this process again. See docs/operations/troubleshooting.md"
    )
    return None


async def count_copies(driver: PartitionIo, effect: ev.CountCopies) -> Event:
    """Count the copies of the file that holds a repeated batch."""
    if driver.copy_counter is None:
        driver.copy_counter = CopyCounter(driver.context.fs, driver.path)
    return await driver.copy_counter.count(effect)
