"""The partition: one owner's view of its log, without I/O.

``START -> FENCE -> RECOVER -> WRITE -> (MOVE | FENCED | CLOSED | OFFLINE)``. Events in, effects out, time as an
argument. ``broker.partition.transitions`` has the table, a function for each (state, event) pair; the functions are in
``takeover_transitions``, ``segment_transitions`` and ``release_transitions``. This module has the data, the produce
path and the steps that several functions share. The driver (``broker.partition.driver``) performs the effects and posts
their results as events. Three promises are kept in these modules and nowhere else (docs/design/rules.md):

* Nothing is accepted before the predecessor is fenced, its tail is read and a checkpoint of it is durable (rule 4).
* A batch is acknowledged when the current segment's pipeline has acknowledged its bytes, in order; an ack of any other
  segment is late and means nothing (rule 6).
* The next segment is registered when everything before its base is flushed, and written when it has its final name
  (rules 3 and 5).

Offsets: ``log_start <= high_watermark <= next_offset``. The batches between the last two are in ``batches``. The open
segment is ``current``; the next one is prepared in ``broker.partition.segment_roll``, earlier ones are closed in
``broker.partition.unclosed_segments``.

Times are in milliseconds: ``wall_ms`` is wall-clock time, which records are stamped with; ``now_ms`` is monotonic.
"""

from __future__ import annotations

from dataclasses import replace

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect, Event
from bmq.broker.partition.batches import Batches, Duplicate
from bmq.broker.partition.checkpointer import Checkpointer, OpenSegment
from bmq.broker.partition.found_copies import FoundCopies
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.segment_roll import SegmentRoll, Spare, block_for, whole_mb
from bmq.broker.partition.shortage import Shortage
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.partition.transitions import TABLE
from bmq.broker.partition.unclosed_segments import UnclosedSegments
from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import NO_PRODUCER_ID, Batch, check_batch
from bmq.core.transitions import Cell
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint, ProducerBatch


