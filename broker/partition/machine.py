"""The partition: one owner's view of its log, without I/O.

``START -> FENCE -> RECOVER -> WRITE -> (MOVE | FENCED | CLOSED | OFFLINE)``. Events in, effects out, time as an
argument; ``TABLE`` has the handler of each (state, event) pair. The driver (``broker.partition.driver``) performs
effects and posts their results as events. Three promises are kept here and nowhere else (docs/design/rules.md):

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

from array import array
from dataclasses import replace

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect, Event, Pending
from bmq.broker.partition.batches import Batches, Duplicate
from bmq.broker.partition.checkpointer import Checkpointer, OpenSegment
from bmq.broker.partition.found_copies import Count, FoundCopies
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.segment_roll import SegmentRoll, Spare, block_for, whole_mb
from bmq.broker.partition.shortage import Shortage
from bmq.broker.partition.transitions import TABLE, TERMINAL, Cell, State
from bmq.broker.partition.unclosed_segments import UnclosedSegments
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import NO_PRODUCER_ID, Batch, check_batch
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint, ProducerBatch

_WAKE = ev.Wake()


class PartitionMachine:
    """The state machine of one ownership; see the module's docstring. Single-threaded, never awaits."""

    def __init__(self, key: PartitionKey, incarnation: str, config: LogConfig, broker: BrokerConfig) -> None:
        self.key = key
        self.incarnation = incarnation
        self.config = config
        self.broker = broker
        self.state = State.START
        self.epoch = 0
        self.revision = 0
        self.record = PartitionRecord()
        """The record as this process stored it last; empty before its claim is stored."""
        self.is_released = False
        """True once the stored record says that this process has released the partition."""
        self._predecessors: tuple[str, ...] = ()  # brokers whose journals may hold checkpoints of the log
        self._was_settled = False  # the record that was read says that no journal need be read
        self.log_start = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.producers = ProducerTable()
        self.current: OpenSegment | None = None
        self.batches = Batches()
        self.offline_reason = ""
        self._storing: PartitionRecord | None = None
        self._next = SegmentRoll()
        self._left = UnclosedSegments()
        self._checkpointer = Checkpointer(key, broker)
        self._draining = False
        self._failures = 0
        self._unreadable_since_ms: int | None = None
        self._passes_damaged = False  # journals are hints: the last attempt of a takeover skips damaged ones
        self._last_slow_ms = -(1 << 62)
        self._probe_due_ms = -(1 << 62)
        self._shortage = Shortage(broker.short_hold_ms)
        self._found_copies = FoundCopies()
        self._final: Checkpoint | None = None

    def __repr__(self) -> str:
        current = f"{self.current.entry.name}@{self.current.flushed}/{self.current.position}" if self.current else "-"
        return (
            f"<PartitionMachine {self.key} {self.state.name} epoch={self.epoch}"
            f" [{self.log_start}, {self.high_watermark}, {self.next_offset})"
            f" {current} {self.batches!r} {self._next!r} {self._left!r}>"
        )

    # ------------------------------------------------------------------------------------------ the produce path

    def check(self, batch: Batch, wall_ms: int) -> None:
        """Check that the partition accepts batches, and the header of a client's batch.

        Raises RequestError with Kafka's code if not.
        """
        if self.state is not State.WRITE:
            raise self._refusal()
        check_batch(batch, self.config.rules, wall_ms)
        if batch.is_transactional:  # Kafka's code for a client without that right; fatal in Java and librdkafka
            raise RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not available")

    def accept(self, batch: Batch, wall_ms: int, copies: int = 1) -> Pending | Duplicate:
        """Give a batch its offsets, and queue it.

        The batch was checked, or is this broker's own: then it may be a control batch, and of any size. Its bytes are
        writable, and stay with the partition. ``copies``: datanodes that hold the batch, at least, when it is
        acknowledged. Returns a `Duplicate` for a repeated batch. Raises RequestError with Kafka's code.
        """
        if self.state is not State.WRITE:
            raise self._refusal()
        if copies > 1 and self._shortage.is_refusing:
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few)
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
        if self.current is not None and not self._draining:
            return [_WAKE]
        return self._advance(now_ms)

    def take(self, bytes_max: int, now_ms: int) -> tuple[list[Pending], list[Effect]]:
        """Move queued batches onto the current segment, for one flush of at most ``bytes_max`` bytes, or of one batch.

        Returns the batches, none if no segment takes any now, and effects.
        """
        segment = self.current
        if segment is None or self._draining:
            return [], []
        taken, self._draining = self.batches.send(segment, bytes_max, self._roll_bytes(segment), now_ms)
        return taken, self._advance(now_ms) if self._draining or self._is_next_wanted(segment) else []

    def _refusal(self) -> RequestError:
        if self.state is State.OFFLINE:
            text = f"the partition is OFFLINE, see `bmq segment repair`: {self.offline_reason}"
            return RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the partition is not open here: {self.state.name}")

    def _roll_bytes(self, segment: OpenSegment) -> int:
        return min(self.config.segment_bytes, segment.block_bytes)

    # ------------------------------------------------------------------------------------------------- the table

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order."""
        cell = TABLE[self.state, type(event)]
        if cell is Cell.LATE:
            return []
        assert cell is not Cell.NEVER, f"{event} in {self.state.name}"
        before = self.state
        effects: list[Effect] = getattr(self, cell)(event, now_ms)
        if self.state is not before:
            effects.append(ev.StateChanged(self.state.name))
        return effects

    # ------------------------------------------------------------------------------------- START, FENCE, RECOVER

    def _on_start(self, event: ev.Start, now_ms: int) -> list[Effect]:
        """Read the record of the present owner."""
        return [ev.ReadRecord()]

    def _on_record_read(self, event: ev.RecordRead, now_ms: int) -> list[Effect]:
        """Raise the epoch; keep the predecessor's segments and journals in the record."""
        return self._claim(event.record, event.revision)

    def _claim(self, record: PartitionRecord, revision: int) -> list[Effect]:
        self._predecessors, self._was_settled = record.journals, record.is_settled
        journals = (*(j for j in record.journals if j != self.incarnation), self.incarnation)
        claimed = replace(
            record, epoch=record.epoch + 1, owner=self.incarnation, journals=journals, is_settled=False
        )  # not settled: checkpoints of what is written from here on are in this broker's journal
        return self._store(claimed, revision)

    def _store(self, record: PartitionRecord, revision: int) -> list[Effect]:
        self._storing, self.revision = record, revision
        return [ev.StoreRecord(record, revision)]

    def _on_claimed(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """Fence the segments that the record lists; write at once if there are none."""
        self._stored(event)
        self._failures = 0
        self.epoch = event.record.epoch
        if not event.record.segments:
            self.state = State.WRITE
            return []
        self.state = State.FENCE
        return [ev.FenceSegments(event.record.segments)]

    def _stored(self, event: ev.RecordStored) -> None:
        assert event.record == self._storing
        self._storing = None
        self.record, self.revision = event.record, event.revision

    def _on_record_unknown(self, event: ev.RecordUnknown, now_ms: int) -> list[Effect]:
        """Send the same write again: only a commit with the same compare settles it (rule 3)."""
        assert event.record == self._storing
        return [ev.RunAgain(self._delay(), ev.StoreRecord(event.record, self.revision))]

    def _on_claim_refused(self, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
        """Claim again over a late registration of the predecessor; stop if another broker has raised the epoch."""
        assert self._storing is not None
        if event.record.epoch >= self._storing.epoch:
            return self._fence()
        return self._claim(event.record, event.revision)  # the predecessor registered a segment in between

    def _on_fenced(self, event: ev.SegmentsFenced, now_ms: int) -> list[Effect]:
        """Recover the log: no predecessor can write any more, so read behind the last checkpoint."""
        self.state = State.RECOVER
        return [
            ev.RecoverLog(
                event.segments, self.record.segments, self._predecessors, self._was_settled, self._passes_damaged
            )
        ]

    def _on_fence_failed(self, event: ev.FenceFailed, now_ms: int) -> list[Effect]:
        """Try the fence again later."""
        return [ev.RunAgain(self._delay(), ev.FenceSegments(self.record.segments))]

    def _on_recovery_failed(self, event: ev.RecoveryFailed, now_ms: int) -> list[Effect]:
        """Begin again with the fence, since a file may have been moved meanwhile."""
        self.state = State.FENCE
        return [ev.RunAgain(self._delay(), ev.FenceSegments(self.record.segments))]

    def _on_log_unreadable(self, event: ev.LogUnreadable, now_ms: int) -> list[Effect]:
        """Try again for ``unreadable_ms``, from the fence on, then once without damaged journals; then go OFFLINE."""
        if self._unreadable_since_ms is None:
            self._unreadable_since_ms = now_ms
        was_last = self._passes_damaged
        self._passes_damaged = now_ms - self._unreadable_since_ms >= self.broker.unreadable_ms
        if not was_last:
            self.state = State.FENCE
            return [ev.RunAgain(self._delay(), ev.FenceSegments(self.record.segments))]
        self.state = State.OFFLINE
        self.offline_reason = event.reason
        return [ev.Alarm(event.reason)]

    @property
    def is_unreadable(self) -> bool:
        """True if storage responds to the takeover, but does not return bytes that should exist."""
        return self._unreadable_since_ms is not None

    def _on_recovery_refused(self, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
        """Go OFFLINE, for an operator: acknowledged data is missing or damaged."""
        self.state = State.OFFLINE
        self.offline_reason = event.reason
        return [ev.Alarm(event.reason)]

    def _on_recovered(self, event: ev.LogRecovered, now_ms: int) -> list[Effect]:
        """Adopt the log's end, its start and its producers; write a checkpoint of them to this broker's journal."""
        recovered = event.recovered
        self.high_watermark = self.next_offset = recovered.end_offset
        self.log_start = min(event.log_start, recovered.end_offset)
        self._found_copies.doubt(recovered.end_offset)
        self.producers = ProducerTable(event.producers)
        self._failures = 0
        base = event.checkpoint
        if recovered.segments:
            last = recovered.segments[-1]
            self._left.found(self.record.segments, last.name, last.length, recovered.end_offset)
            self._next.last_bytes = last.length
            self._checkpointer.close(
                last.name,
                last.length,
                recovered.end_offset,
                self.log_start,
                last.index,
                last.epochs,
                self.producers,
            )
        elif base is not None:
            self._left.found(self.record.segments, base.segment, base.position, base.end_offset)
            self._next.last_bytes = base.position
            self._checkpointer.last = replace(base, is_full=True, is_closed=True, index=array("q"), producers=())
        else:
            self.state = State.WRITE
            return []
        checkpoint = self.full_checkpoint()
        assert checkpoint is not None
        self._checkpointer.begin()
        return [ev.WriteIndexes(recovered, self.log_start, event.producers), ev.WriteCheckpoint(checkpoint)]

    def _on_recovery_covered(self, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
        """Accept batches: the takeover's checkpoint is durable (rule 4)."""
        self._checkpointer.written()
        self.state = State.WRITE
        return []

    # --------------------------------------------------------------------------------- WRITE and MOVE: the segments

    def _advance(self, now_ms: int) -> list[Effect]:
        """Close a drained segment, open the next one if it is needed, prepare it if it will be needed soon."""
        effects: list[Effect] = []
        segment = self.current
        if segment is not None and self._draining and not self.batches.inflight:
            effects += self._close_current()
            segment = None
        if segment is None:
            effects += self._open_next()
        elif self._next.spare is Spare.NONE and self._is_next_wanted(segment):
            effects.append(self._create_spare())
        if self.state is State.MOVE:
            effects += self._hand_over()
        return effects

    def _is_next_wanted(self, segment: OpenSegment) -> bool:
        """Return whether the next segment is needed now, or soon.

        Opening it may take longer than the room that is left in this segment lasts.
        """
        if self._draining:
            return bool(self.batches.unsent)
        return segment.position * 8 > self._roll_bytes(segment) * 7

    def _open_next(self) -> list[Effect]:
        following, unsent = self._next, self.batches.unsent
        if following.is_chosen:
            return []
        if not unsent:
            return following.drop()  # not needed now: it would hold a pipeline, and room on storage
        if following.spare is Spare.NONE:
            return [self._create_spare()]
        if following.spare is Spare.CREATING:
            return []
        if following.block_bytes < unsent[0].batch.size or following.copies < unsent[0].copies:
            return [*following.drop(), self._create_spare()]
        return self._register()

    def _create_spare(self, copies: int = 1) -> Effect:
        """Return the effect that creates a spare, fit for the first batch that waits: its size and its copies."""
        following, broker, unsent = self._next, self.broker, self.batches.unsent
        if self.current is not None:
            following.learn(self.current)
        first_bytes = unsent[0].batch.size if unsent else 0
        usual = block_for(following.last_bytes, broker.first_block_bytes, broker.block_bytes, self.config.segment_bytes)
        copies = max(copies, unsent[0].copies) if unsent else copies
        return following.create(self.epoch, max(usual, whole_mb(first_bytes)), first_bytes, copies)

    def _register(self) -> list[Effect]:
        """Register the next segment: everything before its base is flushed (rules 3 and 5)."""
        assert not self.batches.inflight
        base = self.batches.unsent[0].batch.base_offset
        assert base == self.high_watermark
        return self._store(self._record(self._next.register(base, self.epoch)), self.revision)

    def _record(self, *opened: SegmentEntry, owner: str | None = None) -> PartitionRecord:
        """Return the record to store: it lists the newest closed segment, all not yet closed, and those ``opened``."""
        return PartitionRecord(
            epoch=self.epoch,
            owner=self.incarnation if owner is None else owner,
            segments=self._left.listed(*opened),
            journals=(self.incarnation,),
        )

    @property
    def spare(self) -> SegmentEntry | None:
        """The open file that has no final name yet and no batches; None if there is none."""
        return self._next.unused

    def _on_spare_ready(self, event: ev.SpareReady, now_ms: int) -> list[Effect]:
        """Note the spare; register it if it is needed now."""
        self._next.ready(event.entry, event.copies)
        if event.copies >= self.config.min_insync:
            self._shortage.end()
        return self._advance(now_ms)

    def _on_spare_failed(self, event: ev.SpareFailed, now_ms: int) -> list[Effect]:
        """Drop the spare if its pipeline broke; if one is needed, create another, later if storage refused this one."""
        following = self._next
        if following.spare is Spare.NONE:
            return []  # it failed while it was being dropped
        if following.spare is Spare.READY:
            return [*following.drop(), *self._advance(now_ms)]
        following.failed()
        delay_ms = self._delay()
        effects: list[Effect] = []
        if event.is_short:
            self._shortage.notice(now_ms, delay_ms)
            if self._shortage.is_refusing:
                effects = self._stop_holding()
        if self.current is not None and not self._draining:
            return effects  # it was only prepared ahead of need
        if not self.batches.unsent:
            return [*effects, *self._advance(now_ms)]
        return [*effects, ev.RunAgain(delay_ms, self._create_spare())]

    # ----------------------------------------------------------------------------------------- min.insync.replicas

    @property
    def is_short(self) -> bool:
        """True while storage, as far as is known, gives fewer datanodes than min.insync.replicas."""
        return self._shortage.is_noticed

    @property
    def _too_few(self) -> str:
        return f"storage gives a new segment fewer datanodes than min.insync.replicas={self.config.min_insync} asks for"

    def _stop_holding(self) -> list[Effect]:
        """Refuse the batches that have waited for copies, with Kafka's codes.

        | the batch                | response                         | then                                      |
        | ------------------------ | -------------------------------- | ----------------------------------------- |
        | left no trace in the log | NOT_ENOUGH_REPLICAS              | it is taken back                          |
        | is in the log            | NOT_ENOUGH_REPLICAS_AFTER_APPEND | it is written once there are enough nodes |

        A batch that was never sent to a file is in the log all the same if one behind it was acknowledged (acks=1).
        """
        sent, unsent = self.batches.split_unsent()
        effects: list[Effect] = []
        if unsent and all(pending.copies > 1 for pending in unsent):
            self.batches.drop_last(len(unsent))
            self.next_offset = unsent[0].batch.base_offset
            kept = (*self.batches.inflight, *sent)
            self.producers.take_back(pending.producer for pending in kept if pending.producer is not None)
            effects.append(ev.Reject(unsent, ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few))
            unsent = ()
        if sent or unsent:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            effects.append(ev.LeaveUnacknowledged((*sent, *unsent), code, self._too_few))
        return effects

    def _on_copies_wanted(self, event: ev.CopiesWanted, now_ms: int) -> list[Effect]:
        """Try for enough datanodes, and count a repeated batch's copies; neither if under way or done just now."""
        following, effects = self._next, list[Effect]()
        wanted = self._found_copies.take_wanted(now_ms)
        if wanted is not None:
            effects.append(ev.CountCopies(wanted, self._found_copies.end))
        if self.batches.unsent or following.is_chosen or not self._shortage.may_try(now_ms):
            return effects
        if following.spare is Spare.CREATING:
            return effects
        return [*effects, *following.drop(), self._create_spare(self.config.min_insync)]

    def _check_copies(self, kept: ProducerBatch, pending: Pending | None, copies: int) -> None:
        """Check that a repeated batch has ``copies`` copies, or will have when it is flushed.

        Raises RequestError NOT_ENOUGH_REPLICAS if not; a count of the copies is then wanted.
        """
        if pending is not None:
            if pending.copies >= copies:
                return
            why = f"it was accepted for {pending.copies}, and is not flushed yet"
        elif kept.base_offset + kept.last_delta < self.log_start or self._found_copies.has(kept.base_offset, copies):
            return
        else:
            why = self._found_copies.why(kept.base_offset)
        raise RequestError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the batch is at offset {kept.base_offset}; min.insync.replicas asks for {copies} copies: {why}",
        )

    def _on_copies_counted(self, event: ev.CopiesCounted, now_ms: int) -> list[Effect]:
        """Keep the count. Too few copies are counted again if the batch is repeated after ``retry_max_ms``."""
        again_ms = now_ms + self.broker.retry_max_ms
        self._found_copies.counted(Count(event.base, event.end, event.copies, again_ms, event.reason))
        return []

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings.

        If min.insync.replicas falls, batches that wait for copies wait for fewer. If it rises, batches that were
        flushed before are counted before a repetition of them is acknowledged.
        """
        if config.min_insync > self.config.min_insync:
            self._found_copies.doubt(self.high_watermark)
        if config.min_insync < self.config.min_insync:
            self._shortage.end()
            for pending in self.batches.unsent:
                pending.copies = min(pending.copies, config.min_insync)
        self.config = config

    def _on_registered(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """Give the segment its final name: the record lists it."""
        self._stored(event)
        empty = self._left.take_empty(self.record.segments)
        return [self._next.name(), *([ev.DeleteEmpty(empty)] if empty else [])]

    def _on_register_refused(self, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
        """Stop if the record has another owner or epoch; else write again over the change, by its revision."""
        assert self._storing is not None
        if event.record.epoch != self.epoch or event.record.owner != self.incarnation:
            return self._fence()
        return self._store(self._storing, event.revision)  # an administrator wrote the key without changing the owner

    def _on_named(self, event: ev.SegmentNamed, now_ms: int) -> list[Effect]:
        """Open the segment for batches."""
        entry = self._next.naming(event.name)
        if entry is None:
            return []  # its pipeline failed meanwhile
        self.current = OpenSegment(
            entry, self._next.block_bytes, self.config.index_interval_bytes, now_ms, self._next.copies
        )
        self._next.named()
        return [_WAKE] if self.batches.unsent else self._advance(now_ms)

    def _on_naming_failed(self, event: ev.NamingFailed, now_ms: int) -> list[Effect]:
        """Try the rename again: the name is registered."""
        entry = self._next.naming(event.name)
        return [] if entry is None else [ev.RunAgain(self._delay(), ev.NameSegment(entry))]

    def _on_flushed(self, event: ev.Flushed, now_ms: int) -> list[Effect]:
        """Acknowledge the batches that the flush covers, checkpoint by bytes, close a drained segment."""
        segment = self.current
        if segment is None or segment.entry.name != event.name:
            return []  # a late ack: this segment was given up, its tail is written again elsewhere (rule 6)
        done = self.batches.flushed(event.position)
        if not done:
            return []
        for pending in done:
            batch = pending.batch
            segment.index.add(batch.base_offset, pending.start_position, batch.max_timestamp)
            if not segment.epochs:
                segment.epochs.append((self.epoch, batch.base_offset))
            if pending.producer is not None:
                self.producers.flushed(pending.producer)
        last = done[-1]
        segment.uncovered_bytes += last.end_position - segment.flushed
        segment.flushed = last.end_position
        if segment.dirty_since_ms < 0:
            segment.dirty_since_ms = now_ms
        self.high_watermark = last.batch.next_offset
        if segment.copies < self.config.min_insync:
            self._found_copies.doubt(self.high_watermark)
        self._failures = 0
        effects: list[Effect] = [ev.Acknowledge(done)]
        if segment.uncovered_bytes >= self.broker.checkpoint_bytes:
            effects += self._checkpoint()
        if self._draining or self.state is State.MOVE:
            effects += self._advance(now_ms)
        elif self.batches.unsent:
            effects.append(_WAKE)
        return effects

    def _close_current(self) -> list[Effect]:
        segment, self.current = self.current, None
        assert segment is not None
        assert not self.batches.inflight
        self._draining = False
        index_may_wait = segment.is_covered or self._left.is_empty
        return [ev.CloseSegment(segment.entry, self._leave(segment), index_may_wait)]

    def _leave(self, segment: OpenSegment) -> Checkpoint | None:
        """Note that ``segment`` is not written any more; return its final checkpoint.

        Returns None if nothing in it was flushed.
        """
        self._left.leave(segment.entry)
        self._next.learn(segment)
        if segment.flushed == 0:
            return None
        return self._checkpointer.close(
            segment.entry.name,
            segment.flushed,
            self.high_watermark,
            self.log_start,
            segment.index,
            segment.epochs,
            self.producers,
        )

    def _on_pipeline_failed(self, event: ev.SegmentFailed, now_ms: int) -> list[Effect]:
        """Go on in a new file from the first byte not acknowledged, and take the old file over behind it (rule 6)."""
        entry = self._next.naming(event.name)
        if entry is not None:
            self._next.named()
            self._left.leave(entry)
            return [ev.SealSegment(entry, None), *self._go_on_elsewhere(now_ms)]
        segment = self.current
        if segment is None or segment.entry.name != event.name:
            return []
        self.current = None
        self._draining = False
        self.batches.put_back()
        seal = ev.SealSegment(segment.entry, self._leave(segment))
        return [seal, *(self._advance(now_ms) if segment.flushed else self._go_on_elsewhere(now_ms))]

    def _go_on_elsewhere(self, now_ms: int) -> list[Effect]:
        """Open the segment after one that took nothing: at once if that was the first in a row, later otherwise.

        Files may be created although writes to them fail (a full disk, a quota). Without the delay each partition would
        then create files, and commit records, as fast as it can.
        """
        is_first = self._failures == 0
        delay_ms = self._delay()
        if is_first or self._next.spare is not Spare.NONE or self._next.is_chosen or not self.batches.unsent:
            return self._advance(now_ms)
        return [ev.RunAgain(delay_ms, self._create_spare())]

    def _on_closed(self, event: ev.SegmentClosed, now_ms: int) -> list[Effect]:
        """Note that a segment is closed and indexed: the next record need not list it."""
        self._left.closed(event.entry)
        return self._advance(now_ms)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def full_checkpoint(self) -> Checkpoint | None:
        """Return a checkpoint of everything that is flushed, for a journal's snapshot; None before the first byte.

        In a terminal state: the one of the moment when it ended. A successor may need it until its own is durable.
        """
        if self.state in TERMINAL:
            return self._final
        return self._checkpointer.full(self.current, self.high_watermark, self.log_start, self.producers)

    def _checkpoint(self) -> list[Effect]:
        checkpoint = self._checkpointer.next(self.current, self.high_watermark, self.log_start, self.producers)
        return [] if checkpoint is None else [ev.WriteCheckpoint(checkpoint)]

    def _on_covered(self, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
        """Note that a checkpoint is durable; write the one that became due meanwhile."""
        if self._checkpointer.written():
            return self._checkpoint()
        return self._advance(now_ms) if self.state is State.MOVE else []

    def _on_log_start(self, event: ev.LogStartRaised, now_ms: int) -> list[Effect]:
        """Raise the log start and checkpoint it at once."""
        if event.offset <= self.log_start:
            return []
        assert event.offset <= self.high_watermark
        self.log_start = event.offset
        return self._checkpoint()

    # -------------------------------------------------------------------------------------------------------- time

    def deadline_ms(self) -> int | None:
        """Return the monotonic time of the next ``Tick``; None if nothing waits for time."""
        segment = self.current
        if segment is None or self.state not in (State.WRITE, State.MOVE):
            return None
        times = []
        if not self._draining:
            times.append(segment.opened_ms + self.config.segment_ms)
            if self.batches.is_idle:
                times.append(segment.last_write_ms + self.broker.idle_close_ms)
        if segment.dirty_since_ms >= 0 and not self._checkpointer.is_under_way:
            times.append(segment.dirty_since_ms + self.broker.checkpoint_ms)
        if self.batches.inflight:
            sent_ms = self.batches.inflight[0].sent_ms
            times.append(max(sent_ms + self.broker.silent_flush_ms, self._probe_due_ms))
            slow = sent_ms + self.broker.slow_flush_ms
            times.append(max(slow, self._last_slow_ms + self.broker.slow_roll_interval_ms))
        return min(times, default=None)

    def _on_tick(self, event: ev.Tick, now_ms: int) -> list[Effect]:
        """Checkpoint by time, suspect a hung flush, close an old or idle segment."""
        segment = self.current
        if segment is None:
            return []
        effects: list[Effect] = []
        is_dirty = segment.dirty_since_ms >= 0 and not self._checkpointer.is_under_way
        if is_dirty and now_ms - segment.dirty_since_ms >= self.broker.checkpoint_ms:
            self.producers.expire(event.wall_ms - self.broker.producer_expiration_ms)
            effects += self._checkpoint()
        if self.batches.inflight:
            age = now_ms - self.batches.inflight[0].sent_ms
            is_due = now_ms - self._last_slow_ms >= self.broker.slow_roll_interval_ms
            is_slow = age >= self.broker.slow_flush_ms and is_due
            if is_slow:
                self._last_slow_ms = now_ms
            if is_slow or (age >= self.broker.silent_flush_ms and now_ms >= self._probe_due_ms):
                self._probe_due_ms = now_ms + self.broker.slow_flush_ms
                effects.append(ev.Suspect(segment.entry.name, age, is_slow))
        if self._draining:
            return effects
        is_old = now_ms - segment.opened_ms >= self.config.segment_ms
        if is_old and segment.position == 0:
            segment.opened_ms = now_ms  # empty: nothing to roll
            is_old = False
        if is_old or (self.batches.is_idle and now_ms - segment.last_write_ms >= self.broker.idle_close_ms):
            self._draining = True
            effects += self._advance(now_ms)
        return effects

    def _on_place_wanted(self, event: ev.PlaceWanted, now_ms: int) -> list[Effect]:
        """Close the segment once its batches are flushed; batches that wait go to the next one."""
        if self.current is None:
            return []
        self._draining = True
        return self._advance(now_ms)

    @property
    def is_draining(self) -> bool:
        """True while the open segment takes no more batches, and closes once those it has are flushed."""
        return self._draining

    def may_leave_slow(self, now_ms: int) -> bool:
        """Return whether the open segment holds something and the last roll for slowness was long ago."""
        is_due = now_ms - self._last_slow_ms >= self.broker.slow_roll_interval_ms
        return self.current is not None and self.current.position > 0 and not self._draining and is_due

    def _on_storage_slow(self, event: ev.StorageSlow, now_ms: int) -> list[Effect]:
        """Roll the segment. No fail-over: the flushes in flight will be acknowledged."""
        if not self.may_leave_slow(now_ms):
            return []
        self._last_slow_ms = now_ms
        self._draining = True
        return self._advance(now_ms)

    def _delay(self) -> int:
        """Return milliseconds that double from ``retry_ms`` to ``retry_max_ms`` while nothing is flushed.

        Before WRITE, a step that succeeds resets them.
        """
        self._failures += 1
        return min(self.broker.retry_ms << min(self._failures - 1, 16), self.broker.retry_max_ms)

    # ---------------------------------------------------------------------------------------------------- the ends

    def _on_move(self, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
        """Stop accepting batches; flush, close and release."""
        self.state = State.MOVE
        has_unsent = self.current is not None and bool(self.batches.unsent)
        self._draining = self.current is not None and not has_unsent
        return [_WAKE, *self._advance(now_ms)] if has_unsent else self._advance(now_ms)

    def _hand_over(self) -> list[Effect]:
        """Take the next step of a hand-over: flushed, then closed, then covered by a checkpoint, then released."""
        if not self.batches.is_idle:
            return []
        if self.current is not None:
            self._draining = True
            return self._close_current()
        dropped = self._next.drop()
        if dropped:
            return [*dropped, *self._hand_over()]
        if self._next.spare is Spare.CREATING or self._next.is_chosen or self._left:
            return []
        if self._storing is not None or self._checkpointer.is_under_way:
            return []
        is_settled = self._left.is_settled(self._checkpointer.last, self.log_start)
        return self._store(replace(self._record(owner=""), is_settled=is_settled), self.revision)

    def _on_released(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """Note that the partition is released, or that a last segment was registered during the move."""
        if self._next.is_registering:
            return self._on_registered(event, now_ms)
        self._stored(event)
        self._final = self.full_checkpoint()
        self.state = State.CLOSED
        self.is_released = True
        return []

    def _on_give_up(self, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
        """End an ownership that accepted nothing yet: the next owner fences as after any predecessor."""
        self.state = State.CLOSED
        return [ev.Abort()]

    def _on_epoch_changed(self, event: ev.EpochChanged, now_ms: int) -> list[Effect]:
        """Stop, unless the epoch is this owner's: refuse every batch that waits, and abort the files."""
        return self._fence() if event.epoch != self.epoch else []

    def _on_record_unreadable(self, event: ev.RecordUnreadable, now_ms: int) -> list[Effect]:
        """Stop as if fenced, since the writer of the record may own the partition; wait for an operator."""
        self._final = self.full_checkpoint()
        self.state = State.OFFLINE
        self.offline_reason = event.reason
        return [*self._refuse_all(event.reason), ev.Alarm(event.reason)]

    def _fence(self) -> list[Effect]:
        self._final = self.full_checkpoint()
        self.state = State.FENCED
        return self._refuse_all("another broker owns the partition, or its record was deleted")

    def _refuse_all(self, reason: str) -> list[Effect]:
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
