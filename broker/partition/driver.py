"""The driver of one partition: performs the machine's effects, and posts their results as events.

It decides nothing. Every task that it starts is in ``tasks`` and ends with the partition; an idle partition has none.
A produce goes this way: ``append`` (check, number, queue) -> a turn of the scheduler -> ``send`` (one write and one
flush for all that is queued) -> one ``Flushed`` event -> the callbacks of its batches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bmq.broker import events as ev
from bmq.broker.config import LogConfig
from bmq.broker.context import BrokerContext
from bmq.broker.events import Effect, Event
from bmq.broker.files.closing import Closing
from bmq.broker.files.deferred_indexes import BEHIND_MS
from bmq.broker.files.open_segments import OpenFiles
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition import record_effects
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.copy_counter import CopyCounter
from bmq.broker.partition.effects import PERFORM
from bmq.broker.partition.flushes import InFlightFlushes
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.recovery import Takeover
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.pending import Pending
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.waiters import Waiters
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Appended, Batch, parse_batch
from bmq.endpoint.partitions import AppendCallback
from bmq.meta import ownership
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.filesystem import LeaseLost, PipelineFailed, StorageError
from bmq.storage.layout import PartitionPath

TIMER_MS_MAX = 60_000
"""Longest time to a timer: a deadline that is farther away is checked again then, so that an outdated one is dropped
soon.
"""
E = TypeVar("E", bound=Effect)


class _OffsetFuture:
    """A future of one batch's base offset; an `AppendCallback`."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def on_appended(self, appended: Appended) -> None:
        if not self.future.done():
            self.future.set_result(appended.base_offset)

    def on_failed(self, error: RequestError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        raise AssertionError("an owner gives nothing back that it has accepted")


class PartitionDriver:
    """One partition of this broker: ``start``, ``wait_open``, then ``append``; in the end ``move`` or ``abandon``."""

    def __init__(self, shared: BrokerContext, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        self.shared = shared
        self.path = path
        self.machine = PartitionMachine(key, shared.incarnation, config, shared.config)
        self.doubts_before = shared.standstill.doubts
        """Number of doubts of this process before the takeover: its claim answers them."""
        self.segments = SegmentFiles(
            shared, path, is_synced=config.flush_sync, replication=config.replication, access=config.access
        )
        self.takeover: Takeover | None = None
        """None before `start`, and once the partition accepts batches: a release note may have 128 KB."""
        self.record_key = ownership.partition_key(shared.cluster, key)
        self.files = OpenFiles(shared, self.segments)
        self.closing = Closing(shared, self.segments, self.files, self.is_ours)
        self.flushes = InFlightFlushes(shared, self, self.post)
        self.copy_counter: CopyCounter | None = None
        self.tasks = OwnedTasks(self._on_bug)
        self._waiters = Waiters()
        self._timer_ms = -1
        self.durable_start = 0
        """The highest log start that a durable checkpoint holds."""
        self._is_abandoned = False
        self.queued_ms = -1
        """Monotonic time since when batches wait for a flush; -1: none waits."""
        self.is_announced = False
        """True once the flush listener was notified that the partition is open, until it is closed."""
        self.on_end: Callable[[], None] = no_op
        """Called once, in a terminal state."""
        self.is_queued = False
        self.in_flight = 0

    def __repr__(self) -> str:
        return f"<PartitionDriver {self.path} {self.machine!r}>"

    # ------------------------------------------------------------------------------------------------ its owner's calls

    def start(self, found: tuple[PartitionRecord, int] | None = None, handed: ReleaseNote | None = None) -> None:
        """Begin the takeover.

        ``found``: the partition's record and revision, if known; they may be outdated, since the claim compares the
        revision. ``handed``: the previous owner's release note.
        """
        interval_bytes = self.machine.config.index_interval_bytes
        self.takeover = Takeover(self.shared, self.segments, self.machine.key, interval_bytes, found, handed)
        self.post(ev.Start())

    @property
    def takeover_trouble(self) -> str:
        """The reason why storage did not complete the last attempt of the takeover; "" if none failed, and in WRITE."""
        return self.takeover.trouble if self.takeover is not None else ""

    async def wait_open(self) -> None:
        """Wait until batches are accepted. Raises RequestError if the partition ends instead."""
        await self.wait(lambda: self.machine.state is PartitionState.WRITE or self.machine.state in TERMINAL)
        if self.machine.state is not PartitionState.WRITE:
            raise self.machine.refusal()

    async def wait(self, is_met: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked when the state, the watermark or a checkpoint has moved."""
        while not is_met():
            await self._waiters.wait()

    def append(self, data: memoryview, *, is_internal: bool = False) -> asyncio.Future[int]:
        """Check, number and queue one batch; return a future of its base offset, done once it is flushed.

        Raises RequestError if the batch is refused. The batch's bytes stay with the partition until the future is done:
        they are numbered in place if they are writable, else in a copy. ``is_internal``: skip the check.
        """
        batch = parse_batch(data)
        if not is_internal:
            self.check(batch)
        accepted = self.accept(batch)
        offset = _OffsetFuture()
        self.when_flushed(accepted, offset)
        return offset.future

    def check(self, batch: Batch) -> None:
        """Check the header of a client's batch. Raises RequestError if it is refused."""
        self.machine.check(batch)

    def accept(self, batch: Batch, *, acks_all: bool = True) -> Pending | Duplicate:
        """Give one batch that was checked its offsets, and queue it. Raises RequestError if it is refused."""
        shared, partition = self.shared, self.machine
        try:
            accepted = partition.accept(batch, shared.clock.now_ms(), partition.config.min_insync if acks_all else 1)
        except RequestError as error:
            if error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
                self.post(ev.CopiesWanted())
            raise
        if isinstance(accepted, Pending):
            shared.budget.take(batch.size)
            if not self.is_queued or self.machine.current is None:  # else its turn comes anyway
                self.apply(self.machine.after_append(shared.now_ms()))
        return accepted

    def when_flushed(self, accepted: Pending | Duplicate, callback: AppendCallback) -> None:
        """Call ``callback`` once the batch is flushed, or dropped.

        A repeated batch gets its original's offset, after the original's flush (rule 9): now, if that was before.
        """
        if isinstance(accepted, Duplicate):
            if accepted.pending is None:
                callback.on_appended(self.appended(accepted.base_offset, accepted.timestamp))
                return
            accepted = accepted.pending
        if accepted.token is None:
            accepted.token = [callback]
        else:
            assert isinstance(accepted.token, list)
            accepted.token.append(callback)

    def appended(self, base_offset: int, timestamp: int) -> Appended:
        """Return the result of an append: ``timestamp`` is the batch's largest."""
        partition = self.machine
        return Appended(base_offset, timestamp if partition.config.rules.log_append_time else -1, partition.log_start)

    @property
    def has_room(self) -> bool:
        """True while the partition's buffer is below its bound and its share of the process's.

        A partition that cannot flush keeps its share and gets no more: it must not stop the others.
        """
        shared, buffered = self.shared, self.machine.batches.buffered_bytes
        if not buffered:
            return shared.budget.has_room
        return buffered < min(shared.config.buffer_bytes, shared.budget.share)

    async def room(self) -> None:
        """Wait until there is room, or the partition has left WRITE.

        Its own flushes make room; if it has nothing to flush, the other partitions' do.
        """
        partition = self.machine
        while not self.has_room and partition.state is PartitionState.WRITE:
            await self.wait(
                lambda: (
                    self.has_room or not partition.batches.buffered_bytes or partition.state is not PartitionState.WRITE
                )
            )
            await self.shared.budget.room()

    async def delete_before(self, offset: int) -> None:
        """Raise the log start; wait until that is durable and the ownership was proven after it (rule 10).

        Raises RequestError: OFFSET_OUT_OF_RANGE past the high watermark, as Kafka's DeleteRecords, or another code if
        the partition is not open here any more. Raises KvError if the metadata store does not respond.
        """
        partition = self.machine
        if partition.state is PartitionState.WRITE and offset > partition.high_watermark:
            raise RequestError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is past the high watermark {partition.high_watermark}"
            )
        before = partition.log_start
        self.post(ev.LogStartRaised(offset))
        if partition.log_start != before and self.shared.flush_listener is not None:
            self.shared.flush_listener.log_start_moved(partition.key, partition.log_start)
        await self.wait(lambda: self.durable_start >= offset or partition.state is not PartitionState.WRITE)
        await self.prove()

    async def prove(self) -> None:
        """Prove by a read of the metadata store that this broker owned the partition at some moment since the call.

        Raises KvError if the store does not respond, RequestError if this broker is not the owner any more.
        """
        await self.is_ours()
        if self.machine.state is not PartitionState.WRITE:
            raise self.machine.refusal()

    async def is_ours(self) -> bool:
        """Ask the metadata store who owns the partition; end it if that is not this broker, or cannot be determined.

        After False the partition is in a terminal state, so nothing waits for what the caller leaves undone. Raises
        KvError.
        """
        ended = await record_effects.check_owner(self)
        if ended is not None:
            self.post(ended)
        return ended is None

    async def is_in_place(self, entry: SegmentEntry) -> bool:
        """Return whether the segment's own file has its final name. Raises StorageError."""
        return await self.segments.is_in_place(entry)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings from now on.

        The open segment follows them at its next flush and roll, but keeps its block size and its index interval.
        Accepted batches are not checked again, and never need more copies than before.
        """
        self.machine.reconfigure(config)
        self.segments.is_synced = config.flush_sync
        self.segments.access = config.access
        self.post(ev.Tick(self.shared.clock.now_ms()))  # a deadline may be nearer now

    async def move(self, *, has_successor: bool = False) -> ReleaseNote:
        """Hand the partition over: flush, close, checkpoint, release. Returns the release note, in a terminal state.

        A successor waits for ``handover_wait_ms``, then takes the partition. After that time the metadata store is
        asked again and again whether it has: storage may never let this hand-over end, and clients send their requests
        to this broker until it responds.
        """
        self.closing.has_successor = has_successor
        self.closing.hurry()
        if self.machine.state not in TERMINAL:
            self.post(ev.MoveRequested())
        config = self.shared.config
        while not await self._has_ended(max(config.handover_wait_ms, config.retry_ms.most) / 1000):
            with contextlib.suppress(KvError):  # without the store no broker can take the partition: ask again later
                await self.is_ours()
        await self.abandon()
        return self._release_note()

    def _release_note(self) -> ReleaseNote:
        """Return the release note: the record, and its last segment's index. Indexes left over are written later."""
        left, record = self.closing.left, self.machine.record
        if not self.machine.is_released:
            return NOTHING  # the new owner took it and indexed what it found; or this broker never claimed it
        for name, (length, index) in left.items():
            self.shared.deferred_indexes.add(self.segments, name, length, index, after_ms=BEHIND_MS)
        _, index = left.get(record.segments[-1].name, (0, b"")) if record.segments else (0, b"")
        return ReleaseNote(record, self.machine.revision, index)

    async def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.wait(lambda: self.machine.state in TERMINAL)
        return self.machine.state in TERMINAL

    async def abandon(self) -> None:
        """End everything at once without a call to storage or store: the process ends, or the partition is lost."""
        self._is_abandoned = True
        self.abort_files()
        self.shared.store_waits.forget([self])
        await self.tasks.close()

    # ------------------------------------------------------------------------------------------------------ the loop

    def post(self, event: Event) -> None:
        """Pass an event to the machine and perform the effects; do nothing once abandoned."""
        if self._is_abandoned:
            return
        now_ms = self.shared.now_ms()
        self.apply(self.machine.handle(event, now_ms))
        deadline = self.machine.deadline_ms()
        if deadline is None:
            return
        # Bounded, so that the timer of a deadline that does not exist any more does not stay for a week (segment.ms).
        self._set_timer(min(deadline, now_ms + TIMER_MS_MAX))

    def _set_timer(self, deadline_ms: int) -> None:
        if self._timer_ms < 0 or deadline_ms < self._timer_ms:
            self._timer_ms = deadline_ms
            self.shared.timers.at(deadline_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ms = -1
        self.post(ev.Tick(self.shared.clock.now_ms()))

    def apply(self, effects: list[Effect]) -> None:
        """Perform the effects, in order."""
        for effect in effects:
            PERFORM[type(effect)](self, effect)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the partition; report its exception as a bug."""
        return self.tasks.start(work, f"{self.path}")

    def _on_bug(self, error: BaseException) -> None:
        self.shared.report("bug: a task of a partition failed", **self.path.log_fields, error=repr(error))

    def run(self, work: Callable[[PartitionDriver, E], Coroutine[Any, Any, Event | None]], effect: E) -> None:
        """Start a task that ends with the partition, and posts the event that ``work`` returns."""

        async def report() -> None:
            event = await work(self, effect)
            if event is not None:
                self.post(event)

        self.spawn(report())

    def notify(self) -> None:
        """Let those who `wait` check their conditions again."""
        self._waiters.wake_all()

    # ------------------------------------------------------------------------------------------------------- sending

    @property
    def has_unsent(self) -> bool:
        """True while batches wait for the open segment."""
        is_open = self.machine.current is not None and not self._is_abandoned
        return is_open and bool(self.machine.batches.unsent)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of accepted batches that are not flushed."""
        return self.machine.batches.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes of accepted batches that are not in flight."""
        return self.machine.batches.buffered_bytes - self.flushes.bytes

    def send(self) -> bool:
        """Send one flush of the queued batches, in a turn of the scheduler; return whether one was sent."""
        if self._is_abandoned:
            return False  # it was queued for a turn before it was abandoned
        segment = self.machine.current
        if segment is not None and self.shared.health.has_silent(self.files[segment.entry.spare].nodes):
            self.post(ev.SegmentFailed(segment.entry.name, "a node of its pipeline does not respond"))
            return False
        now_ms = self.shared.now_ms()
        taken, effects = self.machine.take(self.shared.config.flush_bytes, now_ms)
        if taken:
            assert segment is not None
            appender, is_synced = self.files[segment.entry.spare], self.machine.config.flush_sync
            if self.queued_ms >= 0:
                self.shared.queue_ms.observe(now_ms - self.queued_ms)
                self.queued_ms = -1
            self.flushes.send(segment.entry.name, appender, taken, now_ms, sync=is_synced)
            self._set_timer(now_ms + self.shared.config.silent_flush_ms)  # a flush that hangs causes no event
        self.apply(effects)
        return bool(taken)

    def abort_files(self) -> None:
        """Abort the open files without a call to storage; flushes in flight are given up."""
        self.flushes.give_up()
        self.files.abort_all()

    # --------------------------------------------------------------------------------------------------------- files

    @property
    def nodes(self) -> Sequence[str]:
        """The datanodes of the open segment's pipeline; none if no segment is open, or for a local folder."""
        segment = self.machine.current
        if segment is None or not self.files.has(segment.entry.spare):
            return ()
        return self.files[segment.entry.spare].nodes

    def leave_broken_files(self) -> StorageError | None:
        """Give up the open segment, or the spare, if its pipeline broke while no flush was in flight; return the error.

        Returns None if no pipeline broke. A flush in flight reports a broken pipeline itself.
        """
        broken: StorageError | None = None
        segment = self.machine.current
        if segment is not None and not self.machine.batches.inflight:
            failure = self._failure_of(segment.entry)
            if failure is not None:
                broken = failure
                self.post(ev.SegmentFailed(segment.entry.name, repr(failure), isinstance(failure, LeaseLost)))
        spare = self.machine.spare
        if spare is not None:
            failure = self._failure_of(spare)
            if failure is not None:
                broken = failure
                self.post(ev.SpareFailed(repr(failure)))
        return broken

    def _failure_of(self, entry: SegmentEntry) -> StorageError | None:
        """Return the error that ended an open file's pipeline; None if the pipeline is sound.

        New files avoid the nodes that caused the error.
        """
        if not self.files.has(entry.spare):
            return None  # fenced or abandoned
        failure = self.files[entry.spare].failure
        if isinstance(failure, PipelineFailed):
            self.shared.health.failed(failure.suspects, self.shared.now_ms())
        return failure

    @property
    def has_files(self) -> bool:
        """True while the partition has an open file."""
        return bool(self.files)
