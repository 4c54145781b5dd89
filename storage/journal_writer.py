"""The writer of a broker's journal (``storage.journal`` has its format and its readers).

``storage.journal_machine`` decides; this module performs the machine's effects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.steps import Steps, batched, finish_steps, run_in_steps
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.metrics.counters import Histogram
from bmq.storage import journal_events as ev
from bmq.storage import layout
from bmq.storage.checkpoint import PRODUCERS_A_STEP, Checkpoint, encode_steps, encoded_bytes
from bmq.storage.filesystem import (
    AlreadyExists,
    Appender,
    CreateOptions,
    FileSystem,
    OutOfSpace,
    PipelineFailed,
    StorageError,
)
from bmq.storage.journal import CHECKPOINT, OVERHEAD, PROBE, SNAPSHOT_BEGIN, SNAPSHOT_END, frame
from bmq.storage.journal_events import Effect, Event, QueuedRecord
from bmq.storage.journal_former_files import FormerFiles
from bmq.storage.journal_machine import PATIENCE_MAX_S, JournalMachine

_FLUSH_BYTES_MAX = 8 << 20
SNAPSHOT_A_TURN = 200
"""Checkpoints of a snapshot encoded between two pauses, at up to 40 us each."""


def _record_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Return the journal record of a checkpoint, with a pause after some producers."""
    return frame(CHECKPOINT, (yield from encode_steps(checkpoint)))


