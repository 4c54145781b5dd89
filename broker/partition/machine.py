"""The partition: one owner's view of its log, without I/O.

``START -> FENCE -> RECOVER -> WRITE -> (MOVE | FENCED | CLOSED | OFFLINE)``. Events in, effects out, time as an
argument. ``broker.partition.transitions`` has the table, a function for each (state, event) pair; the functions are in
``takeover_transitions``, ``segment_transitions`` and ``release_transitions``. They take an ``OwnedLog``: the state, and
the steps that change it. ``PartitionMachine`` adds the table to it. So imports go one way: machine, table, transitions,
log. The driver (``broker.partition.driver``) performs the effects and posts their results as events. Three promises
are kept in these modules and nowhere else (docs/design/rules.md):

* Nothing is accepted before the predecessor is fenced, its tail is read and a checkpoint of it is durable (rule 4).
* A batch is acknowledged when the current segment's pipeline has acknowledged its bytes, in order; an ack of any other
  segment is late and means nothing (rule 6).
* The next segment is registered when everything before its base is flushed, and written when it has its final name
  (rules 3 and 5).
"""

from __future__ import annotations

from bmq.broker import events as ev
from bmq.broker.events import Effect, Event
from bmq.broker.partition.owned_log import OwnedLog
from bmq.broker.partition.segment_steps import advance
from bmq.broker.partition.states import PartitionState
from bmq.broker.partition.transitions import TABLE
from bmq.broker.pending import Pending
from bmq.core.records.batch import Batch, check_batch
from bmq.core.transitions import Cell


class PartitionMachine(OwnedLog):
    """The state machine of one ownership; see the module's docstring. Single-threaded, never awaits."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order."""
        before = self._state
        cell = TABLE[before, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {before.name}"
            return []
        effects = cell(self, event, now_ms)
        if self._state is not before:
            effects.append(ev.StateChanged(self._state.name))
        return effects

    def check(self, batch: Batch) -> None:
        """Check that the partition accepts batches, and the header of a client's batch.

        Raises RequestError with Kafka's code if not.
        """
        if self._state is not PartitionState.WRITE:
            raise self.refusal()
        check_batch(batch, self._config.rules)

    def after_append(self, now_ms: int) -> list[Effect]:
        """Return the effects for queued batches: a turn of the open pipeline, or a segment.

        Once per loop turn is enough.
        """
        if self._current is not None and not self._is_draining:
            return [ev.WAKE]
        return advance(self)

    def take(self, bytes_max: int, now_ms: int) -> tuple[list[Pending], list[Effect]]:
        """Move queued batches onto the open segment: at least one batch, else at most ``bytes_max`` bytes.

        Returns the batches, none if no segment takes any now, and effects.
        """
        taken, is_next_wanted = self.send(bytes_max, now_ms)
        return taken, advance(self) if is_next_wanted else []

    def deadline_ms(self) -> int | None:
        """Return the monotonic time of the next ``Tick``; None if nothing waits for time."""
        segment = self._current
        if segment is None or self._state not in (PartitionState.WRITE, PartitionState.MOVE):
            return None
        times = []
        if not self._is_draining:
            times.append(segment.opened_ms + self._config.segment_ms)
            if self.batches.is_idle:
                times.append(segment.last_write_ms + self.broker.idle_close_ms)
        if segment.dirty_since_ms >= 0 and not self.checkpointer.is_under_way:
            times.append(segment.dirty_since_ms + self.broker.checkpoint_ms)
        if self.batches.inflight:
            times.append(self.pipeline_watch.due_ms(self.batches.inflight[0].sent_ms))
        return min(times, default=None)
