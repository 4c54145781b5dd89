"""The driver of one partition: performs the machine's effects, and posts their results as events.

It decides nothing. Its I/O, which the functions of the effects act on, is in ``broker.partition.partition_io``. A
produce goes this way: ``append`` (check, number, queue) -> a turn of the scheduler -> ``send`` (the whole queue by one
write and one flush) -> a ``Flushed`` event -> the callbacks of its batches.
"""

from __future__ import annotations

import asyncio
import contextlib

from bmq.broker import events as ev
from bmq.broker.config import LogConfig
from bmq.broker.events import Effect
from bmq.broker.files.deferred_indexes import BEHIND_MS
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.effects import PERFORM
from bmq.broker.partition.partition_io import PartitionIo
from bmq.broker.partition.recovery import Takeover
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Appended, Batch, parse_batch
from bmq.core.records.control import TransactionMarker
from bmq.endpoint.partitions import AppendCallback
from bmq.meta.kv import KvError
from bmq.meta.ownership import PartitionRecord, Swap


class _OffsetFuture:
    """A future of one batch's base offset; an ``AppendCallback``."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.future.done()

    @property
    def transaction(self) -> None:
        """The batch is this broker's own."""
        return None

    def on_appended(self, appended: Appended) -> None:
        if not self.future.done():
            self.future.set_result(appended.base_offset)

    def on_failed(self, error: RequestError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_given_back(self, data: memoryview, *, may_be_appended: bool) -> None:
        raise AssertionError("an owner gives nothing back that it has accepted")


class PartitionDriver(PartitionIo):
    """One partition of this broker: ``start``, ``wait_open``, then ``append``; in the end ``move`` or ``abandon``."""

    def apply(self, effects: list[Effect]) -> None:
        """Perform the effects, in order, as their table says."""
        for effect in effects:
            PERFORM[type(effect)](self, effect)

    # ------------------------------------------------------------------------------------------------ its owner's calls

    def start(self, found: tuple[PartitionRecord, int] | None = None, release_note: ReleaseNote | None = None) -> None:
        """Begin the takeover.

        ``found``: the partition's record and revision, if known; they may be outdated, since the claim compares the
        revision. ``release_note``: the previous owner's release note.
        """
        interval_bytes = self.machine.config.index_interval_bytes
        self.takeover = Takeover(self.context, self.segments, self.machine.key, interval_bytes, found, release_note)
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
        context, machine = self.context, self.machine
        try:
            return self._accepted(machine.accept(batch, context.clock.now_ms(), None if acks_all else 1))
        except RequestError as error:
            self._refused(error)
            raise

    def end_transaction(self, marker: TransactionMarker) -> asyncio.Future[int]:
        """Append a coordinator's marker; return a future that is done once the marker is flushed.

        A marker with nothing to do is done at once, or with the flush of the producer's last marker. Raises
        RequestError if it is refused.
        """
        flushed = _OffsetFuture()
        try:
            accepted = self._accepted(self.machine.end_transaction(marker, self.context.clock.now_ms()))
        except RequestError as error:
            self._refused(error)
            raise
        self.when_flushed(accepted, flushed)
        return flushed.future

    def _accepted(self, accepted: Pending | Duplicate) -> Pending | Duplicate:
        """Have a queued batch sent, unless it repeats an earlier batch; return ``accepted``."""
        if isinstance(accepted, Pending):
            self.context.budget.take(accepted.batch.size)
            if not self.is_queued or self.machine.current is None:  # else its turn comes anyway
                self.apply(self.machine.after_append(self.context.now_ms()))
        return accepted

    def _refused(self, error: RequestError) -> None:
        if error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self.post(ev.CopiesWanted())

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

    @property
    def has_room(self) -> bool:
        """True while the partition's buffer is below its bound and its share of the process's.

        A partition that cannot flush keeps its share and gets no more: it must not stop the others.
        """
        context, buffered = self.context, self.machine.batches.buffered_bytes
        if not buffered:
            return context.budget.has_room
        return buffered < min(context.config.buffer_bytes, context.budget.share)

    async def room(self) -> None:
        """Wait until there is room, or the partition has left WRITE.

        Its own flushes make room; if it has nothing to flush, the other partitions' do.
        """
        machine = self.machine
        while not self.has_room and machine.state is PartitionState.WRITE:
            await self.wait(
                lambda: self.has_room or not machine.batches.buffered_bytes or machine.state is not PartitionState.WRITE
            )
            await self.context.budget.room()

    async def delete_before(self, offset: int) -> None:
        """Raise the log start; wait until that is durable and the ownership was proven after it (rule 10).

        Raises RequestError: OFFSET_OUT_OF_RANGE past the high watermark, as Kafka's DeleteRecords, or another code if
        the partition is not open here any more. Raises KvError if the metadata store does not respond.
        """
        machine = self.machine
        if machine.state is PartitionState.WRITE and offset > machine.high_watermark:
            raise RequestError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is past the high watermark {machine.high_watermark}"
            )
        before = machine.log_start
        self.post(ev.LogStartRaised(offset))
        if machine.log_start != before:
            self.context.wiring.flush_listener.log_start_moved(machine.key, machine.log_start)
        await self.wait(lambda: self.durable_start >= offset or machine.state is not PartitionState.WRITE)
        await self.prove()

    async def store_swap(self, swap: Swap | None) -> None:
        """Store the record with this swap, or without one; wait until it is stored.

        Raises RequestError if the partition leaves WRITE before. The next record may have the swap all the same.
        """
        machine = self.machine
        self.post(ev.SwapWanted(swap))
        await self.wait(lambda: machine.record.swap == swap or machine.state is not PartitionState.WRITE)
        if machine.state is not PartitionState.WRITE:
            raise machine.refusal()

    def drop_old_names(self) -> None:
        """Have the record stored without the names of closed segments before the newest."""
        self.post(ev.OldNamesUnneeded())

    def roll_empty(self) -> None:
        """Have a segment registered at the end of the quiet log, and closed empty, if the newest one has bytes."""
        self.post(ev.EmptyWanted())

    async def prove(self) -> None:
        """Prove by a read of the metadata store that this broker owned the partition at some moment since the call.

        Raises KvError if the store does not respond, RequestError if this broker is not the owner any more.
        """
        await self.is_ours()
        if self.machine.state is not PartitionState.WRITE:
            raise self.machine.refusal()

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings from now on.

        The open segment follows them at its next flush and roll, but keeps its block size and its index interval.
        Accepted batches are not checked again, and never need more copies than before.
        """
        self.machine.reconfigure(config)
        self.segments.is_synced = config.flush_sync
        self.segments.access = config.access
        self.post(ev.Tick(self.context.clock.now_ms()))  # a deadline may be nearer now

    async def move(self, *, has_successor: bool = False) -> ReleaseNote:
        """Hand the partition over: flush, close, checkpoint, release. Returns the release note, in a terminal state.

        A successor waits for ``handover_wait_ms``, then takes the partition. After that time this broker asks the
        metadata store again and again whether the successor has taken it. Storage may never let this hand-over end, and
        clients send their requests to this broker until it responds.
        """
        self.closing.has_successor = has_successor
        self.closing.hurry()
        if self.machine.state not in TERMINAL:
            self.post(ev.MoveRequested())
        config = self.context.config
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
            self.context.deferred_indexes.add(self.segments, name, length, index, after_ms=BEHIND_MS)
        _, index = left.get(record.segments[-1].name, (0, b"")) if record.segments else (0, b"")
        return ReleaseNote(record, self.machine.revision, index)

    async def _has_ended(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self.wait(lambda: self.machine.state in TERMINAL)
        return self.machine.state in TERMINAL
