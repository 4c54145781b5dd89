"""The I/O of one partition: the loop of its events, its flushes, its open files and its tasks.

The functions that perform effects (``broker.partition.effects``) take a ``PartitionIo``, and
``broker.partition.driver.PartitionDriver`` adds their table to it. So imports go one way: driver, table, effects, I/O.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bmq.broker import events as ev
from bmq.broker.config import LogConfig
from bmq.broker.context import BrokerContext
from bmq.broker.events import Effect, Event
from bmq.broker.files.closing import Closing
from bmq.broker.files.open_segments import OpenFiles
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.copy_counter import CopyCounter
from bmq.broker.partition.flushes import InFlightFlushes
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.partition.recovery import Takeover
from bmq.broker.partition.states import TERMINAL
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.timers import NextDeadline
from bmq.core.aio.waiters import Waiters
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Appended
from bmq.meta import ownership
from bmq.meta.ownership import SegmentEntry
from bmq.storage.filesystem import LeaseLost, PipelineFailed, StorageError
from bmq.storage.layout import PartitionPath

TIMER_MS_MAX = 60_000
"""Longest time of a timer. A later deadline is checked again when this time is over, so an outdated deadline is dropped
soon.
"""
E = TypeVar("E", bound=Effect)


class PartitionIo(ABC):
    """The I/O of one partition.

    Every task that it starts is in ``tasks`` and ends with the partition; an idle partition has none.
    """

    def __init__(self, context: BrokerContext, path: PartitionPath, key: PartitionKey, config: LogConfig) -> None:
        self.context = context
        self.path = path
        self.machine = PartitionMachine(key, context.incarnation, config, context.config)
        self.doubts_before = context.standstill.doubts
        """Number of doubts of this process before the takeover: its claim answers them."""
        self.segments = SegmentFiles(
            context, path, is_synced=config.flush_sync, replication=config.replication, access=config.access
        )
        self.takeover: Takeover | None = None
        """None before ``start``, and once the partition accepts batches: a release note may have 128 KB."""
        self.record_key = ownership.partition_key(context.cluster, key)
        self.files = OpenFiles(context, self.segments)
        self.closing = Closing(context, self.segments, self.files, self.is_ours)
        self.flushes = InFlightFlushes(context, self, self.post)
        self.copy_counter: CopyCounter | None = None
        self.tasks = OwnedTasks(self._on_bug)
        self._waiters = Waiters()
        self._next_deadline = NextDeadline(context.timers, self._on_deadline)
        self.durable_start = 0
        """The highest log start that a durable checkpoint holds."""
        self._is_abandoned = False
        self.queued_ms = -1
        """Monotonic time since when batches wait for a flush; -1: none waits."""
        self.is_announced = False
        """True once the flush listener was notified that the partition is open, until it is closed."""
        self.on_end: Callable[[], None] = no_op
        """Called once, in a terminal state."""
        self.on_left: Callable[[], None] = no_op
        """Called when the partition leaves WRITE: what is not accepted yet must be refused."""
        self.is_queued = False
        self.in_flight = 0
        self.swaps_stored = 0
        """Records stored with another swap than before: what was counted of closed segments may be hidden."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} {self.machine!r}>"

    async def wait(self, is_met: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked when the state, the watermark or a checkpoint has moved."""
        while not is_met():
            await self._waiters.wait()

    def appended(self, base_offset: int, timestamp: int) -> Appended:
        """Return the result of an append: ``timestamp`` is the batch's largest."""
        machine = self.machine
        return Appended(base_offset, timestamp if machine.config.rules.log_append_time else -1, machine.log_start)

    async def is_ours(self) -> bool:
        """Ask the metadata store who owns the partition; end it if that is not this broker, or cannot be determined.

        After False the partition is in a terminal state, so nothing waits for what the caller leaves undone. Raises
        KvError.
        """
        try:
            record, _ = await self.context.records.read(self.record_key)
        except FormatError as error:
            self.post(self.unreadable(error))
            return False
        if record.epoch == self.machine.epoch:
            return True
        self.post(ev.EpochChanged(record.epoch))
        return False

    def unreadable(self, error: FormatError) -> ev.RecordUnreadable:
        """Return the event of a record that cannot be decoded."""
        return ev.RecordUnreadable(f"key {self.record_key}: {error}")

    async def is_in_place(self, entry: SegmentEntry) -> bool:
        """Return whether the segment's own file has its final name. Raises StorageError."""
        return await self.segments.is_in_place(entry)

    async def abandon(self) -> None:
        """End everything at once without a call to storage or store: the process ends, or the partition is lost."""
        self._is_abandoned = True
        self.abort_files()
        self.context.store_waits.forget([self])
        await self.tasks.close()

    # ------------------------------------------------------------------------------------------------------ the loop

    def post(self, event: Event) -> None:
        """Pass an event to the machine and perform the effects; do nothing once abandoned."""
        if self._is_abandoned:
            return
        now_ms = self.context.now_ms()
        self.apply(self.machine.handle(event, now_ms))
        self._follow_deadline(now_ms)

    def _follow_deadline(self, now_ms: int) -> None:
        deadline = self.machine.deadline_ms()
        if deadline is None:
            return
        # Bounded, so that the timer of a deadline that does not exist any more does not stay for a week (segment.ms).
        self._next_deadline.by(min(deadline, now_ms + TIMER_MS_MAX))

    def _on_deadline(self) -> None:
        if self._is_abandoned:
            return
        deadline, now_ms = self.machine.deadline_ms(), self.context.now_ms()
        if deadline is not None and deadline <= now_ms:
            self.post(ev.Tick(self.context.clock.now_ms()))
        else:  # as after most flushes: the deadline was the flush's, which has ended since
            self._follow_deadline(now_ms)

    @abstractmethod
    def apply(self, effects: list[Effect]) -> None:
        """Perform the effects, in order."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the partition; report its exception as a bug."""
        return self.tasks.start(work, f"{self.path}")

    def spawn_unless_ended(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
        """Start a task as ``spawn`` does, for a timer; return None if the partition has ended meanwhile."""
        return None if self._is_abandoned or self.machine.state in TERMINAL else self.spawn(work())

    def _on_bug(self, error: BaseException) -> None:
        self.context.report("bug: a task of a partition failed", **self.path.log_fields, error=repr(error))

    def run(self, work: Callable[[PartitionIo, E], Coroutine[Any, Any, Event | None]], effect: E) -> None:
        """Start a task that ends with the partition, and posts the event that ``work`` returns."""

        async def report() -> None:
            event = await work(self, effect)
            if event is not None:
                self.post(event)

        self.spawn(report())

    def notify(self) -> None:
        """Let those who ``wait`` check their conditions again."""
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
        if segment is not None and self.context.health.has_silent(self.files[segment.entry.spare].nodes):
            self.post(ev.SegmentFailed(segment.entry.name, "a node of its pipeline does not respond"))
            return False
        now_ms = self.context.now_ms()
        taken, effects = self.machine.take(self.context.config.flush_bytes, now_ms)
        if taken:
            assert segment is not None
            appender, is_synced = self.files[segment.entry.spare], self.machine.config.flush_sync
            if self.queued_ms >= 0:
                self.context.queue_ms.observe(now_ms - self.queued_ms)
                self.queued_ms = -1
            self.flushes.send(segment.entry.name, appender, taken, now_ms, sync=is_synced)
            self._next_deadline.by(now_ms + self.context.config.silent_flush_ms)  # a flush that hangs causes no event
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
            self.context.health.failed(failure.suspects, self.context.now_ms())
        return failure

    @property
    def has_files(self) -> bool:
        """True while the partition has an open file."""
        return bool(self.files)
