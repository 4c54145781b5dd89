"""The shell of one partition: performs effects, feeds results back as events.

It decides nothing.  Every task it starts is in ``_tasks`` and ends with the partition; an idle partition has none.
The produce path is: ``append`` (check, number, queue) -> a turn of the scheduler -> ``send`` (one write and one flush
for all that is queued) -> one ``Flushed`` event -> the futures of the batches in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bmq.broker import events as ev
from bmq.broker.config import LogConfig
from bmq.broker.events import Effect, Event, Pending
from bmq.broker.partition import Duplicate, Partition
from bmq.broker.segment_files import SegmentFiles
from bmq.broker.shared import Shared
from bmq.broker.takeover import Takeover
from bmq.broker.transitions import TERMINAL, State
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records import Batch, parse_batch
from bmq.meta import ownership
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import (
    Appender,
    CorruptData,
    LeaseLost,
    NoSuchFile,
    PipelineFailed,
    StorageError,
)
from bmq.storage.layout import PartitionPath

JOIN_BYTES = 8192  # batches smaller than this on average are joined: a copy costs less than a call for each
ALARM_MS_MAX = 60_000
T = TypeVar("T")


def _base_offset(base_offset: int, timestamp: int) -> int:
    return base_offset


class Flight:
    """One flush on its way; counted once, however it ends."""

    __slots__ = ("is_over", "name", "nodes", "sent_ms", "size")

    def __init__(self, name: SegmentName, nodes: tuple[str, ...], sent_ms: int, size: int) -> None:
        self.name = name
        self.nodes = nodes
        self.sent_ms = sent_ms
        self.size = size
        self.is_over = False


class PartitionWriter:
    """One partition of this broker.  ``append`` after ``wait_open``; ``move`` or ``abandon`` in the end."""

    def __init__(self, shared: Shared, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        self._shared = shared
        self.path = path
        self.partition = Partition(key, shared.incarnation, config, shared.config)
        self._segments = SegmentFiles(shared, path, is_synced=config.flush_sync, replication=config.replication)
        self._takeover = Takeover(shared, self._segments, key, config.index_interval_bytes)
        self._kv_key = ownership.partition_key(shared.cluster, key)
        self._files: dict[str, Appender] = {}  # by spare path, the name a file keeps for life
        self._flights: set[Flight] = set()
        self._flying_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._alarm_ms = -1
        self._durable_start = 0
        self._found: tuple[PartitionRecord, int] | None = None
        self._is_told = False  # the tails hear of this partition
        self.on_end: Callable[[], None] | None = None
        """Called once, in a terminal state."""
        self.in_line = False
        self.flights = 0

    def __repr__(self) -> str:
        return f"<PartitionWriter {self.path} {self.partition!r}>"

    # ------------------------------------------------------------------------------------------------ its owner's calls

    def start(self, found: tuple[PartitionRecord, int] | None = None) -> None:
        """``found``: the partition's record and revision, when they are known.  They may be old by now: the claim
        compares the revision."""
        self._found = found
        self.post(ev.Start())

    async def wait_open(self) -> None:
        """Until batches are accepted.  RequestError when that will not come."""
        await self.wait(lambda: self.partition.state is State.WRITE or self.partition.state in TERMINAL)
        if self.partition.state is not State.WRITE:
            raise self.partition._refusal()

    async def wait(self, is_met: Callable[[], bool]) -> None:
        """Until the condition holds; looked at whenever the state, the watermark or a checkpoint has moved."""
        while not is_met():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)

    def append(self, data: memoryview, *, is_internal: bool = False) -> asyncio.Future[int]:
        """Accept one batch; the future gives its base offset once it is flushed.

        RequestError at once when it is refused.  The bytes stay ours until the future is done; they are numbered in
        place when they are writable, else in a copy.
        """
        return self.when_flushed(self.accept(parse_batch(data), is_internal=is_internal), _base_offset)

    def accept(self, batch: Batch, *, is_internal: bool = False) -> Pending | Duplicate:
        """Check, number and queue one batch.  RequestError at once when it is refused."""
        shared = self._shared
        check = self.partition.append_internal if is_internal else self.partition.append
        accepted = check(batch, shared.clock.now_ms())
        if isinstance(accepted, Pending):
            shared.budget.take(batch.size)
            if not self.in_line or self.partition.current is None:  # else its turn comes anyway
                self._apply(self.partition.after_append(shared.now_ms()))
        return accepted

    def when_flushed(self, accepted: Pending | Duplicate, result: Callable[[int, int], T]) -> asyncio.Future[T]:
        """``result(base offset, largest timestamp)`` once the batch is flushed; RequestError if it will not be.

        Rule 9: a repeated batch is answered with its first offset, after the flush of the original.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if isinstance(accepted, Duplicate):
            if accepted.pending is None:
                future.set_result(result(accepted.base_offset, accepted.timestamp))
                return future
            accepted = accepted.pending
        if accepted.token is None:
            accepted.token = [(future, result)]
        else:
            assert isinstance(accepted.token, list)
            accepted.token.append((future, result))
        return future

    @property
    def has_room(self) -> bool:
        """Whether the partition's buffer and the process's are under their bounds."""
        shared = self._shared
        return shared.budget.has_room and self.partition.buffered_bytes < shared.config.buffer_bytes

    async def room(self) -> None:
        """Wait until the buffers are under their bounds (or the partition is no more)."""
        limit = self._shared.config.buffer_bytes
        while not self.has_room and self.partition.state is State.WRITE:
            await self.wait(lambda: self.partition.buffered_bytes < limit or self.partition.state is not State.WRITE)
            await self._shared.budget.room()

    async def delete_before(self, offset: int) -> None:
        """Move the log start and wait until that is durable and the ownership was proven after it (rule 10).

        RequestError OFFSET_OUT_OF_RANGE past the watermark, as Kafka's DeleteRecords answers.
        """
        partition = self.partition
        if partition.state is State.WRITE and offset > partition.high_watermark:
            raise RequestError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is past the high watermark {partition.high_watermark}"
            )
        before = partition.log_start
        self.post(ev.LogStartRaised(offset))
        if partition.log_start != before and self._shared.tails is not None:
            self._shared.tails.log_start_moved(partition.key, partition.log_start)
        await self.wait(lambda: self._durable_start >= offset or partition.state is not State.WRITE)
        await self.prove()

    async def prove(self) -> None:
        """The partition was ours at some moment since the call: the store says so.  KvError when it does not answer,
        RequestError when we are the owner no more."""
        await self._is_ours()
        if self.partition.state is not State.WRITE:
            raise self.partition._refusal()

    def reconfigure(self, config: LogConfig) -> None:
        """Follow other settings from now on; what was accepted and what is open stay as they are."""
        self.partition.config = config
        self._segments.is_synced = config.flush_sync
        self.post(ev.Tick(self._shared.clock.now_ms()))  # a deadline may be nearer now

    async def move(self) -> None:
        """Hand the partition over: flush, close, checkpoint, release.  Returns in a terminal state.

        A successor waits for ``handover_wait_ms``, then takes the partition.  From then on the store is asked whether
        it has: storage may never let us finish, and clients ask nobody else while they wait for our answers.
        """
        if self.partition.state not in TERMINAL:
            self.post(ev.MoveRequested())
        config = self._shared.config
        while not await self._has_ended(max(config.handover_wait_ms, config.retry_max_ms) / 1000):
            with contextlib.suppress(KvError):  # the store is away: nobody takes anything, ask again later
                await self._is_ours()
        await self.abandon()

    async def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.wait(lambda: self.partition.state in TERMINAL)
        return self.partition.state in TERMINAL

    async def abandon(self) -> None:
        """Drop everything at once, telling nobody: the process ends, or the partition is lost."""
        self._abort_files()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------ the loop

    def post(self, event: Event) -> None:
        """Hand an event to the machine and perform what it asks for."""
        now_ms = self._shared.now_ms()
        self._apply(self.partition.handle(event, now_ms))
        deadline = self.partition.deadline_ms()
        if deadline is None:
            return
        # Looked at again after a while rather than in a week: an alarm that lost its reason is soon forgotten.
        deadline = min(deadline, now_ms + ALARM_MS_MAX)
        if self._alarm_ms < 0 or deadline < self._alarm_ms:
            self._alarm_ms = deadline
            self._shared.alarms.at(deadline, self._ring)

    def _ring(self) -> None:
        self._alarm_ms = -1
        self.post(ev.Tick(self._shared.clock.now_ms()))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            PERFORM[type(effect)](self, effect)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the partition."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self._shared.report(f"{self.path}: bug: {error!r}")
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{self!r} failed", "exception": error, "task": task}
            )

    def _notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------------------------------------------- sending

    @property
    def has_unsent(self) -> bool:
        return bool(self.partition.unsent) and self.partition.current is not None

    @property
    def unsent_bytes(self) -> int:
        return self.partition.buffered_bytes - self._flying_bytes

    def send(self) -> bool:
        """One flush of what is queued (the scheduler's turn)."""
        segment = self.partition.current
        now_ms = self._shared.now_ms()
        taken, effects = self.partition.take(self._shared.config.flush_bytes, now_ms)
        if taken:
            assert segment is not None
            self._flush(segment.entry, taken, now_ms)
        self._apply(effects)
        return bool(taken)

    def _flush(self, entry: SegmentEntry, taken: list[Pending], now_ms: int) -> None:
        appender = self._files[entry.spare]
        size = taken[-1].end_position - taken[0].start_position
        flight = Flight(entry.name, appender.nodes, now_ms, size)
        self._flights.add(flight)
        self._flying_bytes += size
        try:
            data = [pending.batch.data for pending in taken]
            if len(data) > 1 and size < len(data) * JOIN_BYTES:
                data = [memoryview(b"".join(data))]
            for piece in data:
                appender.write(piece)
            future = appender.flush(sync=self.partition.config.flush_sync)
        except StorageError as error:
            asyncio.get_running_loop().call_soon(self._flush_failed, flight, error)
            return
        future.add_done_callback(lambda done: self._landed(flight, done))

    def _landed(self, flight: Flight, future: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._flush_failed(flight, error)
            return
        if flight.is_over:
            return  # given up before this ack
        shared = self._shared
        self._release(flight)
        shared.health.flushed(flight.nodes, shared.now_ms() - flight.sent_ms)
        self.post(ev.Flushed(flight.name, future.result()))
        shared.scheduler.landed(self)

    def _flush_failed(self, flight: Flight, error: BaseException) -> None:
        if flight.is_over:
            return
        self._release(flight)
        if isinstance(error, PipelineFailed):
            self._shared.health.failed(error.suspects, self._shared.now_ms())
        self.post(ev.PipelineFailed(flight.name, repr(error)))
        self._shared.scheduler.landed(self)

    def _release(self, flight: Flight) -> None:
        flight.is_over = True
        self._flights.discard(flight)
        self._flying_bytes -= flight.size

    def _abort_file(self, entry: SegmentEntry) -> None:
        appender = self._files.pop(entry.spare, None)
        if appender is None:
            return
        for flight in [flight for flight in self._flights if flight.name == entry.name]:
            self._release(flight)
            self._shared.scheduler.landed(self)
        appender.abort()

    def _abort_files(self) -> None:
        for flight in list(self._flights):
            self._release(flight)
            self._shared.scheduler.landed(self)
        files, self._files = self._files, {}
        for appender in files.values():
            appender.abort()

    # ------------------------------------------------------------------------------------ effects that answer at once

    def _do_wake(self, effect: ev.Wake) -> None:
        self._shared.scheduler.want(self)

    def _do_acknowledge(self, effect: ev.Acknowledge) -> None:
        budget = self._shared.budget
        for pending in effect.batches:
            budget.give_back(pending.batch.size)
            batch = pending.batch
            if pending.token is not None:
                for future, result in pending.token:  # type: ignore[attr-defined]
                    if not future.done():
                        future.set_result(result(batch.base_offset, batch.max_timestamp))
        if self._is_told:
            assert self._shared.tails is not None
            batches = [pending.batch for pending in effect.batches]
            self._shared.tails.flushed(self.partition.key, batches, self.partition.high_watermark)
        if self._waiting:
            self._notify()

    def _do_reject(self, effect: ev.Reject) -> None:
        for pending in effect.batches:
            self._shared.budget.give_back(pending.batch.size)
            for future, _ in pending.token or ():  # type: ignore[attr-defined]
                if not future.done():
                    future.set_exception(RequestError(effect.code, effect.reason))

    def _do_abort(self, effect: ev.Abort) -> None:
        self._abort_files()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _do_alarm(self, effect: ev.Alarm) -> None:
        self._shared.report(f"{self.path}: {effect.reason}")

    def _do_state_changed(self, effect: ev.StateChanged) -> None:
        partition, tails = self.partition, self._shared.tails
        if partition.state is State.WRITE and tails is not None:
            self._is_told = True
            tails.opened(partition.key, partition.epoch, partition.log_start, partition.high_watermark)
        elif self._is_told and tails is not None:
            self._is_told = False
            tails.closed(partition.key)
        if partition.state is State.FENCED:
            self._shared.fenced.append(self)
        self._notify()
        if partition.state in TERMINAL and self.on_end is not None:
            self.on_end()

    def _do_suspect(self, effect: ev.Suspect) -> None:
        segment = self.partition.current
        assert segment is not None
        self.spawn(self._look_into(effect, self._files[segment.entry.spare].nodes))

    async def _look_into(self, suspect: ev.Suspect, nodes: tuple[str, ...]) -> None:
        """Fail over when a node is silent, or is an outlier, or when nothing has moved for twice the time; and only
        while tokens last, so that a hiccup of the whole cluster is no storm of new files."""
        shared = self._shared
        answers = await asyncio.gather(*(shared.fs.probe(node) for node in nodes))
        silent = tuple(node for node, is_up in zip(nodes, answers, strict=True) if not is_up)
        outliers = shared.health.outliers(nodes)
        while not silent and not outliers and suspect.age_ms < 2 * shared.config.slow_flush_ms:
            await asyncio.sleep((2 * shared.config.slow_flush_ms - suspect.age_ms) / 1000)
            partition = self.partition
            is_same = partition.current is not None and partition.current.entry.name == suspect.name
            if not is_same or not partition.inflight:
                return
            suspect = ev.Suspect(suspect.name, shared.now_ms() - partition.inflight[0].sent_ms)
            if suspect.age_ms < shared.config.slow_flush_ms:
                return
        if not shared.health.take_roll_token(shared.now_ms()):
            return
        shared.health.failed(silent, shared.now_ms())
        if not silent:
            shared.health.slow(outliers, shared.now_ms())
        reason = f"no flush for {suspect.age_ms} ms; silent: {silent}; slow: {outliers}"
        self.post(ev.PipelineFailed(suspect.name, reason))

    def has_node(self, nodes: set[str]) -> bool:
        """Whether the open pipeline has one of these in it, and has not just been left for slowness."""
        segment = self.partition.current
        if segment is None or not self.partition.may_leave_slow(self._shared.now_ms()):
            return False
        return bool(nodes.intersection(self._files[segment.entry.spare].nodes))

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    def _do_run_again(self, effect: ev.RunAgain) -> None:
        self._later(effect.delay_ms, lambda: self._apply([effect.effect]))

    def _later(self, delay_ms: int, call: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_ms / 1000)
            if self.partition.state not in TERMINAL:
                call()

        self.spawn(wait())

    # ------------------------------------------------------------------------------------------------- the record

    def _do_read_record(self, effect: ev.ReadRecord) -> None:
        async def work() -> None:
            if self._found is not None:
                self.post(ev.RecordRead(*self._found))
                return
            delay = self._shared.config.retry_ms / 1000
            while True:
                try:
                    self.post(ev.RecordRead(*await ownership.read(self._shared.kv, self._kv_key)))
                except KvError:
                    await asyncio.sleep(delay)
                    continue
                return

        self.spawn(work())

    def _do_store_record(self, effect: ev.StoreRecord) -> None:
        async def work() -> None:
            try:
                result = await ownership.store(self._shared.kv, self._kv_key, effect.record, effect.revision)
            except KvError:
                self.post(ev.RecordUnknown(effect.record))
                return
            if isinstance(result, ownership.Stored):
                self.post(ev.RecordStored(effect.record, result.revision))
            else:
                self.post(ev.RecordRefused(result.record, result.revision))

        self.spawn(work())

    async def _is_ours(self) -> bool:
        """Ask the store who owns the partition; hear of it when it is somebody else."""
        record, _ = await ownership.read(self._shared.kv, self._kv_key)
        if record.epoch == self.partition.epoch:
            return True
        self.post(ev.EpochRaised(record.epoch))
        return False

    # ------------------------------------------------------------------------------------------ fencing and recovery

    def _do_fence(self, effect: ev.FenceSegments) -> None:
        async def work() -> None:
            try:
                fenced = await asyncio.gather(*(self._takeover.fence(entry) for entry in effect.entries))
            except StorageError as error:
                self.post(ev.FenceFailed(repr(error)))
                return
            self.post(ev.SegmentsFenced(tuple(fenced)))

        self.spawn(work())

    def _do_recover(self, effect: ev.RecoverLog) -> None:
        async def work() -> None:
            try:
                self.post(await self._takeover.recover(effect))
            except CorruptData as error:
                self.post(ev.RecoveryRefused(f"no replica gives right bytes: {error}"))
            except FormatError as error:
                self.post(ev.RecoveryRefused(str(error)))
            except StorageError as error:
                self.post(ev.RecoveryFailed(repr(error)))

        self.spawn(work())

    def _do_write_indexes(self, effect: ev.WriteIndexes) -> None:
        self.spawn(self._takeover.write_indexes(effect))

    def _do_write_checkpoint(self, effect: ev.WriteCheckpoint) -> None:
        checkpoint = effect.checkpoint

        def covered(future: asyncio.Future[None]) -> None:
            if future.cancelled() or self.partition.state in TERMINAL:
                return
            self._durable_start = max(self._durable_start, checkpoint.log_start)
            self.post(ev.CheckpointWritten(checkpoint.end_offset, checkpoint.log_start))
            self._notify()

        self._shared.journal.append(checkpoint).add_done_callback(covered)

    # ------------------------------------------------------------------------------------------------- the segments

    def _do_create_spare(self, effect: ev.CreateSpare) -> None:
        async def work() -> None:
            try:
                appender = await self._segments.create(effect)
            except StorageError as error:
                self.post(ev.SpareFailed(repr(error)))
                return
            path = appender.lease.paths[0]
            lease = appender.lease
            self._files[path] = appender
            self._shared.busy.add(self)
            self.post(
                ev.SpareReady(
                    SegmentEntry(
                        name=SegmentName(-1, effect.epoch, -1), spare=path, holder=lease.holder, file_id=lease.file_id
                    )
                )
            )

        self.spawn(work())

    def _do_drop_spare(self, effect: ev.DropSpare) -> None:
        async def work() -> None:
            """Closed before it is deleted: a deleted file's writer would go on being acknowledged."""
            appender = self._files.pop(effect.entry.spare, None)
            try:
                if appender is not None:
                    async with asyncio.timeout(self._shared.config.close_timeout_ms / 1000):
                        await appender.close()
                await self._shared.fs.delete(effect.entry.spare)
            except (StorageError, TimeoutError):
                if appender is not None:
                    appender.abort()  # the sweeper takes it later

        self.spawn(work())

    def _do_name_segment(self, effect: ev.NameSegment) -> None:
        async def work() -> None:
            entry = effect.entry
            try:
                try:
                    await self._segments.rename(entry, self.path.log(entry.name))
                except StorageError:
                    if await self._is_ours():  # a successor's sweeper may have taken the spare
                        raise
                    return
            except (StorageError, KvError) as error:
                self.post(ev.NamingFailed(entry.name, repr(error)))
                return
            self.post(ev.SegmentNamed(entry.name))

        self.spawn(work())

    def _do_close_segment(self, effect: ev.CloseSegment) -> None:
        async def work() -> None:
            entry, checkpoint = effect.entry, effect.checkpoint
            appender = self._files.pop(entry.spare, None)
            try:
                if appender is None:
                    raise LeaseLost("its pipeline was given up")
                async with asyncio.timeout(self._shared.config.close_timeout_ms / 1000):
                    await self._close_and_index(entry.name, appender, checkpoint)
            except (StorageError, TimeoutError):
                if appender is not None:
                    appender.abort()
                await self._seal(entry, checkpoint)
                return
            self._closed(entry, checkpoint)

        self.spawn(work())

    async def _close_and_index(self, name: SegmentName, appender: Appender, checkpoint: Checkpoint | None) -> None:
        """The index is written while the file is being closed, since a hand-over waits for both; it has its name only
        once the file is closed."""
        if checkpoint is None:
            await appender.close()
            return
        outcomes = await asyncio.gather(
            appender.close(), self._segments.draft_idx(name, checkpoint), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        await self._segments.publish_idx(name)

    def _do_seal_segment(self, effect: ev.SealSegment) -> None:
        self._abort_file(effect.entry)
        self.spawn(self._seal(effect.entry, effect.checkpoint))

    async def _seal(self, entry: SegmentEntry, checkpoint: Checkpoint | None) -> None:
        """Take our own file over, as a successor would, once the ownership is proven; until it succeeds."""
        config, attempt, is_missing = self._shared.config, 0, False
        while True:
            try:
                if not await self._is_ours():
                    return
                length = await self._shared.fs.fence(self._segments.lease(entry))
                if checkpoint is not None:
                    if length < checkpoint.position:
                        lost = checkpoint.position - length
                        self._shared.report(f"{self.path.log(entry.name)}: storage lost {lost} flushed bytes")
                    await self._segments.write_idx(entry.name, checkpoint)
            except NoSuchFile:
                if not is_missing:  # a successor may have joined it to its neighbour since we looked whose it is
                    is_missing = True
                    continue
                if checkpoint is not None:
                    self._shared.report(f"{self.path.log(entry.name)}: vanished with flushed data in it")
            except (StorageError, KvError):
                attempt += 1
                await asyncio.sleep(min(config.retry_ms << min(attempt, 16), config.retry_max_ms) / 1000)
                continue
            self._closed(entry, checkpoint)
            return

    def _closed(self, entry: SegmentEntry, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self.post(ev.SegmentClosed(entry.closed(0, entry.name.base)))
        else:
            self.post(ev.SegmentClosed(entry.closed(checkpoint.position, checkpoint.end_offset)))


PERFORM: dict[type, Callable[[PartitionWriter, Any], None]] = {
    ev.Wake: PartitionWriter._do_wake,
    ev.Acknowledge: PartitionWriter._do_acknowledge,
    ev.Reject: PartitionWriter._do_reject,
    ev.ReadRecord: PartitionWriter._do_read_record,
    ev.StoreRecord: PartitionWriter._do_store_record,
    ev.FenceSegments: PartitionWriter._do_fence,
    ev.RecoverLog: PartitionWriter._do_recover,
    ev.WriteIndexes: PartitionWriter._do_write_indexes,
    ev.WriteCheckpoint: PartitionWriter._do_write_checkpoint,
    ev.CreateSpare: PartitionWriter._do_create_spare,
    ev.NameSegment: PartitionWriter._do_name_segment,
    ev.DropSpare: PartitionWriter._do_drop_spare,
    ev.Suspect: PartitionWriter._do_suspect,
    ev.CloseSegment: PartitionWriter._do_close_segment,
    ev.SealSegment: PartitionWriter._do_seal_segment,
    ev.RunAgain: PartitionWriter._do_run_again,
    ev.Abort: PartitionWriter._do_abort,
    ev.Alarm: PartitionWriter._do_alarm,
    ev.StateChanged: PartitionWriter._do_state_changed,
}