class PartitionMachine:
    """The state machine of one ownership; see the module's docstring. Single-threaded, never awaits.

    Only the functions of its table write its attributes; others read them.
    """

    def __init__(self, key: PartitionKey, incarnation: str, config: LogConfig, broker: BrokerConfig) -> None:
        self.key = key
        self.incarnation = incarnation
        self.config = config
        self.broker = broker
        self.state = PartitionState.START
        self.epoch = 0
        self.revision = 0
        self.record = PartitionRecord()
        """The record as this process stored it last; empty before its claim is stored."""
        self.is_released = False
        """True once the stored record says that this process has released the partition."""
        self.predecessors: tuple[str, ...] = ()
        """Brokers whose journals may hold checkpoints of the log."""
        self.was_settled = False
        """True if the record that was read says that no journal need be read."""
        self.log_start = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.producers = ProducerTable()
        self.current: OpenSegment | None = None
        self.batches = Batches()
        self.offline_reason = ""
        self.storing: PartitionRecord | None = None
        """The record whose write has no result yet."""
        self.next_segment = SegmentRoll()
        self.unclosed = UnclosedSegments()
        self.checkpointer = Checkpointer(key, broker)
        self.is_draining = False
        """True while the open segment takes no more batches, and closes once those it has are flushed."""
        self.failures = 0
        self.is_folder_known = False
        """True once no file was found that the record should list."""
        self.unreadable_since_ms: int | None = None
        self.passes_damaged = False
        """True for the last attempt of a takeover, which skips damaged journals: they are hints."""
        self.last_slow_ms = -(1 << 62)
        self.probe_due_ms = -(1 << 62)
        self.shortage = Shortage(broker.short_hold_ms)
        self.found_copies = FoundCopies()
        self.final_checkpoint: Checkpoint | None = None
        """In a terminal state: the full checkpoint of the moment when it ended."""

    def __repr__(self) -> str:
        current = f"{self.current.entry.name}@{self.current.flushed}/{self.current.position}" if self.current else "-"
        return (
            f"<PartitionMachine {self.key} {self.state.name} epoch={self.epoch}"
            f" [{self.log_start}, {self.high_watermark}, {self.next_offset})"
            f" {current} {self.batches!r} {self.next_segment!r} {self.unclosed!r}>"
        )

    # ------------------------------------------------------------------------------------------ the produce path

    def check(self, batch: Batch) -> None:
        """Check that the partition accepts batches, and the header of a client's batch.

        Raises RequestError with Kafka's code if not.
        """
        if self.state is not PartitionState.WRITE:
            raise self.refusal()
        check_batch(batch, self.config.rules)
        if batch.is_transactional:  # Kafka's code for a client without that right; fatal in Java and librdkafka
            raise RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not available")

    def accept(self, batch: Batch, wall_ms: int, copies: int = 1) -> Pending | Duplicate:
        """Give a batch its offsets, and queue it.

        The batch was checked, or is this broker's own: then it may be a control batch, and of any size. Its bytes are
        writable, and stay with the partition. ``copies``: datanodes that hold the batch, at least, when it is
        acknowledged. Returns a `Duplicate` for a repeated batch. Raises RequestError with Kafka's code.
        """
        if self.state is not PartitionState.WRITE:
            raise self.refusal()
        if copies > 1 and self.shortage.is_refusing:
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, self.too_few)
        if batch.producer_id != NO_PRODUCER_ID:
            kept = self.producers.find_duplicate(batch)
            if kept is not None:
                pending = self._find(kept.base_offset)
                if copies > 1:
                    self._check_copies(kept, pending, copies)
                return Duplicate(kept.base_offset, pending, kept.timestamp)
            self.producers.check(batch)
        if self.config.rules.log_append_time:
            batch.set_append_time(wall_ms)
        batch.assign(self.next_offset, self.epoch)
        pending = Pending(batch, self.producers.append(batch, wall_ms), copies)
        self.next_offset = batch.next_offset
        self.batches.add(pending)
        return pending

    def _find(self, base_offset: int) -> Pending | None:
        return None if base_offset < self.high_watermark else self.batches.find(base_offset)

    def after_append(self, now_ms: int) -> list[Effect]:
        """Return the effects for queued batches: a turn of the open pipeline, or a segment.

        Once per loop turn is enough.
        """
        if self.current is not None and not self.is_draining:
            return [ev.WAKE]
        return self.advance()

    def take(self, bytes_max: int, now_ms: int) -> tuple[list[Pending], list[Effect]]:
        """Move queued batches onto the current segment, for one flush of at most ``bytes_max`` bytes, or of one batch.

        Returns the batches, none if no segment takes any now, and effects.
        """
        segment = self.current
        if segment is None or self.is_draining:
            return [], []
        taken, self.is_draining = self.batches.send(segment, bytes_max, self._roll_bytes(segment), now_ms)
        return taken, self.advance() if self.is_draining or self._is_next_wanted(segment) else []

    def refusal(self) -> RequestError:
        """Return the error for a request to a partition that is not in WRITE."""
        if self.state is PartitionState.OFFLINE:
            text = f"the partition is OFFLINE, see `bmq segment repair`: {self.offline_reason}"
            return RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the partition is not open here: {self.state.name}")

    def _roll_bytes(self, segment: OpenSegment) -> int:
        return min(self.config.segment_bytes, segment.block_bytes)

    # ------------------------------------------------------------------------------------------------- the table

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order."""
        cell = TABLE[self.state, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {self.state.name}"
            return []
        before = self.state
        effects = cell(self, event, now_ms)
        if self.state is not before:
            effects.append(ev.StateChanged(self.state.name))
        return effects

    # ----------------------------------------------------------------------------------------------- the record

    def store(self, record: PartitionRecord, revision: int) -> list[Effect]:
        """Return the effect that writes the record over the one of this revision."""
        self.storing, self.revision = record, revision
        return [ev.StoreRecord(record, revision)]

    def stored(self, event: ev.RecordStored) -> None:
        """Note that the write has succeeded."""
        assert event.record == self.storing
        self.storing = None
        self.record, self.revision = event.record, event.revision

    @property
    def is_unreadable(self) -> bool:
        """True if storage responds to the takeover, but does not return bytes that should exist."""
        return self.unreadable_since_ms is not None

    # --------------------------------------------------------------------------------- WRITE and MOVE: the segments

    def advance(self) -> list[Effect]:
        """Close a drained segment, open the next one if it is needed, prepare it if it will be needed soon."""
        effects: list[Effect] = []
        segment = self.current
        if segment is not None and self.is_draining and not self.batches.inflight:
            effects += self._close_current()
            segment = None
        if segment is None:
            effects += self._open_next()
        elif self.next_segment.spare is Spare.NONE and self._is_next_wanted(segment):
            effects.append(self.create_spare())
        if self.state is PartitionState.MOVE:
            effects += self._hand_over()
        return effects

    def _is_next_wanted(self, segment: OpenSegment) -> bool:
        """Return whether the next segment is needed now, or soon.

        Opening it may take longer than the room that is left in this segment lasts.
        """
        if self.is_draining:
            return bool(self.batches.unsent)
        return segment.position * 8 > self._roll_bytes(segment) * 7

    def _open_next(self) -> list[Effect]:
        following, unsent = self.next_segment, self.batches.unsent
        if following.is_chosen:
            return []
        if not unsent:
            return following.drop()  # not needed now: it would hold a pipeline, and room on storage
        if following.spare is Spare.NONE:
            return [self.create_spare()]
        if following.spare is Spare.CREATING:
            return []
        if following.block_bytes < unsent[0].batch.size or following.copies < unsent[0].copies:
            return [*following.drop(), self.create_spare()]
        return self._register()

    def create_spare(self, copies: int = 1) -> Effect:
        """Return the effect that creates a spare, fit for the first batch that waits: its size and its copies."""
        following, broker, unsent = self.next_segment, self.broker, self.batches.unsent
        if self.current is not None:
            following.learn(self.current)
        first_bytes = unsent[0].batch.size if unsent else 0
        usual = block_for(following.last_bytes, broker.first_block_bytes, broker.block_bytes, self.config.segment_bytes)
        copies = max(copies, unsent[0].copies) if unsent else copies
        least = max(broker.small_block_bytes, whole_mb(first_bytes))
        after = None if self.is_folder_known else self.record.last_registered
        return following.create(self.epoch, max(usual, whole_mb(first_bytes)), first_bytes, copies, least, after)

    def _register(self) -> list[Effect]:
        """Register the next segment: everything before its base is flushed (rules 3 and 5)."""
        assert not self.batches.inflight
        base = self.batches.unsent[0].batch.base_offset
        assert base == self.high_watermark
        return self.store(self._record(self.next_segment.register(base, self.epoch)), self.revision)

    def _record(self, *opened: SegmentEntry, owner: str | None = None) -> PartitionRecord:
        """Return the record to store: it lists the newest closed segment, all not yet closed, and those ``opened``."""
        return PartitionRecord(
            epoch=self.epoch,
            owner=self.incarnation if owner is None else owner,
            segments=self.unclosed.listed(*opened),
            journals=(self.incarnation,),
            last=max((self.record.last_registered, *(entry.name.order for entry in opened))),
        )

    @property
    def spare(self) -> SegmentEntry | None:
        """The open file that has no final name yet and no batches; None if there is none."""
        return self.next_segment.unused

    # ----------------------------------------------------------------------------------------- min.insync.replicas

    @property
    def is_short(self) -> bool:
        """True while storage, as far as is known, gives fewer datanodes than min.insync.replicas."""
        return self.shortage.is_noticed

    @property
    def too_few(self) -> str:
        """The message of an error that refuses a batch for want of datanodes."""
        return f"storage gives a new segment fewer datanodes than min.insync.replicas={self.config.min_insync} asks for"

    def _check_copies(self, kept: ProducerBatch, pending: Pending | None, copies: int) -> None:
        """Check that a repeated batch has ``copies`` copies, or will have when it is flushed.

        Raises RequestError NOT_ENOUGH_REPLICAS if not; a count of the copies is then wanted.
        """
        if pending is not None:
            if pending.copies >= copies:
                return
            why = f"it was accepted for {pending.copies}, and is not flushed yet"
        elif kept.base_offset + kept.last_delta < self.log_start or self.found_copies.has(kept.base_offset, copies):
            return
        else:
            why = self.found_copies.why(kept.base_offset)
        raise RequestError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the batch is at offset {kept.base_offset}; min.insync.replicas asks for {copies} copies: {why}",
        )

    @property
    def is_all_closed(self) -> bool:
        """True while no segment is written, and the last one is closed and indexed."""
        return self.current is None and not self.unclosed

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings.

        If min.insync.replicas falls, batches that wait for copies wait for fewer. If it rises, batches that were
        flushed before are counted before a repetition of them is acknowledged.
        """
        if config.min_insync > self.config.min_insync:
            self.found_copies.doubt(self.high_watermark)
        if config.min_insync < self.config.min_insync:
            self.shortage.end()
            for pending in self.batches.unsent:
                pending.copies = min(pending.copies, config.min_insync)
        self.config = config

    def _close_current(self) -> list[Effect]:
        segment, self.current = self.current, None
        assert segment is not None
        assert not self.batches.inflight
        self.is_draining = False
        index_may_wait = segment.is_covered or self.unclosed.is_empty
        return [ev.CloseSegment(segment.entry, self.leave(segment), index_may_wait)]

    def leave(self, segment: OpenSegment) -> Checkpoint | None:
        """Note that ``segment`` is not written any more; return its final checkpoint.

        Returns None if nothing in it was flushed.
        """
        self.unclosed.leave(segment.entry)
        self.next_segment.learn(segment)
        if segment.flushed == 0:
            return None
        return self.checkpointer.close(
            segment.entry.name,
            segment.flushed,
            self.high_watermark,
            self.log_start,
            segment.index,
            segment.epochs,
            self.producers,
        )

    # ------------------------------------------------------------------------------------------------ checkpoints

    def full_checkpoint(self) -> Checkpoint | None:
        """Return a checkpoint of everything that is flushed, for a journal's snapshot; None before the first byte.

        In a terminal state: the one of the moment when it ended. A successor may need it until its own is durable.
        """
        if self.state in TERMINAL:
            return self.final_checkpoint
        return self.checkpointer.full(self.current, self.high_watermark, self.log_start, self.producers)

    def checkpoint(self) -> list[Effect]:
        """Return the effect that writes a checkpoint; none while another is under way: the next one follows it."""
        checkpoint = self.checkpointer.next(self.current, self.high_watermark, self.log_start, self.producers)
        return [] if checkpoint is None else [ev.WriteCheckpoint(checkpoint)]

    # -------------------------------------------------------------------------------------------------------- time

    def deadline_ms(self) -> int | None:
        """Return the monotonic time of the next ``Tick``; None if nothing waits for time."""
        segment = self.current
        if segment is None or self.state not in (PartitionState.WRITE, PartitionState.MOVE):
            return None
        times = []
        if not self.is_draining:
            times.append(segment.opened_ms + self.config.segment_ms)
            if self.batches.is_idle:
                times.append(segment.last_write_ms + self.broker.idle_close_ms)
        if segment.dirty_since_ms >= 0 and not self.checkpointer.is_under_way:
            times.append(segment.dirty_since_ms + self.broker.checkpoint_ms)
        if self.batches.inflight:
            sent_ms = self.batches.inflight[0].sent_ms
            times.append(max(sent_ms + self.broker.silent_flush_ms, self.probe_due_ms))
            slow = sent_ms + self.broker.slow_flush_ms
            times.append(max(slow, self.last_slow_ms + self.broker.slow_roll_interval_ms))
        return min(times, default=None)

    def may_leave_slow(self, now_ms: int) -> bool:
        """Return whether the open segment holds something and the last roll for slowness was long ago."""
        is_due = now_ms - self.last_slow_ms >= self.broker.slow_roll_interval_ms
        return self.current is not None and self.current.position > 0 and not self.is_draining and is_due

    def delay(self) -> int:
        """Return the next pause of ``retry_ms``, which grows while nothing is flushed.

        Before WRITE, a step that succeeds resets it.
        """
        self.failures += 1
        return self.broker.retry_ms.pause(self.failures)

    # ---------------------------------------------------------------------------------------------------- the ends

    def _hand_over(self) -> list[Effect]:
        """Take the next step of a hand-over: flushed, then closed, then covered by a checkpoint, then released."""
        if not self.batches.is_idle:
            return []
        if self.current is not None:
            self.is_draining = True
            return self._close_current()
        dropped = self.next_segment.drop()
        if dropped:
            return [*dropped, *self._hand_over()]
        if self.next_segment.spare is Spare.CREATING or self.next_segment.is_chosen or self.unclosed:
            return []
        if self.storing is not None or self.checkpointer.is_under_way:
            return []
        is_settled = self.unclosed.is_settled(self.checkpointer.last, self.log_start)
        return self.store(replace(self._record(owner=""), is_settled=is_settled), self.revision)

    def fence(self) -> list[Effect]:
        """Stop: another broker owns the partition, or its record was deleted."""
        self.final_checkpoint = self.full_checkpoint()
        self.state = PartitionState.FENCED
        return self.refuse_all("another broker owns the partition, or its record was deleted")

    def refuse_all(self, reason: str) -> list[Effect]:
        """Refuse every batch that waits, and abort the files."""
        sent, unsent = self.batches.drop()
        self.current = None
        # NOT_LEADER_OR_FOLLOWER means that the batch was certainly not accepted: a proxy sends it again.  A batch that
        # was sent to a file may be found there, and kept, by the new owner.
        rejects = [
            ev.Reject(batches, code, reason)
            for batches, code in (
                (sent, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
                (unsent, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            )
            if batches
        ]
        return [*rejects, ev.Abort()]
