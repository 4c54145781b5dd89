"""The partition: one owner's view of its log, without I/O.

``START -> FENCE -> RECOVER -> WRITE -> (MOVE | FENCED | CLOSED | OFFLINE)``.  Events in, effects out, time as an
argument; ``TABLE`` says for every (state, event) pair what happens.  The shell (``broker.writer``) performs effects and
feeds their results back.  Three promises are kept here and nowhere else:

* Nothing is accepted before the predecessor is fenced, its tail read and a checkpoint of it durable (rule 4).
* A batch is acknowledged when the current segment's pipeline has acknowledged its bytes, in order; an ack of any other
  segment is late and means nothing (rule 6).
* The next segment is registered when everything before its base is flushed, and written when it has its final name
  (rules 3 and 5).

Offsets: ``log_start <= high_watermark <= next_offset``.  Batches wait in ``unsent``, then in ``inflight``; on a
fail-over those in flight go back to the front of ``unsent``, byte for byte as they were.

Times in milliseconds: ``wall_ms`` is what records are stamped with, ``now_ms`` is monotonic.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import replace
from enum import Enum

from bmq.broker import events as ev
from bmq.broker.checkpointer import Checkpointer, OpenSegment
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect, Event, Pending
from bmq.broker.producers import ProducerTable
from bmq.broker.transitions import TABLE, TERMINAL, Cell, State
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records import NO_PRODUCER_ID, Batch, check_batch
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.checkpoint import Checkpoint

_WAKE = ev.Wake()
_MB = 1 << 20
CHUNK_BYTES_MIN = 512
CHUNK_BYTES_MAX = 65_536
FIRST_FLUSH_BYTES_MAX = 16 << 10
"""What a partition's first batch is believed about the flushes to come: a chunk of 4 KB, so that flushes that turn out
small resend little."""


class Spare(Enum):
    """The segment to be opened next."""

    NONE = "none"
    CREATING = "being created"
    READY = "ready"


class Duplicate:
    """A batch that repeats ``base_offset``; ``pending`` is the original while it is not flushed (rule 9).

    ``timestamp`` is the original's largest.
    """

    __slots__ = ("base_offset", "pending", "timestamp")

    def __init__(self, base_offset: int, pending: Pending | None, timestamp: int) -> None:
        self.base_offset = base_offset
        self.pending = pending
        self.timestamp = timestamp


def chunk_for(flush_bytes: int) -> int:
    """HDFS's checksum chunk for flushes of this size: a power of two from 512 to 64 KB, at most a quarter of them.

    A wide chunk costs less per byte, but every flush that ends inside one resends what the chunk holds already.
    """
    chunk = CHUNK_BYTES_MIN
    while chunk * 8 <= flush_bytes and chunk < CHUNK_BYTES_MAX:
        chunk *= 2
    return chunk


class Partition:
    """See the module's head.  Single-threaded, never awaits."""

    def __init__(self, key: PartitionKey, incarnation: str, config: LogConfig, broker: BrokerConfig) -> None:
        self.key = key
        self.incarnation = incarnation
        self.config = config
        self.broker = broker
        self.state = State.START
        self.epoch = 0
        self.revision = 0
        self.record = PartitionRecord()
        self._predecessors: tuple[str, ...] = ()  # whose journals may speak of the log that we found
        self._was_settled = False  # its record said that none of them need be read
        self.log_start = 0
        self.high_watermark = 0
        self.next_offset = 0
        self.producers = ProducerTable()
        self.current: OpenSegment | None = None
        self.unsent: deque[Pending] = deque()
        self.inflight: deque[Pending] = deque()
        self.buffered_bytes = 0
        self.offline_reason = ""
        self._storing: PartitionRecord | None = None
        self._next_n = 0
        self._serial = 0
        self._spare = Spare.NONE
        self._spare_entry: SegmentEntry | None = None
        self._spare_block = 0
        self._flush_bytes = 0  # usual size, as the last segment saw it; 0 when unknown
        self._registering: SegmentEntry | None = None
        self._naming: SegmentEntry | None = None
        self._unclosed: dict[SegmentName, SegmentEntry] = {}
        self._closed: SegmentEntry | None = None
        self._indexed: SegmentName | None = None  # whose index we have written ourselves
        self._checkpointer = Checkpointer(key, broker)
        self._draining = False
        self._failures = 0
        self._last_slow_ms = -(1 << 62)
        self._final: Checkpoint | None = None

    def __repr__(self) -> str:
        current = f"{self.current.entry.name}@{self.current.flushed}/{self.current.position}" if self.current else "-"
        return (
            f"<Partition {self.key} {self.state.name} epoch={self.epoch} [{self.log_start}, {self.high_watermark},"
            f" {self.next_offset}) {current} unsent={len(self.unsent)} inflight={len(self.inflight)}"
            f" spare={self._spare.value} unclosed={len(self._unclosed)}>"
        )

    # ------------------------------------------------------------------------------------------ the produce path

    def append(self, batch: Batch, wall_ms: int) -> Pending | Duplicate:
        """Check, number and queue a batch whose bytes are writable and stay ours.  RequestError with Kafka's code."""
        if self.state is not State.WRITE:
            raise self._refusal()
        check_batch(batch, self.config.rules, wall_ms)
        if batch.is_transactional:  # Kafka's code for who may not use transactions; fatal in Java and librdkafka
            raise RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not available")
        return self._accept(batch, wall_ms)

    def append_internal(self, batch: Batch, wall_ms: int) -> Pending | Duplicate:
        """The same for a batch that we built ourselves: control batches are allowed, sizes are ours."""
        if self.state is not State.WRITE:
            raise self._refusal()
        return self._accept(batch, wall_ms)

    def _accept(self, batch: Batch, wall_ms: int) -> Pending | Duplicate:
        if batch.producer_id != NO_PRODUCER_ID:
            kept = self.producers.find_duplicate(batch)
            if kept is not None:
                return Duplicate(kept.base_offset, self._find_pending(kept.base_offset), kept.timestamp)
            self.producers.check(batch)
        if self.config.rules.log_append_time:
            batch.set_append_time(wall_ms)
        batch.assign(self.next_offset, self.epoch)
        pending = Pending(batch, self.producers.append(batch, wall_ms))
        self.next_offset = batch.next_offset
        self.unsent.append(pending)
        self.buffered_bytes += batch.size
        return pending

    def after_append(self, now_ms: int) -> list[Effect]:
        """What queued batches need: a turn of the open pipeline, or a segment.  Once per loop turn is enough."""
        if self.current is not None and not self._draining:
            return [_WAKE]
        return self._advance(now_ms)

    def take(self, bytes_max: int, now_ms: int) -> tuple[list[Pending], list[Effect]]:
        """Move queued batches onto the current segment, for one flush of at most ``bytes_max`` (or one batch)."""
        segment, size = self.current, 0
        taken: list[Pending] = []
        if segment is None or self._draining:
            return [], []
        roll_bytes = self._roll_bytes
        while self.unsent:
            pending = self.unsent[0]
            length = pending.batch.size
            if segment.position > 0 and segment.position + length > roll_bytes:
                self._draining = True
                break
            if taken and size + length > bytes_max:
                break
            self.unsent.popleft()
            pending.start_position = segment.position
            segment.position += length
            pending.end_position = segment.position
            pending.sent_ms = now_ms
            pending.was_sent = True
            taken.append(pending)
            size += length
        segment.last_write_ms = now_ms
        if taken:
            segment.flushes += 1
            self.inflight.extend(taken)
        return taken, self._advance(now_ms) if self._draining or self._is_next_wanted(segment) else []

    def _find_pending(self, base_offset: int) -> Pending | None:
        if base_offset < self.high_watermark:
            return None
        for queue in (self.inflight, self.unsent):
            for pending in queue:
                if pending.batch.base_offset == base_offset:
                    return pending
        raise AssertionError(f"offset {base_offset} is neither flushed nor on its way")

    def _refusal(self) -> RequestError:
        if self.state is State.OFFLINE:
            return RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition is offline: {self.offline_reason}")
        return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition is {self.state.name}")

    @property
    def _roll_bytes(self) -> int:
        return min(self.config.segment_bytes, self.broker.block_bytes)

    # ------------------------------------------------------------------------------------------------- the table

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Look the pair up and do what it says."""
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
        """Read who owned the partition."""
        return [ev.ReadRecord()]

    def _on_record_read(self, event: ev.RecordRead, now_ms: int) -> list[Effect]:
        """Raise the epoch, keeping the predecessor's segments and journals in the record."""
        return self._claim(event.record, event.revision)

    def _claim(self, record: PartitionRecord, revision: int) -> list[Effect]:
        self._predecessors, self._was_settled = record.journals, record.is_settled
        journals = (*(j for j in record.journals if j != self.incarnation), self.incarnation)
        claimed = replace(
            record, epoch=record.epoch + 1, owner=self.incarnation, journals=journals, is_settled=False
        )  # not settled: what we write from here on stands in our journal
        return self._store(claimed, revision)

    def _store(self, record: PartitionRecord, revision: int) -> list[Effect]:
        self._storing, self.revision = record, revision
        return [ev.StoreRecord(record, revision)]

    def _on_claimed(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """The epoch is ours: fence what the predecessor left open; with nothing left, write."""
        self._stored(event)
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
        self._failures = 0

    def _on_record_unknown(self, event: ev.RecordUnknown, now_ms: int) -> list[Effect]:
        """Ask the same again: only a commit with the same compares settles it (rule 3)."""
        assert event.record == self._storing
        return [ev.RunAgain(self._delay(), ev.StoreRecord(event.record, self.revision))]

    def _on_claim_refused(self, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
        """Claim again over a late registration of the predecessor; give up to a higher epoch."""
        assert self._storing is not None
        if event.record.epoch >= self._storing.epoch:
            return self._fence()
        return self._claim(event.record, event.revision)  # the predecessor registered a segment in between

    def _on_fenced(self, event: ev.SegmentsFenced, now_ms: int) -> list[Effect]:
        """No predecessor can write any more: read behind the last checkpoint."""
        self.state = State.RECOVER
        self._failures = 0
        return [ev.RecoverLog(event.segments, self.record.segments, self._predecessors, self._was_settled)]

    def _on_fence_failed(self, event: ev.FenceFailed, now_ms: int) -> list[Effect]:
        """Storage did not let us: try again."""
        return [ev.RunAgain(self._delay(), ev.FenceSegments(self.record.segments))]

    def _on_recovery_failed(self, event: ev.RecoveryFailed, now_ms: int) -> list[Effect]:
        """Storage did not answer: begin again with the fence, a file may have been moved since."""
        self.state = State.FENCE
        return [ev.RunAgain(self._delay(), ev.FenceSegments(self.record.segments))]

    def _on_recovery_refused(self, event: ev.RecoveryRefused, now_ms: int) -> list[Effect]:
        """Acknowledged data is missing or damaged: wait for an operator."""
        self.state = State.OFFLINE
        self.offline_reason = event.reason
        return [ev.Alarm(event.reason)]

    def _on_recovered(self, event: ev.LogRecovered, now_ms: int) -> list[Effect]:
        """Take over the end, the start and the producers; make them durable in our own journal."""
        recovered = event.recovered
        self.high_watermark = self.next_offset = recovered.end_offset
        self.log_start = min(event.log_start, recovered.end_offset)
        self.producers = ProducerTable(event.producers)
        self._failures = 0
        base = event.checkpoint
        if recovered.segments:
            last = recovered.segments[-1]
            self._remember_closed(last.name, last.length, recovered.end_offset)
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
            self._remember_closed(base.segment, base.position, base.end_offset)
            self._checkpointer.last = replace(base, is_full=True, is_closed=True, index=array("q"), producers=())
        else:
            self.state = State.WRITE
            return []
        checkpoint = self.full_checkpoint()
        assert checkpoint is not None
        self._checkpointer.begin()
        return [ev.WriteIndexes(recovered, self.log_start, event.producers), ev.WriteCheckpoint(checkpoint)]

    def _remember_closed(self, name: SegmentName, length: int, end_offset: int) -> None:
        for entry in self.record.segments:
            if entry.name == name:
                self._closed = entry.closed(length, end_offset)
                return
        # Only a checkpoint speaks of it: it was dropped from the record when it was closed, so its lease is gone.
        self._closed = SegmentEntry(name=name, spare="", holder="", file_id=0, length=length, end_offset=end_offset)

    def _on_recovery_covered(self, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
        """Our checkpoint is durable: accept batches (rule 4)."""
        self._checkpointer.written()
        self.state = State.WRITE
        return []

    # --------------------------------------------------------------------------------- WRITE and MOVE: the segments

    def _advance(self, now_ms: int) -> list[Effect]:
        """Close a drained segment, open the next one when it is needed, prepare it when it soon will be."""
        effects: list[Effect] = []
        segment = self.current
        if segment is not None and self._draining and not self.inflight:
            effects += self._close_current()
            segment = None
        if segment is None:
            effects += self._open_next()
        elif self._spare is Spare.NONE and self._is_next_wanted(segment):
            effects += self._create_spare(self.broker.block_bytes)
        if self.state is State.MOVE:
            effects += self._hand_over()
        return effects

    def _is_next_wanted(self, segment: OpenSegment) -> bool:
        """Soon, or already: opening takes longer than what is left of this segment may last."""
        if self._draining:
            return bool(self.unsent)
        return segment.position * 8 > self._roll_bytes * 7

    def _open_next(self) -> list[Effect]:
        if not self.unsent or self._registering is not None or self._naming is not None:
            return []
        needed = max(self.broker.block_bytes, -(-self.unsent[0].batch.size // _MB) * _MB)
        if self._spare is Spare.NONE:
            return self._create_spare(needed)
        if self._spare is Spare.CREATING:
            return []
        if self._spare_block < needed:
            return [*self._drop_spare(), *self._create_spare(needed)]
        return self._register()

    def _create_spare(self, block_bytes: int) -> list[Effect]:
        self._spare, self._spare_block = Spare.CREATING, block_bytes
        if self.current is not None:
            self._note_flush_size(self.current)
        return [self._creation()]

    def _creation(self) -> ev.CreateSpare:
        self._serial += 1
        flush_bytes = self._flush_bytes
        if not flush_bytes and self.unsent:
            flush_bytes = min(self.unsent[0].batch.size, FIRST_FLUSH_BYTES_MAX)
        return ev.CreateSpare(self.epoch, self._serial, self._spare_block, chunk_for(flush_bytes))

    def _note_flush_size(self, segment: OpenSegment) -> None:
        if segment.flushes:
            self._flush_bytes = segment.position // segment.flushes

    def _drop_spare(self) -> list[Effect]:
        assert self._spare_entry is not None
        entry, self._spare_entry, self._spare = self._spare_entry, None, Spare.NONE
        return [ev.DropSpare(entry)]

    def _register(self) -> list[Effect]:
        """Everything before the next base is flushed: the segment may be named (rules 3 and 5)."""
        assert self._spare_entry is not None
        assert not self.inflight
        base = self.unsent[0].batch.base_offset
        assert base == self.high_watermark
        entry = replace(self._spare_entry, name=SegmentName(base, self.epoch, self._next_n))
        self._next_n += 1
        self._spare, self._spare_entry = Spare.NONE, None
        self._registering = entry
        return self._store(self._record(entry), self.revision)

    def _record(self, *opened: SegmentEntry, owner: str | None = None) -> PartitionRecord:
        """The newest closed segment, those not yet known closed, and the one to be opened."""
        listed = [*self._unclosed.values(), *opened]
        if self._closed is not None:
            listed.append(self._closed)
        listed.sort(key=lambda entry: entry.name.order)
        return PartitionRecord(
            epoch=self.epoch,
            owner=self.incarnation if owner is None else owner,
            segments=tuple(listed),
            journals=(self.incarnation,),
        )

    def _on_spare_ready(self, event: ev.SpareReady, now_ms: int) -> list[Effect]:
        """Register it if it is wanted now."""
        assert self._spare is Spare.CREATING
        self._spare, self._spare_entry = Spare.READY, event.entry
        self._failures = 0
        return self._advance(now_ms)

    def _on_spare_failed(self, event: ev.SpareFailed, now_ms: int) -> list[Effect]:
        """Create another after a while, if one is still wanted."""
        if self._spare is Spare.NONE:
            return []  # it failed while it was being dropped
        self._spare, self._spare_entry = Spare.NONE, None
        if self.current is not None and not self._draining:
            return []  # it was only prepared ahead
        if not self.unsent:
            return self._advance(now_ms)
        self._spare = Spare.CREATING
        return [ev.RunAgain(self._delay(), self._creation())]

    def _on_registered(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """The record lists the segment: give it its final name."""
        self._stored(event)
        assert self._registering is not None
        self._naming, self._registering = self._registering, None
        return [ev.NameSegment(self._naming)]

    def _on_register_refused(self, event: ev.RecordRefused, now_ms: int) -> list[Effect]:
        """A higher epoch fences; another's harmless touch is written over by compare."""
        assert self._storing is not None
        if event.record.epoch != self.epoch or event.record.owner != self.incarnation:
            return self._fence()
        return self._store(self._storing, event.revision)  # an administrator touched the key, not the ownership

    def _on_named(self, event: ev.SegmentNamed, now_ms: int) -> list[Effect]:
        """The segment may be written."""
        if self._naming is None or self._naming.name != event.name:
            return []  # its pipeline failed meanwhile
        self.current = OpenSegment(self._naming, self.config.index_interval_bytes, now_ms)
        self._naming = None
        self._failures = 0
        return [_WAKE] if self.unsent else self._advance(now_ms)

    def _on_naming_failed(self, event: ev.NamingFailed, now_ms: int) -> list[Effect]:
        """Try again: the name is registered."""
        if self._naming is None or self._naming.name != event.name:
            return []
        return [ev.RunAgain(self._delay(), ev.NameSegment(self._naming))]

    def _on_flushed(self, event: ev.Flushed, now_ms: int) -> list[Effect]:
        """Acknowledge what the flush covers, checkpoint by bytes, close a drained segment."""
        segment = self.current
        if segment is None or segment.entry.name != event.name:
            return []  # a late ack: this segment was given up, its tail is written again elsewhere (rule 6)
        done: list[Pending] = []
        inflight = self.inflight
        while inflight and inflight[0].end_position <= event.position:
            pending = inflight.popleft()
            batch = pending.batch
            segment.index.add(batch.base_offset, pending.start_position, batch.max_timestamp)
            if not segment.epochs:
                segment.epochs.append((self.epoch, batch.base_offset))
            if pending.producer is not None:
                self.producers.flushed(pending.producer)
            self.buffered_bytes -= batch.size
            done.append(pending)
        if not done:
            return []
        last = done[-1]
        segment.uncovered_bytes += last.end_position - segment.flushed
        segment.flushed = last.end_position
        if segment.dirty_since_ms < 0:
            segment.dirty_since_ms = now_ms
        self.high_watermark = last.batch.next_offset
        self._failures = 0
        effects: list[Effect] = [ev.Acknowledge(done)]
        if segment.uncovered_bytes >= self.broker.checkpoint_bytes:
            effects += self._checkpoint()
        if self._draining or self.state is State.MOVE:
            effects += self._advance(now_ms)
        elif self.unsent:
            effects.append(_WAKE)
        return effects

    def _close_current(self) -> list[Effect]:
        segment, self.current = self.current, None
        assert segment is not None
        assert not self.inflight
        self._draining = False
        return [ev.CloseSegment(segment.entry, self._leave(segment))]

    def _leave(self, segment: OpenSegment) -> Checkpoint | None:
        """Note that ``segment`` is written no more; its final checkpoint, None when it holds nothing."""
        name = segment.entry.name
        self._unclosed[name] = segment.entry
        self._note_flush_size(segment)
        if segment.flushed == 0:
            return None
        return self._checkpointer.close(
            name,
            segment.flushed,
            self.high_watermark,
            self.log_start,
            segment.index,
            segment.epochs,
            self.producers,
        )

    def _on_pipeline_failed(self, event: ev.PipelineFailed, now_ms: int) -> list[Effect]:
        """Rule 6: go on in a new file from the first byte not acknowledged; take the old one over behind."""
        if self._naming is not None and self._naming.name == event.name:
            entry, self._naming = self._naming, None
            self._unclosed[entry.name] = entry
            return [ev.SealSegment(entry, None), *self._advance(now_ms)]
        segment = self.current
        if segment is None or segment.entry.name != event.name:
            return []
        self.current = None
        self._draining = False
        for pending in reversed(self.inflight):
            pending.start_position = pending.end_position = pending.sent_ms = -1
            self.unsent.appendleft(pending)
        self.inflight.clear()
        return [ev.SealSegment(segment.entry, self._leave(segment)), *self._advance(now_ms)]

    def _on_closed(self, event: ev.SegmentClosed, now_ms: int) -> list[Effect]:
        """A left segment is closed and indexed: the next record need not list it."""
        del self._unclosed[event.entry.name]
        is_newest = self._closed is None or self._closed.name.order < event.entry.name.order
        if event.entry.length > 0 and is_newest:
            self._closed, self._indexed = event.entry, event.entry.name
        return self._advance(now_ms)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def full_checkpoint(self) -> Checkpoint | None:
        """All that is known and flushed, for a journal's snapshot; None before the first byte.

        After the end: what was true then.  A successor may need it until its own checkpoint is durable.
        """
        if self.state in TERMINAL:
            return self._final
        return self._checkpointer.full(self.current, self.high_watermark, self.log_start, self.producers)

    def _checkpoint(self) -> list[Effect]:
        checkpoint = self._checkpointer.next(self.current, self.high_watermark, self.log_start, self.producers)
        return [] if checkpoint is None else [ev.WriteCheckpoint(checkpoint)]

    def _on_covered(self, event: ev.CheckpointWritten, now_ms: int) -> list[Effect]:
        """A checkpoint is durable; write the one that was wanted meanwhile."""
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
        """When the next ``Tick`` is wanted; None when nothing waits for time."""
        segment = self.current
        if segment is None or self.state not in (State.WRITE, State.MOVE):
            return None
        times = []
        if not self._draining:
            times.append(segment.opened_ms + self.config.segment_ms)
            if not self.inflight and not self.unsent:
                times.append(segment.last_write_ms + self.broker.idle_close_ms)
        if segment.dirty_since_ms >= 0 and not self._checkpointer.is_under_way:
            times.append(segment.dirty_since_ms + self.broker.checkpoint_ms)
        if self.inflight:
            slow = self.inflight[0].sent_ms + self.broker.slow_flush_ms
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
        if self.inflight:
            age = now_ms - self.inflight[0].sent_ms
            is_due = now_ms - self._last_slow_ms >= self.broker.slow_roll_interval_ms
            if age >= self.broker.slow_flush_ms and is_due:
                self._last_slow_ms = now_ms
                effects.append(ev.Suspect(segment.entry.name, age))
        if self._draining:
            return effects
        is_old = now_ms - segment.opened_ms >= self.config.segment_ms
        if is_old and segment.position == 0:
            segment.opened_ms = now_ms  # empty: nothing to roll
            is_old = False
        is_idle = not self.inflight and not self.unsent
        if is_old or (is_idle and now_ms - segment.last_write_ms >= self.broker.idle_close_ms):
            self._draining = True
            effects += self._advance(now_ms)
        return effects

    def _on_idle_close(self, event: ev.IdleClose, now_ms: int) -> list[Effect]:
        """Close the segment if nothing is on its way."""
        if self.current is None or self.inflight or self.unsent:
            return []
        self._draining = True
        return self._advance(now_ms)

    def may_leave_slow(self, now_ms: int) -> bool:
        """Whether the open segment holds something and the last roll for slowness is long ago."""
        is_due = now_ms - self._last_slow_ms >= self.broker.slow_roll_interval_ms
        return self.current is not None and self.current.position > 0 and not self._draining and is_due

    def _on_storage_slow(self, event: ev.StorageSlow, now_ms: int) -> list[Effect]:
        """Roll: what is in flight will arrive, so this is no fail-over."""
        if not self.may_leave_slow(now_ms):
            return []
        self._last_slow_ms = now_ms
        self._draining = True
        return self._advance(now_ms)

    def _delay(self) -> int:
        """Doubling from ``retry_ms`` to ``retry_max_ms`` while nothing succeeds."""
        self._failures += 1
        return min(self.broker.retry_ms << min(self._failures - 1, 16), self.broker.retry_max_ms)

    # ---------------------------------------------------------------------------------------------------- the ends

    def _on_move(self, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
        """Accept nothing more; flush, close, release."""
        self.state = State.MOVE
        self._draining = self.current is not None and not self.unsent
        return [_WAKE, *self._advance(now_ms)] if self.current is not None and self.unsent else self._advance(now_ms)

    def _hand_over(self) -> list[Effect]:
        """Flushed, then closed, then covered, then released."""
        if self.unsent or self.inflight:
            return []
        if self.current is not None:
            self._draining = True
            return self._close_current()
        if self._spare is Spare.READY:
            return [*self._drop_spare(), *self._hand_over()]
        if self._spare is Spare.CREATING or self._registering or self._naming or self._unclosed:
            return []
        if self._storing is not None or self._checkpointer.is_under_way:
            return []
        return self._store(replace(self._record(owner=""), is_settled=self._is_settled), self.revision)

    @property
    def _is_settled(self) -> bool:
        """Whether the last segment's index holds all that a checkpoint would: the log start is that of its closing."""
        last, closed = self._checkpointer.last, self._closed
        if last is None or closed is None:
            return False
        return last.segment == closed.name == self._indexed and last.log_start == self.log_start

    def _on_released(self, event: ev.RecordStored, now_ms: int) -> list[Effect]:
        """Handed over (or the last segment of the move was registered)."""
        if self._registering is not None:
            return self._on_registered(event, now_ms)
        self._stored(event)
        self._final = self.full_checkpoint()
        self.state = State.CLOSED
        return []

    def _on_give_up(self, event: ev.MoveRequested, now_ms: int) -> list[Effect]:
        """Asked to go before anything was accepted: whoever comes next fences as for any predecessor."""
        self.state = State.CLOSED
        return [ev.Abort()]

    def _on_epoch_raised(self, event: ev.EpochRaised, now_ms: int) -> list[Effect]:
        """Somebody else owns the partition: answer everything that waits, drop the files."""
        return self._fence() if event.epoch > self.epoch else []

    def _fence(self) -> list[Effect]:
        self._final = self.full_checkpoint()
        self.state = State.FENCED
        sent = (*self.inflight, *(pending for pending in self.unsent if pending.was_sent))
        unsent = tuple(pending for pending in self.unsent if not pending.was_sent)
        self.inflight.clear()
        self.unsent.clear()
        self.buffered_bytes = 0
        self.current = None
        reason = "another broker owns the partition"
        # By NOT_LEADER_OR_FOLLOWER a proxy knows that a batch was certainly not accepted, and sends it again.  What was
        # sent may be in the file, and the new owner keeps what it finds there.
        rejects = [
            ev.Reject(batches, code, reason)
            for batches, code in (
                (sent, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
                (unsent, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            )
            if batches
        ]
        return [*rejects, ev.Abort()]
