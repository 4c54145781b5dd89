"""The log of one ownership, its state and the steps of it: pure.

The transitions (``takeover_transitions``, ``segment_transitions``, ``release_transitions``) decide which steps an event
causes. ``broker.partition.machine.PartitionMachine`` adds the table of transitions. Other modules read this state and
never write it: a step keeps together the attributes of one invariant.

Offsets: ``log_start <= last_stable_offset <= high_watermark <= next_offset``. The batches between the last two are in
``batches``. The open segment is ``current``. ``broker.partition.segment_roll`` prepares the next segment, and
``broker.partition.unclosed_segments`` has the earlier ones.

Times are in milliseconds: ``wall_ms`` is wall-clock time, which records are stamped with; ``now_ms`` is monotonic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bmq.broker import events as ev
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.events import Effect
from bmq.broker.partition.batches import Batches, Duplicate
from bmq.broker.partition.checkpointer import Checkpointer, OpenSegment
from bmq.broker.partition.found_copies import FoundCopies
from bmq.broker.partition.marker_rules import changes_nothing, is_to_be_written
from bmq.broker.partition.pipeline_watch import PipelineWatch
from bmq.broker.partition.predecessor import Predecessor
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.segment_roll import SegmentRoll
from bmq.broker.partition.shortage import Shortage
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.broker.partition.unclosed_segments import UnclosedSegments
from bmq.broker.partition.unindexed_aborted import UnindexedAborted
from bmq.broker.pending import Pending
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, Batch
from bmq.core.records.control import TransactionMarker, marker_batch
from bmq.meta.ownership import PartitionRecord, SegmentEntry, Swap
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.transactions import NOTHING_OPEN

NO_OFFSET = -1
"""The offset of a marker without effect, which is in no file."""
_OF_TRANSACTIONS = TRANSACTIONAL | CONTROL


class OwnedLog:
    """One owner's view of its log; see the module's docstring. Single-threaded, never awaits."""

    def __init__(self, key: PartitionKey, incarnation: str, config: LogConfig, broker: BrokerConfig) -> None:
        self.key: Final = key
        self.incarnation: Final = incarnation
        self.broker: Final = broker
        self.batches: Final = Batches()
        self.next_segment: Final = SegmentRoll()
        self.unclosed: Final = UnclosedSegments()
        self.unindexed: Final = UnindexedAborted()
        self.checkpointer: Final = Checkpointer(key, broker)
        self.predecessor: Final = Predecessor(broker.unreadable_ms)
        self.pipeline_watch: Final = PipelineWatch(broker)
        self.shortage: Final = Shortage(broker.short_hold_ms)
        self.found_copies: Final = FoundCopies()
        self._config = config
        self._state = PartitionState.START
        self._epoch = 0
        self._revision = 0
        self._record = PartitionRecord()
        self._storing: PartitionRecord | None = None
        self._swap: Swap | None = None
        self._is_released = False
        self._log_start = 0
        self._high_watermark = 0
        self._next_offset = 0
        self._producers = ProducerTable()
        self._current: OpenSegment | None = None
        self._is_draining = False
        self._wants_empty = False
        self._failures = 0
        self._is_folder_known = False
        """True once no file was found that the record should list."""
        self._has_indexed_names = False
        self._offline_reason = ""
        self._final_checkpoint: Checkpoint | None = None
        """In a terminal state: the full checkpoint of the moment when it ended."""

    def __repr__(self) -> str:
        segment = self._current
        current = f"{segment.entry.name}@{segment.flushed}/{segment.position}" if segment else "-"
        return (
            f"<{type(self).__name__} {self.key} {self._state.name} epoch={self._epoch}"
            f" [{self._log_start}, {self._high_watermark}, {self._next_offset})"
            f" {current} {self.batches!r} {self.next_segment!r} {self.unclosed!r}>"
        )

    # ----------------------------------------------------------------------------------------------- its state, read

    @property
    def config(self) -> LogConfig:
        """The settings of the topic."""
        return self._config

    @property
    def state(self) -> PartitionState:
        """The state of the ownership."""
        return self._state

    @property
    def epoch(self) -> int:
        """The epoch of the claim; 0 before it is stored."""
        return self._epoch

    @property
    def record(self) -> PartitionRecord:
        """The record as this process stored it last; empty before its claim is stored."""
        return self._record

    @property
    def revision(self) -> int:
        """The revision of ``record``, or of the record that ``storing`` is written over."""
        return self._revision

    @property
    def storing(self) -> PartitionRecord | None:
        """The record whose write has no result yet."""
        return self._storing

    @property
    def swap(self) -> Swap | None:
        """The swap of the next record; ``record`` has it too, or is about to."""
        return self._swap

    @property
    def is_released(self) -> bool:
        """True once the stored record says that this process has released the partition."""
        return self._is_released

    @property
    def log_start(self) -> int:
        """The lowest offset that may be read."""
        return self._log_start

    @property
    def high_watermark(self) -> int:
        """The end of what is flushed."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The end of what is flushed and decided: where the oldest open transaction begins, else the high watermark.

        An open transaction that begins below the log start ends it there, as in Kafka.
        """
        first_open = self._producers.transactions.first_open
        return self._high_watermark if first_open == NOTHING_OPEN else max(first_open, self._log_start)

    @property
    def next_offset(self) -> int:
        """The offset of the next batch."""
        return self._next_offset

    @property
    def producers(self) -> ProducerTable:
        """The producers of the log."""
        return self._producers

    @property
    def current(self) -> OpenSegment | None:
        """The open segment; None if no segment is open."""
        return self._current

    @property
    def is_draining(self) -> bool:
        """True while the open segment takes no more batches, and closes once those it has are flushed."""
        return self._is_draining

    @property
    def wants_empty(self) -> bool:
        """True from the request for an empty segment until it is closed, a batch waits for it, or it fails."""
        return self._wants_empty

    @property
    def is_first_failure(self) -> bool:
        """True while no attempt has failed since something succeeded."""
        return self._failures == 0

    @property
    def offline_reason(self) -> str:
        """The reason why the partition is OFFLINE; "" in other states."""
        return self._offline_reason

    # ------------------------------------------------------------------------------------------ the produce path

    def accept(self, batch: Batch, wall_ms: int, copies: int | None = 1) -> Pending | Duplicate:
        """Give a batch its offsets, and queue it.

        The batch was checked, or is this broker's own: then it may be a control batch, and of any size. Its bytes are
        writable, and stay with the partition. ``copies``: datanodes that hold the batch, at least, when it is
        acknowledged; None: as many as min.insync.replicas. Returns a ``Duplicate`` for a repeated batch. Raises
        RequestError with Kafka's code.
        """
        if self._state is not PartitionState.WRITE:
            raise self.refusal()
        if copies is None:
            copies = self._config.min_insync
        if copies > 1 and self.shortage.is_refusing:
            raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS, self.too_few)
        has_producer = batch.producer_id != NO_PRODUCER_ID
        if has_producer:
            kept = self._producers.find_duplicate(batch)
            if kept is not None:
                pending = self._find(kept.base_offset)
                if copies > 1:
                    self.found_copies.check(kept, pending, self._log_start, copies)
                return Duplicate(kept.base_offset, pending, kept.timestamp)
            self._producers.check(batch)
        if self._config.rules.log_append_time:
            batch.set_append_time(wall_ms)
        batch.assign(self._next_offset, self._epoch)
        pending = Pending(batch, self._producers.append(batch, wall_ms) if has_producer else None, copies)
        self._next_offset = batch.next_offset
        self.batches.add(pending)
        return pending

    def end_transaction(self, marker: TransactionMarker, wall_ms: int) -> Pending | Duplicate:
        """Append a coordinator's marker, flushed on as many datanodes as min.insync.replicas asks for.

        Returns a ``Duplicate`` if the marker is repeated or late (``broker.partition.marker_rules``); ``pending`` is
        then the producer's last marker, until its flush. Meanwhile a marker without effect is not written either, so
        repetitions do not pile up on slow storage. Raises RequestError with Kafka's code.
        """
        if self._state is not PartitionState.WRITE:
            raise self.refusal()
        state = self._producers.latest(marker.producer_id)
        is_needed = is_to_be_written(state, marker)
        if not is_needed or changes_nothing(state, marker):
            waiting = self._waiting_marker(marker.producer_id)
            if waiting is not None:
                return Duplicate(waiting.batch.base_offset, waiting, waiting.batch.max_timestamp)
            if not is_needed:
                return Duplicate(NO_OFFSET, None, wall_ms)
        return self.accept(Batch(memoryview(marker_batch(marker, wall_ms))), wall_ms, None)

    def _waiting_marker(self, producer_id: int) -> Pending | None:
        """Return the producer's last marker before its flush; None if no marker waits."""
        if self._producers.is_flushed(producer_id):
            return None
        for queue in (self.batches.unsent, self.batches.inflight):
            for pending in reversed(queue):
                if pending.batch.producer_id == producer_id and pending.batch.attributes & CONTROL:
                    return pending
        return None

    def _find(self, base_offset: int) -> Pending | None:
        return None if base_offset < self._high_watermark else self.batches.find(base_offset)

    def refusal(self) -> RequestError:
        """Return the error for a request to a partition that is not in WRITE."""
        if self._state is PartitionState.OFFLINE:
            text = f"the partition is OFFLINE, see `bmq segment repair`: {self._offline_reason}"
            return RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the partition is not open here: {self._state.name}")

    # ----------------------------------------------------------------------------------------------- the record

    def next_record(self, *opened: SegmentEntry, owner: str | None = None) -> PartitionRecord:
        """Return the record to store: it lists the newest closed segment, all not yet closed, and those ``opened``."""
        return PartitionRecord(
            epoch=self._epoch,
            owner=self.incarnation if owner is None else owner,
            segments=self.unclosed.listed(*opened),
            journals=(self.incarnation,),
            last=max((self._record.last_registered, *(entry.name.registration for entry in opened))),
            swap=self._swap,
        )

    def store(self, record: PartitionRecord, revision: int) -> list[Effect]:
        """Return the effect that writes the record over revision ``revision``."""
        self._storing, self._revision = record, revision
        return [ev.StoreRecord(record, revision)]

    def stored(self, event: ev.RecordStored) -> None:
        """Note that the write has succeeded."""
        assert event.record == self._storing
        self._storing = None
        self._record, self._revision = event.record, event.revision
        self._has_indexed_names &= self.has_old_names  # an index that came during the write left its name there

    def store_swap(self) -> list[Effect]:
        """Return the effect that writes the record as it is, but with the wanted swap."""
        return self.store(replace(self._record, swap=self._swap), self._revision)

    def drop_old_names(self) -> list[Effect]:
        """Return the effect that writes the record without old names."""
        segments = self.unclosed.still_needed(self._record.segments)
        return self.store(replace(self._record, segments=segments), self._revision)

    @property
    def has_old_names(self) -> bool:
        """True if the stored record names closed segments before the newest: the next record names none of them."""
        return len(self.unclosed.still_needed(self._record.segments)) < len(self._record.segments)

    def indexed(self, name: SegmentName) -> None:
        """Note that neither the record nor this owner's memory need stand in for the index of a segment any more."""
        self.unclosed.indexed(name)
        self.unindexed.indexed(name)
        self._has_indexed_names = True

    @property
    def has_indexed_names(self) -> bool:
        """True if indexes that a takeover left to be written were written since the record was stored."""
        return self._has_indexed_names

    def want_swap(self, swap: Swap | None) -> None:
        """Let the next record have this swap."""
        self._swap = swap

    # ---------------------------------------------------------------------------------------------------- the takeover

    def claimed(self, event: ev.RecordStored) -> None:
        """Note that the claim is stored: this broker owns the partition, under the claim's epoch."""
        self.stored(event)
        self._failures = 0
        self._epoch = event.record.epoch
        self._swap = event.record.swap

    def fence_predecessor(self) -> None:
        """Begin with the fence of the predecessor's segments, or begin with it again."""
        self._state = PartitionState.FENCE

    def recover(self) -> None:
        """Begin to read the log: the predecessor's segments are fenced."""
        self._state = PartitionState.RECOVER

    def adopt(self, event: ev.LogRecovered) -> None:
        """Take over the end, the start, the last segment and the producers of the log that was recovered."""
        recovered, base = event.recovered, event.checkpoint
        self._failures = 0
        self._is_folder_known = True
        self._high_watermark = self._next_offset = recovered.end_offset
        self._log_start = min(event.log_start, recovered.end_offset)
        self._producers = ProducerTable(event.producers)
        self.found_copies.doubt(recovered.end_offset)
        for segment in recovered.segments:
            self.unindexed.found(segment.name, segment.aborted, lacks_index=segment.name in event.unindexed)
        read = {segment.name: segment for segment in recovered.segments}
        for entry in self._record.segments:
            if entry.name in event.unindexed:
                found = read.get(entry.name)  # None: a checkpoint of a later segment covers it
                self.unclosed.lacks_index(entry.closed(found.length, found.end_offset) if found is not None else entry)
        if recovered.segments:
            last = recovered.segments[-1]
            self._found(last.name, last.length, recovered.end_offset)
            self.checkpointer.close(
                last.name,
                last.length,
                recovered.end_offset,
                self._log_start,
                last.index,
                last.epochs,
                last.aborted,
                self._producers,
            )
            return
        if base is not None:
            self.unindexed.found(base.segment, base.aborted)
        final = self._closed_empty(base) or base
        if final is not None:
            self._found(final.segment, final.position, final.end_offset)
            self.checkpointer.adopt(final)

    def _closed_empty(self, base: Checkpoint | None) -> Checkpoint | None:
        """Return the final checkpoint of the empty segment that ends the log, if ``base`` is of a segment before it.

        The index of the empty segment is lost then. The record does not get the name of the segment before: a round may
        have cleaned this segment, and its file may be gone.
        """
        last = max(self._record.segments, key=lambda entry: entry.name.order)
        if last.length or last.end_offset != self._high_watermark:
            return None
        if base is not None and base.segment.order >= last.name.order:
            return None
        return Checkpoint(
            key=self.key,
            segment=last.name,
            position=0,
            end_offset=self._high_watermark,
            log_start=self._log_start,
            is_closed=True,
        )

    def _found(self, name: SegmentName, length: int, end_offset: int) -> None:
        self.unclosed.found(self._record.segments, name, length, end_offset)
        self.next_segment.found(length)

    def open(self) -> None:
        """Accept batches from now on."""
        self._state = PartitionState.WRITE

    # --------------------------------------------------------------------------------- WRITE and MOVE: the segments

    @property
    def spare(self) -> SegmentEntry | None:
        """The open file that has no final name yet and no batches; None if there is none."""
        return self.next_segment.unused

    @property
    def unchecked_after(self) -> tuple[int, int] | None:
        """The last registration of a log whose folder was not looked at yet; None once no file was found behind it."""
        return None if self._is_folder_known else self._record.last_registered

    @property
    def is_all_closed(self) -> bool:
        """True while no segment is written, and the last one is closed and indexed."""
        return self._current is None and not self.unclosed

    @property
    def open_names(self) -> set[SegmentName]:
        """Names of the segments whose files may be open: this owner writes them, names them, or closes them.

        In WRITE no other file is open, whatever the record says: the takeover has fenced the files of earlier owners.
        """
        opened = (self._current.entry if self._current is not None else None, self.next_segment.being_named)
        return {*self.unclosed.names, *(entry.name for entry in opened if entry is not None)}

    @property
    def is_ending(self) -> bool:
        """True while the open segment drains, or the partition is handed over: each flush may bring the next step."""
        return self._is_draining or self._state is PartitionState.MOVE

    def spare_created(self, event: ev.SpareReady) -> None:
        """Note that the next segment's file exists, on ``event.copies`` datanodes."""
        self.next_segment.ready(event.entry, event.copies, event.block_bytes)
        self._is_folder_known = True
        if event.copies >= self._config.min_insync:
            self.shortage.end()

    def open_segment(self, entry: SegmentEntry, now_ms: int) -> None:
        """Open the next segment for batches: its file has the final name."""
        following = self.next_segment
        interval_bytes = self._config.index_interval_bytes
        self._current = OpenSegment(entry, following.block_bytes, interval_bytes, now_ms, following.copies)
        self.unindexed.opened(entry.name, self._current.aborted)
        following.named()

    def send(self, bytes_max: int, now_ms: int) -> tuple[list[Pending], bool]:
        """Move queued batches onto the open segment: at least one batch, else at most ``bytes_max`` bytes.

        Returns the batches, none if no segment takes any now, and whether the next segment is wanted.
        """
        segment = self._current
        if segment is None or self._is_draining:
            return [], False
        roll_bytes = min(self._config.segment_bytes, segment.block_bytes)
        taken, self._is_draining = self.batches.send(segment, bytes_max, roll_bytes, now_ms)
        return taken, self._is_draining or segment.position * 8 > roll_bytes * 7

    @property
    def is_next_wanted(self) -> bool:
        """True if batches wait for the next segment, or it will be needed soon.

        Opening it may take longer than the room that is left in the open segment lasts.
        """
        segment = self._current
        if segment is None or self._is_draining:
            return bool(self.batches.unsent)
        return segment.position * 8 > min(self._config.segment_bytes, segment.block_bytes) * 7

    def flushed(self, segment: OpenSegment, position: int, now_ms: int) -> list[Pending]:
        """Note that storage has the open segment up to ``position``; return the batches flushed by it."""
        done = self.batches.flushed(position)
        if not done:
            return done
        for pending in done:
            batch = pending.batch
            segment.index.add(batch.base_offset, pending.start_position, batch.max_timestamp)
            if not segment.epochs:
                segment.epochs.append((self._epoch, batch.base_offset))
            if pending.producer is not None:
                self._producers.flushed(pending.producer)
                if batch.attributes & _OF_TRANSACTIONS:
                    transactions = self._producers.transactions
                    transactions.pass_batch(batch)
                    segment.aborted.extend(transactions.take_aborted())
        last = done[-1]
        segment.uncovered_bytes += last.end_position - segment.flushed
        segment.flushed = last.end_position
        if segment.dirty_since_ms < 0:
            segment.dirty_since_ms = now_ms
        self._high_watermark = last.batch.next_offset
        if segment.copies < self._config.min_insync:
            self.found_copies.doubt(self._high_watermark)
        self._failures = 0
        return done

    def want_empty(self, *, wanted: bool = True) -> None:
        """Let the next segment be opened without a batch, to be closed empty; or end this request."""
        self._wants_empty = wanted

    def drain(self) -> None:
        """Let the open segment take no more batches: it is closed once its batches are flushed."""
        assert self._current is not None
        self._is_draining = True

    def close_segment(self) -> Effect:
        """Leave the open segment, whose batches are all flushed; return the effect that closes its file."""
        segment, self._current = self._current, None
        assert segment is not None
        assert not self.batches.inflight
        self._is_draining = False
        index_may_wait = segment.is_covered or self.unclosed.is_empty
        ends_log, self._wants_empty = self._wants_empty and segment.position == 0, False
        return ev.CloseSegment(segment.entry, self._leave(segment, ends_log=ends_log), index_may_wait)

    def give_up_segment(self) -> Effect:
        """Leave the open segment, whose file broke; return the effect that takes the file over.

        The batches in flight go back to the front of the queue, for the next segment (rule 6).
        """
        segment, self._current = self._current, None
        assert segment is not None
        self._is_draining = False
        self.batches.put_back()
        return ev.SealSegment(segment.entry, self._leave(segment))

    def _leave(self, segment: OpenSegment, *, ends_log: bool = False) -> Checkpoint | None:
        """Note that ``segment`` is not written any more; return its final checkpoint.

        Returns None if nothing in it was flushed, unless it ``ends_log``: then a successor begins at its index.
        """
        self.unclosed.leave(segment.entry, ends_log=ends_log)
        self.next_segment.learn(segment)
        if segment.flushed == 0 and not ends_log:
            return None
        return self.checkpointer.close(
            segment.entry.name,
            segment.flushed,
            self._high_watermark,
            self._log_start,
            segment.index,
            segment.epochs,
            segment.aborted,
            self._producers,
        )

    def may_leave_slow(self, now_ms: int) -> bool:
        """Return whether the open segment holds something and the last roll for slowness was long ago."""
        segment = self._current
        is_filling = segment is not None and segment.position > 0 and not self._is_draining
        return is_filling and self.pipeline_watch.may_roll(now_ms)

    def delay(self) -> int:
        """Return the next pause of ``retry_ms``, which grows while nothing is flushed.

        Before WRITE, a step that succeeds resets it.
        """
        self._failures += 1
        return self.broker.retry_ms.pause(self._failures)

    # ----------------------------------------------------------------------------------------- min.insync.replicas

    @property
    def is_short(self) -> bool:
        """True while storage, as far as is known, gives fewer datanodes than min.insync.replicas."""
        return self.shortage.is_noticed

    @property
    def too_few(self) -> str:
        """The message of an error that refuses a batch for want of datanodes."""
        return (
            f"storage gives a new segment fewer datanodes than min.insync.replicas={self._config.min_insync} asks for"
        )

    def take_back(self, unsent: Sequence[Pending]) -> None:
        """Take back the last batches, which left no trace in the log: the next batch gets the offset of the first."""
        self.batches.drop_last(len(unsent))
        self._next_offset = unsent[0].batch.base_offset
        kept = (*self.batches.inflight, *self.batches.unsent)
        self._producers.take_back(pending.producer for pending in kept if pending.producer is not None)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply other settings.

        If min.insync.replicas falls, batches that wait for copies wait for fewer. If it rises, batches that were
        flushed before are counted before a repetition of them is acknowledged.
        """
        if config.min_insync > self._config.min_insync:
            self.found_copies.doubt(self._high_watermark)
        if config.min_insync < self._config.min_insync:
            self.shortage.end()
            for pending in self.batches.unsent:
                pending.copies = min(pending.copies, config.min_insync)
        self._config = config

    # ------------------------------------------------------------------------------------------------ checkpoints

    def full_checkpoint(self) -> Checkpoint | None:
        """Return a checkpoint of everything that is flushed, for a journal's snapshot; None before the first byte.

        In a terminal state: the one of the moment when it ended. A successor may need it until its own is durable.
        """
        if self._state in TERMINAL:
            return self._final_checkpoint
        return self.checkpointer.full(self._current, self._high_watermark, self._log_start, self._producers)

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start, which never falls (rule 10)."""
        assert self._log_start < offset <= self._high_watermark
        self._log_start = offset

    def checkpoint(self) -> list[Effect]:
        """Return the effect that writes a checkpoint; none while another is under way: the next one follows it."""
        checkpoint = self.checkpointer.next(self._current, self._high_watermark, self._log_start, self._producers)
        return [] if checkpoint is None else [ev.WriteCheckpoint(checkpoint)]

    # ---------------------------------------------------------------------------------------------------- the ends

    def begin_move(self) -> None:
        """Accept no more batches; the open segment drains once no batch waits."""
        self._state = PartitionState.MOVE
        self._wants_empty = False
        self._is_draining = self._current is not None and not self.batches.unsent

    def released(self, event: ev.RecordStored) -> None:
        """Note that the record names no owner any more: the partition is handed over."""
        self.stored(event)
        self._final_checkpoint = self.full_checkpoint()
        self._state = PartitionState.CLOSED
        self._is_released = True

    def give_up(self) -> None:
        """End before anything was accepted: the predecessor's checkpoint stays the last one."""
        self._state = PartitionState.CLOSED

    def go_offline(self, reason: str) -> Effect:
        """Stop, and wait for an operator; return the effect that reports the reason."""
        self._final_checkpoint = self.full_checkpoint()
        self._state = PartitionState.OFFLINE
        self._offline_reason = reason
        return ev.ReportOffline(reason)

    def fence(self) -> list[Effect]:
        """Stop: another broker owns the partition, or its record was deleted."""
        self._final_checkpoint = self.full_checkpoint()
        self._state = PartitionState.FENCED
        return self.refuse_all("another broker owns the partition, or its record was deleted")

    def refuse_all(self, reason: str) -> list[Effect]:
        """Refuse every batch that waits, and abort the files."""
        sent, unsent = self.batches.drop()
        self._current = None
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
