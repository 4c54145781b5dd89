"""Idempotent producers of one partition, as in Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo``.

A producer has two states. Its next batch is checked against the *appended* state; a checkpoint may hold only the
*flushed* state (rule 9). States are immutable, and each accepted batch carries the state that follows it. So a batch is
marked as flushed by moving one reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import NO_PRODUCER_ID, Batch, increment_sequence
from bmq.storage.checkpoint import ProducerBatch, ProducerState

BATCHES_KEPT = 5  # as in Kafka: the most requests that an idempotent client has in flight


class ProducerTable:
    """Producer states by producer id; the flushed ones in the order of their last batches.

    Internal producers (ids below -1) never expire.
    """

    __slots__ = ("_appended", "_changed", "_flushed")

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        oldest_first = sorted(states, key=attrgetter("last_timestamp"))
        self._flushed: dict[int, ProducerState] = {state.producer_id: state for state in oldest_first}
        self._appended: dict[int, ProducerState] = {}
        self._changed: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._flushed)

    def latest(self, producer_id: int) -> ProducerState | None:
        """Return the state that the producer's next batch is checked against; None if the producer is unknown."""
        return self._appended.get(producer_id) or self._flushed.get(producer_id)

    def find_duplicate(self, batch: Batch) -> ProducerBatch | None:
        """Return the kept batch that ``batch`` repeats (same epoch, first and last sequence); None if it is new."""
        state = self.latest(batch.producer_id)
        if state is None or state.epoch != batch.producer_epoch:
            return None
        for kept in state.batches:
            if kept.base_sequence == batch.base_sequence and kept.last_delta == batch.last_offset_delta:
                return kept
        return None

    def check(self, batch: Batch) -> None:
        """Check a batch's producer epoch and sequence.

        Raises RequestError: INVALID_PRODUCER_EPOCH for a fenced epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. An
        unknown producer may begin with any sequence, since its state may have expired, as in Kafka.
        """
        state = self.latest(batch.producer_id)
        if state is None:
            return
        if batch.producer_epoch < state.epoch:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} sent epoch {batch.producer_epoch}, current is {state.epoch}",
            )
        if batch.producer_epoch > state.epoch:
            expected = 0
        elif state.batches:
            last = state.batches[-1]
            expected = increment_sequence(last.base_sequence, last.last_delta + 1)
        else:
            return
        if batch.base_sequence != expected:
            raise RequestError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} epoch {batch.producer_epoch} sent sequence {batch.base_sequence},"
                f" expected {expected}",
            )

    def append(self, batch: Batch, wall_ms: int) -> ProducerState | None:
        """Note an accepted, numbered batch; return the state for ``flushed`` later, None without a producer id."""
        if batch.producer_id == NO_PRODUCER_ID:
            return None
        state = advance(self.latest(batch.producer_id), batch, wall_ms)
        self._appended[batch.producer_id] = state
        return state

    def take_back(self, kept: Iterable[ProducerState]) -> None:
        """Reset the appended states to ``kept``, oldest first: the batches behind them were dropped."""
        self._appended = {state.producer_id: state for state in kept}

    def flushed(self, state: ProducerState) -> None:
        """Note that the batch that led to ``state`` is flushed; so is everything before it."""
        self._flushed.pop(state.producer_id, None)  # moves it to the end: the first has been silent for longest
        self._flushed[state.producer_id] = self._changed[state.producer_id] = state
        if self._appended.get(state.producer_id) is state:
            del self._appended[state.producer_id]

    def replay(self, batch: Batch, wall_ms: int) -> None:
        """Note a batch that a takeover found on storage: flushed, unchecked. Its producer counts as active now."""
        if batch.producer_id != NO_PRODUCER_ID and not batch.is_control:
            self.flushed(advance(self.latest(batch.producer_id), batch, wall_ms))

    def snapshot(self) -> tuple[ProducerState, ...]:
        """Return all flushed states."""
        return tuple(self._flushed.values())

    def take_changes(self) -> tuple[ProducerState, ...]:
        """Return the flushed states that changed since the last call."""
        changed, self._changed = self._changed, {}
        return tuple(changed.values())

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch came before ``before_ms`` (``producer.id.expiration.ms``); return how many.

        Costs by the number of expired producers, not of all. If the clock was set back, a producer may be found later:
        once those that were active before it are gone.
        """
        old = []
        for pid, state in self._flushed.items():
            if state.last_timestamp >= before_ms:
                break
            if pid >= 0 and state.txn_start < 0 and pid not in self._appended:
                old.append(pid)
        for pid in old:
            del self._flushed[pid]
            self._changed.pop(pid, None)
        return len(old)


def advance(state: ProducerState | None, batch: Batch, wall_ms: int) -> ProducerState:
    """Return the producer's state after ``batch``, received at ``wall_ms``. A new epoch begins with no kept batches.

    Expiry counts from the time of receipt. Kafka counts from the records' timestamps, and so forgets a producer of old
    data (a backfill) while it is still writing.
    """
    kept = state.batches if state is not None and state.epoch == batch.producer_epoch else ()
    entry = ProducerBatch(batch.base_sequence, batch.base_offset, batch.last_offset_delta, batch.max_timestamp)
    return ProducerState(
        producer_id=batch.producer_id,
        epoch=batch.producer_epoch,
        coordinator_epoch=state.coordinator_epoch if state is not None else -1,
        last_timestamp=wall_ms,
        txn_start=-1,
        batches=(*kept[-(BATCHES_KEPT - 1) :], entry),
    )
