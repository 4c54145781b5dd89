"""The writer of a broker's journal (``storage.journal`` has its format and its readers)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.steps import Steps, finish_steps, run_in_steps
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.turns import Turns
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.metrics.counters import Histogram
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
from bmq.storage.journal_copies import JournalCopies
from bmq.storage.journal_former_files import FormerFiles

_PATIENCE_MAX_S = 10.0
_SYNC_S = 2.0  # added to the patience with a flush that waits for disks
_SLOW_BYTES_PER_S = 10 << 20
_FLUSH_BYTES_MAX = 8 << 20
_BLOCK_BYTES_MIN = 64 << 20
_ROLL_AGAIN_S = 1.0
"""The time from a roll that storage did not serve to the next try, whatever is written to the open file meanwhile.

Nothing waits for it, the block has room for more, and each try is a file of the NameNode.
"""
_IDLE_RETRY_S = 1.0
"""The time from a next file that storage did not serve to the next try, while no checkpoint waits for it."""
SNAPSHOT_A_TURN = 200
"""Checkpoints of a snapshot encoded between two pauses, at up to 40 us each."""


def _record_steps(checkpoint: Checkpoint) -> Steps[bytes]:
    """Return the journal record of a checkpoint, with a pause after some producers."""
    return frame(CHECKPOINT, (yield from encode_steps(checkpoint)))


def _block_bytes(roll_bytes: int) -> int:
    """Return the block size of a file: it has one block, for the snapshot, the records until the roll, and a flush."""
    megabyte = 1 << 20
    return max(_BLOCK_BYTES_MIN, 2 * -(-roll_bytes // megabyte) * megabyte)


def _least_block_bytes(snapshot_bytes: int) -> int:
    """Return the block size of a file where storage has no room for a larger one: for a snapshot, growth, a flush."""
    megabyte = 1 << 20
    return -(-(2 * snapshot_bytes + _FLUSH_BYTES_MAX) // megabyte) * megabyte


class _NextFile(NamedTuple):
    """A file that was created, and what its block holds."""

    appender: Appender
    block_bytes: int


class _Opening(NamedTuple):
    """A next file that is being created.  ``is_fuller``: it is wanted only if it has more copies than the open one."""

    task: asyncio.Task[_NextFile]
    options: CreateOptions
    is_fuller: bool


async def _give_up(opening: _Opening) -> None:
    """Cancel the creation, and abort the file if it is created all the same, also after this wait was cancelled."""
    opening.task.cancel()
    opening.task.add_done_callback(_abort_created)
    await asyncio.wait((opening.task,))


def _abort_created(task: asyncio.Task[_NextFile]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().appender.abort()


class _Queued(NamedTuple):
    """A record to be written, or a checkpoint with so many producers that its record is encoded in turns."""

    record: bytes | Checkpoint
    size: int
    future: asyncio.Future[None]
    is_synced: bool


async def _record_of(queued: _Queued) -> bytes:
    record = queued.record
    return await run_in_steps(_record_steps(record)) if isinstance(record, Checkpoint) else record


class JournalWriter:
    """The open journal of one broker.  A checkpoint is durable when the future that ``append`` returned is done.

    One writer task (``run``) takes the queued records, writes them and flushes once (group commit).  If the pipeline
    fails, the next file is begun with a snapshot, which contains the queued checkpoints: callers only wait longer.
    ``snapshot`` gives a full checkpoint of each partition held; other work runs while it is iterated.  A flush that
    takes longer than ``late_s`` counts as failed; this patience grows with the bytes, with a sync, and with each late
    flush.  ``no_room`` is called with the reason each time that storage has no room for the next file.
    ``access``: the rights on the files.

    How many copies a file is to have, and when one with fewer is replaced: ``storage.journal_copies``.
    """

    def __init__(
        self,
        fs: FileSystem,
        incarnation: str,
        snapshot: Callable[[], Iterable[Checkpoint]],
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
        self._access = access
        self.incarnation = incarnation
        self._snapshot = snapshot
        self._roll_bytes = roll_bytes
        self._retry_s = retry_s
        self._late_s = late_s
        self._patience_s = late_s
        self._queue: list[_Queued] = []
        self._is_synced = False  # a record had to be on disk: the snapshots that repeat it have to be, too
        self._budget = ByteBudget(queue_bytes_max)
        self._wake = asyncio.Event()
        self._closing = False
        self._ended = False
        self._appender: Appender | None = None
        self._block_bytes = 0  # of the open file
        self._opening: _Opening | None = None
        self._renewal: asyncio.Future[None] | None = None
        self._roll_at = 0.0  # no roll is tried before this time of the loop
        self._probe: asyncio.Future[None] | None = None
        self._n = 0
        self._copies = JournalCopies()
        self._snapshot_bytes = 0
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
        """Write an empty record to the open file, or to the next one if that one fails.

        Return a future that is done when storage has acknowledged the record, and cancelled if the journal ends first.
        Unlike ``renew`` it needs no NameNode while the file's datanodes respond.
        """
        if self._probe is None or self._probe.done():
            self._probe = self._enqueue(frame(PROBE, b""), OVERHEAD, sync=False)
        return self._probe

    def _enqueue(self, record: bytes | Checkpoint, size: int, *, sync: bool) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            future.cancel()
            return future
        self._queue.append(_Queued(record, size, future, sync))
        self._is_synced |= sync
        self._budget.take(size)
        self._wake.set()
        return future

    def renew(self) -> asyncio.Future[None]:
        """Begin a new file although the open one is not full, which proves that storage accepts new files.

        Return a future that is done when the new file's snapshot is flushed, and cancelled if the journal ends first.
        """
        if self._renewal is not None:
            return self._renewal
        renewal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            renewal.cancel()
            return renewal
        self._renewal = renewal
        self._wake.set()
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

    async def run(self) -> None:
        """Write the queue until ``close`` was called and the queue is empty.

        If cancelled (the process gives up), abort the open file and cancel the futures of the queue.
        """
        try:
            while not (self._closing and not self._queue):
                if self._appender is None:
                    opening, self._opening = self._opening or self._open_next(), None
                    await self._begin(opening)
                    continue
                await self._wake.wait()
                self._wake.clear()
                if self._appender.failure is not None:
                    await self._leave_failed(self._appender)
                    continue
                await self._write_queue()
                if self._appender is not None:
                    self.former.delete_old(self._appender.lease.paths[0], has_all_copies=self._copies.has_all)
                if self._appender is not None and self._opening is not None:
                    if self._opening.task.done():
                        await self._roll(self._appender, self._opening)
                elif self._appender is not None and self._is_roll_due(self._appender):
                    self._opening = self._open_next()
                elif self._appender is not None and self._copies.is_fuller_due(asyncio.get_running_loop().time()):
                    self._plan_fuller_file()
                    self._opening = self._open_next(is_fuller=True)
            if self._appender is not None:
                await self._close_file(self._appender)
                self._appender = None
            if self._opening is not None:  # last: a creation may take longer than the process has to end
                await self._discard(self._opening)
        except asyncio.CancelledError:
            if self._appender is not None:
                self._appender.abort()
            raise
        finally:  # waits come last: a second cancellation may end one
            self._ended = True
            for queued in self._queue:
                queued.future.cancel()
            if self._renewal is not None:
                self._renewal.cancel()
            self._queue.clear()
            self._budget.give_back(self._budget.used)
            try:
                if self._opening is not None:
                    await _give_up(self._opening)
            finally:
                await self.former.close()

    def close(self) -> None:
        """Have ``run`` write the queue and end."""
        self._closing = True
        self._wake.set()

    def _is_roll_due(self, appender: Appender) -> bool:
        is_wanted = self._renewal is not None or self._is_full(appender)
        return is_wanted and asyncio.get_running_loop().time() >= self._roll_at

    @property
    def _has_checkpoints(self) -> bool:
        """True while a record is queued that a takeover may need.  A probe does not count: no takeover waits for it."""
        return any(queued.future is not self._probe for queued in self._queue)

    def _roll_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._roll_at = loop.time() + _ROLL_AGAIN_S
        loop.call_at(self._roll_at, self._wake.set)

    def _is_full(self, appender: Appender) -> bool:
        return appender.position > min(max(self._roll_bytes, 4 * self._snapshot_bytes), self._block_bytes // 2)

    async def _write_queue(self) -> None:
        if not self._queue:
            return
        taken, size = self._take()
        assert self._appender is not None
        try:
            for queued in taken:
                self._appender.write(await _record_of(queued))
            await self._in_time(self._appender, size, sync=any(queued.is_synced for queued in taken))
        except StorageError:
            # A new file's snapshot holds what these records say, or later facts: they are done when it is.
            self._queue = taken + self._queue
            self._budget.take(size)
            await self._leave_failed(self._appender)
            return
        except BaseException:
            self._queue = taken + self._queue
            raise
        self.records_written += len(taken)
        self.bytes_written += size
        for queued in taken:
            if not queued.future.done():
                queued.future.set_result(None)
        if self._queue:
            self._wake.set()

    def _take(self) -> tuple[list[_Queued], int]:
        """Take the records of one flush, and return them and their bytes.

        A file must hold them beside its snapshot, so this is not the whole of a long queue.
        """
        size = count = 0
        for queued in self._queue:
            if count and size + queued.size > _FLUSH_BYTES_MAX:
                break
            size += queued.size
            count += 1
        taken, self._queue = self._queue[:count], self._queue[count:]
        self._budget.give_back(size)
        return taken, size

    async def _in_time(self, appender: Appender, size: int, *, sync: bool) -> None:
        """Flush ``size`` bytes.  Raises PipelineFailed if that takes too long.

        A silent pipeline is left before storage itself gives it up (5 s): takeovers wait for checkpoints, and a new
        file costs 30 ms.  The patience doubles each time, lest storage that is slow everywhere be flooded with files.
        """
        began = asyncio.get_running_loop().time()
        flush = appender.flush(sync=sync)
        flush.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, also if it is late
        patience_s = self._patience_s + size / _SLOW_BYTES_PER_S + (_SYNC_S if sync else 0.0)
        done, _ = await asyncio.wait({flush}, timeout=patience_s)
        if not done:
            self._patience_s = min(2 * self._patience_s, _PATIENCE_MAX_S)
            raise PipelineFailed(f"the journal's flush is not acknowledged after {patience_s:.3g} s")
        flush.result()
        self.flush_ms.observe((asyncio.get_running_loop().time() - began) * 1000)
        self._patience_s = max(self._late_s, 0.99 * self._patience_s)

    async def _leave_failed(self, appender: Appender) -> None:
        """Leave the open file, since its pipeline broke or is late; ``run`` begins the next."""
        self._appender = None
        self._leave(appender)
        await self._probe_nodes(appender)

    async def _probe_nodes(self, late: Appender) -> None:
        """Probe the nodes of a pipeline that was given up: the next file avoids those that do not respond."""
        with contextlib.suppress(StorageError):  # a probe only helps the choice of the next nodes
            await asyncio.gather(*(self._fs.probe(node) for node in late.nodes))

    def _open_next(self, *, is_fuller: bool = False) -> _Opening:
        """Begin to create the next file, beside the open one: without a NameNode that takes 15 s to fail.

        It has fewer copies if storage has had no room for all of them for a while.
        """
        self._n += 1
        now = asyncio.get_running_loop().time()
        options = CreateOptions(
            block_bytes=_block_bytes(max(self._roll_bytes, 4 * self._snapshot_bytes)),
            chunk_bytes=512,
            all_copies=is_fuller or self._copies.waits_for_all(now),
            access=self._access,
        )
        create = self._create(layout.journal(self.incarnation, self._n), options)
        task = asyncio.get_running_loop().create_task(create, name="journal's next file")
        task.add_done_callback(lambda task: self._wake.set())
        return _Opening(task, options, is_fuller)

    async def _create(self, path: str, options: CreateOptions) -> _NextFile:
        """Create a file, with a smaller block if storage has no room for the usual one.  Raises StorageError.

        The NameNode counts each block that it allocated recently as large as the block that is requested now.  With a
        thousand open segments, a journal's block would need a thousand times its size.
        """
        least = _least_block_bytes(self._snapshot_bytes)
        try:
            return _NextFile(await self._fs.create(path, options), options.block_bytes)
        except OutOfSpace:
            if least >= options.block_bytes:
                raise
        return _NextFile(await self._fs.create(path, replace(options, block_bytes=least)), least)

    async def _begin(self, opening: _Opening, old: Appender | None = None) -> bool:
        """Write a snapshot to the next file, and go on in it.  Returns False if that failed, or it is not wanted.

        ``old`` is the open file.
        """
        appender: Appender | None = None
        now = asyncio.get_running_loop().time()
        try:
            appender, block_bytes = await opening.task
            if opening.is_fuller and old is not None and len(old.nodes) >= max(1, len(appender.nodes)):
                await self._drop(appender)
                return False
            # Taken when the file is open: data flushed from here on is covered by records that follow.
            records = [frame(SNAPSHOT_BEGIN, b""), *await self._snapshot_records(), frame(SNAPSHOT_END, b"")]
            size = self._snapshot_bytes = sum(map(len, records))
            for record in records:
                appender.write(record)
            await self._in_time(appender, size, sync=self._is_synced)
        except AlreadyExists:
            return False  # a failed attempt has left a file of this number: take the next
        except StorageError as error:
            if appender is not None:
                self._leave(appender)
            if isinstance(error, OutOfSpace) and not opening.is_fuller:
                self._copies.no_room(now)
                self._no_room(str(error))
            if old is None:
                await self._pause()
            return False
        except BaseException:
            await _give_up(opening)
            raise
        self._appender, self._block_bytes = appender, block_bytes
        if not self._copies.begun(len(appender.nodes), opening.options):
            self._plan_fuller_file()
        self._wake.set()
        renewal, self._renewal = self._renewal, None
        if renewal is not None and not renewal.done():
            renewal.set_result(None)
        return True

    def _plan_fuller_file(self) -> None:
        """Have the open file replaced by one with more copies after a while, also if nothing is written meanwhile."""
        loop = asyncio.get_running_loop()
        loop.call_at(self._copies.plan_fuller(loop.time()), self._wake.set)

    async def _pause(self) -> None:
        """Wait before the next try for a file; longer if nothing waits for it, since each try makes a file."""
        await asyncio.sleep(self._retry_s)
        if not self._has_checkpoints:
            self._wake.clear()  # set by earlier calls: the next file covers them all, and its beginning sets it again
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_RETRY_S - self._retry_s):
                    await self._wake.wait()

    async def _snapshot_records(self) -> list[bytes]:
        records, turns = [], Turns(SNAPSHOT_A_TURN)
        for checkpoint in self._snapshot():
            assert checkpoint.is_full
            if turns.is_over():
                await asyncio.sleep(0)
            records.append(await run_in_steps(_record_steps(checkpoint)))
        return records

    def _leave(self, appender: Appender) -> None:
        """Give up the file's pipeline; ``seal_left_files`` closes the file later."""
        appender.abort()
        self.former.add_left(appender.lease)

    async def seal_left_files(self) -> None:
        """Close the former files that were left open (``FormerFiles.seal``)."""
        await self.former.seal(sync=self._is_synced)

    async def _roll(self, old: Appender, opening: _Opening) -> None:
        """Go on in the next file, which was created or could not be."""
        self._opening = None
        has_all_copies = self._copies.has_all
        try:
            if not await self._begin(opening, old):  # go on in this one, and try again later
                self._roll_later()
                if self._queue:
                    self._wake.set()
                return
            if await self._close_file(old) and has_all_copies:
                self.former.add_closed(old.lease.paths[0])
        except BaseException:
            old.abort()
            raise
        self.former.add_old()
        self._wake.set()

    async def _discard(self, opening: _Opening) -> None:
        """Delete the next file, which is not needed, once it was created."""
        with contextlib.suppress(StorageError):
            await self._drop((await opening.task).appender)
        self._opening = None

    async def _drop(self, appender: Appender) -> None:
        """Close an open file that is not needed, and delete it.

        It is closed first: the writer of a deleted file would still be acknowledged.
        """
        await self._close_file(appender)
        with contextlib.suppress(StorageError):  # a roll deletes it later, with the old ones
            await self._fs.delete(layout.journal(self.incarnation, self._n))

    async def _close_file(self, appender: Appender) -> bool:
        """Close a file whose content the next one repeats; return False if it had to be left open."""
        try:
            async with asyncio.timeout(_PATIENCE_MAX_S):
                if self._is_synced:  # a closed file that loses its end cannot be read at all
                    await appender.flush(sync=True)
                await appender.close()
        except (StorageError, TimeoutError):
            self._leave(appender)
            return False
        return True