def _least_block_bytes(snapshot_bytes: int) -> int:
    """Return the block size of a file where storage has no room for a larger one: for a snapshot, growth, a flush."""
    megabyte = 1 << 20
    return -(-(2 * snapshot_bytes + _FLUSH_BYTES_MAX) // megabyte) * megabyte


class _NextFile(NamedTuple):
    """A file that was created, and what its block holds."""

    appender: Appender
    block_bytes: int


class _Late(PipelineFailed):
    """A flush that storage has not acknowledged in time."""


async def _give_up(opening: asyncio.Task[_NextFile]) -> None:
    """Cancel the creation, and abort the file if it is created all the same, also after this wait was cancelled."""
    opening.cancel()
    opening.add_done_callback(_abort_created)
    await asyncio.wait((opening,))


def _abort_created(task: asyncio.Task[_NextFile]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().appender.abort()


async def _record_of(queued: QueuedRecord) -> bytes:
    record = queued.record
    return await run_in_steps(_record_steps(record)) if isinstance(record, Checkpoint) else record


class JournalWriter:
    """The open journal of one broker.  A checkpoint is durable when the future that ``append`` returned is done.

    A single writer task (``run``) takes the queued records, writes them and flushes once (group commit).  If the
    pipeline fails, the next file is begun with a snapshot, which contains the queued checkpoints: callers only wait
    longer.  ``snapshot`` gives a full checkpoint of each partition held, None for a partition without a checkpoint;
    other work runs while it is iterated.  A flush that takes longer than ``late_s`` counts as failed; this patience
    grows with the bytes, with a sync, and with each late flush.  ``no_room`` is called with the reason each time that
    storage has no room for the next file.  ``access``: the rights on the files.

    ``JournalMachine`` decides what is written and when; ``run`` performs the machine's effects, one after the other.
    ``storage.journal_copies`` decides the number of copies of a file, and when a file with too few copies is replaced.
    """

    def __init__(
        self,
        fs: FileSystem,
        incarnation: str,
        snapshot: Callable[[], Iterable[Checkpoint | None]],
        *,
        roll_bytes: int = 16 << 20,
        queue_bytes_max: int = 64 << 20,
        retry_s: float = 0.2,
        late_s: float = 0.3,
        no_room: Callable[[str], None] = no_op,
        access: Access = NO_ACCESS,
    ) -> None:
        self._fs = fs
        self._no_room = no_room
        self.incarnation = incarnation
        self._snapshot = snapshot
        self._machine = JournalMachine(roll_bytes=roll_bytes, retry_s=retry_s, late_s=late_s, access=access)
        self._budget = ByteBudget(queue_bytes_max)
        self._wake = asyncio.Event()
        self._appender: Appender | None = None  # of the open file
        self._former: Appender | None = None  # of the file that the open one has replaced, while it is closed
        self._opening: asyncio.Task[_NextFile] | None = None
        self._renewal: asyncio.Future[None] | None = None
        self._probe: asyncio.Future[None] | None = None
        self._n = 0
        self.former = FormerFiles(fs, incarnation, self._wake.set)
        self.bytes_written = 0
        self.records_written = 0
        self.flush_ms = Histogram()
        """Durations of the flushes of checkpoints."""

    def append(self, checkpoint: Checkpoint, *, sync: bool = False) -> asyncio.Future[None]:
        """Queue a checkpoint whose data is flushed, and return a future that is done when the checkpoint is flushed.

        ``sync``: it is done when the checkpoint is on disk, where it survives a loss of power.  The future never fails;
        it is cancelled if the journal ends first.
        """
        size = OVERHEAD + encoded_bytes(checkpoint)
        if len(checkpoint.producers) > PRODUCERS_A_STEP:
            return self._enqueue(checkpoint, size, sync=sync)
        return self._enqueue(finish_steps(_record_steps(checkpoint)), size, sync=sync)

    def probe(self) -> asyncio.Future[None]:
        """Write an empty record to the open file, or to the next file if the open file fails.

        Return a future that is done when storage has acknowledged the record, and cancelled if the journal ends first.
        Unlike ``renew`` it needs no NameNode while the file's datanodes respond.
        """
        if self._probe is None or self._probe.done():
            self._probe = self._enqueue(frame(PROBE, b""), OVERHEAD, is_probe=True)
        return self._probe

    def _enqueue(
        self, record: bytes | Checkpoint, size: int, *, sync: bool = False, is_probe: bool = False
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._machine.accept(QueuedRecord(record, size, future, sync, is_probe)):
            future.cancel()
            return future
        self._budget.take(size)
        self._wake.set()
        return future

    def renew(self) -> asyncio.Future[None]:
        """Begin a new file although the open file is not full, to prove that storage accepts new files.

        Return a future that is done when the new file's snapshot is flushed, and cancelled if the journal ends first.
        """
        if self._renewal is not None:
            return self._renewal
        renewal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._machine.has_ended:
            renewal.cancel()
            return renewal
        self._renewal = renewal
        self._request(ev.RenewalRequested())
        return renewal

    def check_file(self) -> None:
        """Leave the open file if its pipeline has broken while nothing was written; to be called once a second.

        Such a file may be unreadable until it is sealed, and takeovers of partitions read it, also while this broker
        lives.
        """
        if self._appender is not None and self._appender.failure is not None:
            self._wake.set()

    async def room(self) -> None:
        """Wait until the queue is within its bound."""
        await self._budget.room()

    @property
    def has_room(self) -> bool:
        """True while the queue is within its bound."""
        return self._budget.has_room

    def close(self) -> None:
        """Have ``run`` write the queue and end."""
        self._request(ev.CloseRequested())

    async def seal_left_files(self) -> None:
        """Close the former files that were left open (``FormerFiles.seal``)."""
        await self.former.seal(sync=self._machine.is_synced)

    # ------------------------------------------------------------------------------------------------------- the shell

    async def run(self) -> None:
        """Write the queue until ``close`` was called and the queue is empty.

        If cancelled (the process gives up), abort the open file and cancel the futures of the queue.
        """
        machine, now = self._machine, asyncio.get_running_loop().time
        try:
            effects = machine.handle(ev.Start(), now())
            while not machine.has_ended:
                *at_once, last = effects
                self._perform(at_once)
                effects = machine.handle(await _AWAITED[type(last)](self, last), now())
            self._perform(effects)
        finally:  # waits come last: a second cancellation may end one
            if not machine.has_ended:
                self._perform(machine.handle(ev.Stopped(), now()))
            if self._renewal is not None:
                self._renewal.cancel()
            self._budget.give_back(self._budget.used)
            try:
                if self._opening is not None:
                    await _give_up(self._opening)
            finally:
                await self.former.close()

    def _request(self, event: Event) -> None:
        self._perform(self._machine.handle(event, asyncio.get_running_loop().time()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            _AT_ONCE[type(effect)](self, effect)

    # --------------------------------------------------------------------------------------------- effects: the queue

    async def _wait_for_work(self, effect: ev.WaitForWork) -> Event:
        await self._wake.wait()
        self._wake.clear()
        appender = self._open_appender
        is_broken = appender.failure is not None
        return ev.Turn(appender.position, is_broken=is_broken, is_next_known=self._is_next_known)

    async def _write_records(self, effect: ev.WriteRecords) -> Event:
        taken, size, sync = self._machine.take(_FLUSH_BYTES_MAX)
        self._budget.give_back(size)
        appender = self._open_appender
        try:
            for queued in taken:
                appender.write(await _record_of(queued))
            await self._in_time(appender, size, sync=sync)
        except StorageError as error:
            return ev.FlushFailed(is_late=isinstance(error, _Late))
        return ev.Flushed(appender.position, is_next_known=self._is_next_known)

    def _acknowledge(self, effect: ev.Acknowledge) -> None:
        self.records_written += len(effect.records)
        self.bytes_written += effect.size
        for queued in effect.records:
            if not queued.future.done():
                queued.future.set_result(None)

    def _requeue(self, effect: ev.Requeue) -> None:
        self._budget.take(effect.size)

    def _cancel(self, effect: ev.Cancel) -> None:
        for queued in effect.records:
            queued.future.cancel()

    def _wake_now(self, effect: ev.WakeNow) -> None:
        self._wake.set()

    def _wake_at(self, effect: ev.WakeAt) -> None:
        asyncio.get_running_loop().call_at(effect.at, self._wake.set)

    async def _pause(self, effect: ev.Pause) -> Event:
        if not effect.ends_with_work:
            await asyncio.sleep(effect.seconds)
            return ev.PauseOver()
        self._wake.clear()  # set by earlier calls: the next file covers them all, and its beginning sets it again
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(effect.seconds):
                await self._wake.wait()
        return ev.PauseOver()

    async def _in_time(self, appender: Appender, size: int, *, sync: bool) -> None:
        """Flush ``size`` bytes.  Raises _Late if that takes longer than the machine's patience."""
        began = asyncio.get_running_loop().time()
        flush = appender.flush(sync=sync)
        flush.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, also if it is late
        patience_s = self._machine.patience_s(size, sync=sync)
        done, _ = await asyncio.wait({flush}, timeout=patience_s)
        if not done:
            raise _Late(f"the journal's flush is not acknowledged after {patience_s:.3g} s")
        flush.result()
        self.flush_ms.observe((asyncio.get_running_loop().time() - began) * 1000)

    # ------------------------------------------------------------------------------------------ effects: the next file

    def _create_next(self, effect: ev.CreateNext) -> None:
        self._n += 1
        create = self._create(layout.journal(self.incarnation, self._n), effect.options)
        self._opening = asyncio.get_running_loop().create_task(create, name="journal's next file")
        self._opening.add_done_callback(lambda task: self._wake.set())

    async def _create(self, path: str, options: CreateOptions) -> _NextFile:
        """Create a file, with a smaller block if storage has no room for the usual one.  Raises StorageError.

        The NameNode counts all recently allocated blocks as large as the block that is requested now.  With a thousand
        open segments, a journal's block would need a thousand times its size.
        """
        least = _least_block_bytes(self._machine.snapshot_bytes)
        try:
            return _NextFile(await self._fs.create(path, options), options.block_bytes)
        except OutOfSpace:
            if least >= options.block_bytes:
                raise
        return _NextFile(await self._fs.create(path, replace(options, block_bytes=least)), least)

    async def _await_next(self, effect: ev.AwaitNext) -> Event:
        try:
            appender, block_bytes = await self._next
        except AlreadyExists:
            self._opening = None
            return ev.NumberTaken()
        except StorageError as error:
            self._opening = None
            return ev.CreateFailed(str(error), is_no_room=isinstance(error, OutOfSpace))
        old = self._appender
        return ev.Created(len(appender.nodes), block_bytes, 0 if old is None else len(old.nodes))

    async def _write_snapshot(self, effect: ev.WriteSnapshot) -> Event:
        appender, size = (await self._next).appender, self._machine.snapshot_bytes
        try:
            # Taken when the file is open: data flushed from here on is covered by records that follow.
            records = [frame(SNAPSHOT_BEGIN, b""), *await self._snapshot_records(), frame(SNAPSHOT_END, b"")]
            size = sum(map(len, records))
            turns = Turns()
            for some in batched(records, ELEMENTS_A_TURN):
                if turns.is_over(len(some)):
                    await asyncio.sleep(0)
                appender.write(b"".join(some))
            await self._in_time(appender, size, sync=self._machine.is_synced)
        except StorageError as error:
            is_late, is_no_room = isinstance(error, _Late), isinstance(error, OutOfSpace)
            return ev.SnapshotFailed(str(error), size, is_late=is_late, is_no_room=is_no_room)
        self._former, self._appender, self._opening = self._appender, appender, None
        return ev.SnapshotFlushed(len(appender.nodes), size)

    async def _snapshot_records(self) -> list[bytes]:
        records, turns = [], Turns(SNAPSHOT_A_TURN)
        for checkpoint in self._snapshot():
            if turns.is_over():
                await asyncio.sleep(0)
            if checkpoint is None:
                continue
            assert checkpoint.is_full
            records.append(await run_in_steps(_record_steps(checkpoint)))
        return records

    def _leave_next(self, effect: ev.LeaveNext) -> None:
        self._leave(self._next.result().appender)
        self._opening = None

    async def _drop_next(self, effect: ev.DropNext | ev.DiscardNext) -> Event:
        """Close the next file once it is created, and delete it.

        It is closed first: the writer of a deleted file would still be acknowledged.
        """
        with contextlib.suppress(StorageError):  # a roll deletes it later, with the old ones
            await self._close_or_leave((await self._next).appender)
            await self._fs.delete(layout.journal(self.incarnation, self._n))
        self._opening = None
        return ev.NextDropped()

    def _report_no_room(self, effect: ev.ReportNoRoom) -> None:
        self._no_room(effect.reason)

    def _confirm_renewal(self, effect: ev.ConfirmRenewal) -> None:
        renewal, self._renewal = self._renewal, None
        if renewal is not None and not renewal.done():
            renewal.set_result(None)

    # --------------------------------------------------------------------------------- effects: the files before it

    async def _leave_file(self, effect: ev.LeaveFile) -> Event:
        appender, self._appender = self._open_appender, None
        self._leave(appender)
        with contextlib.suppress(StorageError):  # a probe only helps the choice of the next nodes
            await asyncio.gather(*(self._fs.probe(node) for node in appender.nodes))
        return ev.FileLeft()

    async def _close_former(self, effect: ev.CloseFormer) -> Event:
        assert self._former is not None
        return ev.FormerClosed(await self._close_or_leave(self._former))

    async def _close_file(self, effect: ev.CloseFile) -> Event:
        await self._close_or_leave(self._open_appender)
        self._appender = None
        return ev.FileClosed()

    def _delete_old(self, effect: ev.DeleteOld) -> None:
        path = self._open_appender.lease.paths[0]
        self.former.delete_old(path, has_all_copies=self._machine.has_all_copies)

    def _keep_former(self, effect: ev.KeepFormer) -> None:
        assert self._former is not None
        self.former.add_closed(self._former.lease.paths[0])

    def _note_old(self, effect: ev.NoteOld) -> None:
        self._former = None
        self.former.add_old()

    def _abort_files(self, effect: ev.AbortFiles) -> None:
        for appender in (self._former, self._appender):
            if appender is not None:
                appender.abort()

    def _leave(self, appender: Appender) -> None:
        """Give up the file's pipeline; ``seal_left_files`` closes the file later."""
        appender.abort()
        self.former.add_left(appender.lease)

    async def _close_or_leave(self, appender: Appender) -> bool:
        """Close a file whose content the next one repeats; return False if it had to be left open."""
        try:
            async with asyncio.timeout(PATIENCE_MAX_S):
                if self._machine.is_synced:  # a closed file that loses its end cannot be read at all
                    await appender.flush(sync=True)
                await appender.close()
        except (StorageError, TimeoutError):
            self._leave(appender)
            return False
        return True

    @property
    def _open_appender(self) -> Appender:
        assert self._appender is not None
        return self._appender

    @property
    def _next(self) -> asyncio.Task[_NextFile]:
        assert self._opening is not None
        return self._opening

    @property
    def _is_next_known(self) -> bool:
        return self._opening is not None and self._opening.done()


_W = JournalWriter
_AT_ONCE: Mapping[type[Effect], Callable[[JournalWriter, Any], None]] = {
    ev.Acknowledge: _W._acknowledge,
    ev.Requeue: _W._requeue,
    ev.Cancel: _W._cancel,
    ev.WakeNow: _W._wake_now,
    ev.WakeAt: _W._wake_at,
    ev.CreateNext: _W._create_next,
    ev.LeaveNext: _W._leave_next,
    ev.ReportNoRoom: _W._report_no_room,
    ev.ConfirmRenewal: _W._confirm_renewal,
    ev.DeleteOld: _W._delete_old,
    ev.KeepFormer: _W._keep_former,
    ev.NoteOld: _W._note_old,
    ev.AbortFiles: _W._abort_files,
}
_AWAITED: Mapping[type[Effect], Callable[[JournalWriter, Any], Awaitable[Event]]] = {
    ev.WaitForWork: _W._wait_for_work,
    ev.WriteRecords: _W._write_records,
    ev.Pause: _W._pause,
    ev.AwaitNext: _W._await_next,
    ev.WriteSnapshot: _W._write_snapshot,
    ev.DropNext: _W._drop_next,
    ev.DiscardNext: _W._drop_next,
    ev.LeaveFile: _W._leave_file,
    ev.CloseFormer: _W._close_former,
    ev.CloseFile: _W._close_file,
}
"""The effects that have a result."""
