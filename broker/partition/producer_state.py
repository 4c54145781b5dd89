"""Idempotent producers of one partition, as Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo`` keep them.

Two views of one producer: what has been *appended* (against which the next batch is checked) and what has been
*flushed* (which a checkpoint may hold, rule 9).  States are immutable and each accepted batch carries the state that
follows it, so that "flushed" is moving one reference when its flush is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import NO_PRODUCER_ID, Batch, increment_sequence
from bmq.storage.checkpoint import ProducerBatch, ProducerState

BATCHES_KEPT = 5  # Kafka's: as many as a client may have in flight


class ProducerTable:
    """Producer states by id, the flushed ones in the order of their last batches.

    Internal producers (negative ids below -1) never expire.
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
        """The state that the next batch of this producer is checked against."""
        return self._appended.get(producer_id) or self._flushed.get(producer_id)

    def find_duplicate(self, batch: Batch) -> ProducerBatch | None:
        """The kept batch that ``batch`` repeats: same epoch, same first and last sequence."""
        state = self.latest(batch.producer_id)
        if state is None or state.epoch != batch.producer_epoch:
            return None
        for kept in state.batches:
            if kept.base_sequence == batch.base_sequence and kept.last_delta == batch.last_offset_delta:
                return kept
        return None

    def check(self, batch: Batch) -> None:
        """RequestError INVALID_PRODUCER_EPOCH for a fenced epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap.

        A producer that is not known may begin anywhere: its state may have expired, as in Kafka.
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
        """Note an accepted, numbered batch; the state to hand to ``flushed`` later.  None without a producer id."""
        if batch.producer_id == NO_PRODUCER_ID:
            return None
        state = advance(self.latest(batch.producer_id), batch, wall_ms)
        self._appended[batch.producer_id] = state
        return state

    def take_back(self, kept: Iterable[ProducerState]) -> None:
        """Accepted batches were dropped: only those that led to ``kept``, oldest first, are on their way yet."""
        self._appended = {state.producer_id: state for state in kept}

    def flushed(self, state: ProducerState) -> None:
        """The batch that led to ``state`` is flushed, and so is everything before it."""
        self._flushed.pop(state.producer_id, None)  # to the end: the first is the one not heard of for longest
        self._flushed[state.producer_id] = self._changed[state.producer_id] = state
        if self._appended.get(state.producer_id) is state:
            del self._appended[state.producer_id]

    def replay(self, batch: Batch, wall_ms: int) -> None:
        """A batch found on storage: flushed, without a check.  As far as we know its producer was heard of now."""
        if batch.producer_id != NO_PRODUCER_ID and not batch.is_control:
            self.flushed(advance(self.latest(batch.producer_id), batch, wall_ms))

    def snapshot(self) -> tuple[ProducerState, ...]:
        """All flushed states."""
        return tuple(self._flushed.values())

    def take_changes(self) -> tuple[ProducerState, ...]:
        """Return the flushed states that changed since the last call."""
        changed, self._changed = self._changed, {}
        return tuple(changed.values())

    def expire(self, before_ms: int) -> int:
        """Forget producers whose last batch is older (``producer.id.expiration.ms``).  Returns how many.

        Looks at those only, whatever the number of producers.  One whose time lies behind a clock that was set back is
        found once those heard of before it are gone.
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
    """The state after ``batch``, heard at ``wall_ms``.  A new epoch begins with an empty list of batches.

    Expiry counts from when we heard of the producer.  Kafka counts from its records' timestamps, and forgets one that
    writes old data (a backfill) while it is writing.
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
