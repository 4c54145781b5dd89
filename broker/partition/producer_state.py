"""Producers of one partition, as in Kafka's ``ProducerStateManager`` and ``ProducerAppendInfo``.

A producer has two states. Its next batch is checked against the *appended* state; a checkpoint may hold only the
*flushed* state (rule 9). States are immutable, and each accepted batch carries the state that follows it. So a batch is
marked as flushed by moving one reference.

| batch of a producer                | its sequence             | its effect on the transaction             |
| ---------------------------------- | ------------------------ | ----------------------------------------- |
| plain                              | follows the last one     | is refused while a transaction is open    |
| transactional                      | follows the last one     | begins a transaction, unless one is open  |
| without sequence, of a coordinator | is not compared or kept  | as the batch's attribute says             |
| marker (COMMIT, ABORT)             | has none                 | ends the transaction; its epochs count on |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL, Batch, increment_sequence
from bmq.core.records.control import end_marker_of
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from bmq.storage.transactions import NOTHING_OPEN, Transactions

BATCHES_KEPT = 5  # as in Kafka: the most requests that an idempotent client has in flight
NO_EPOCH = -1  # the epoch of a producer of which nothing but its open transaction is known
NO_COORDINATOR = -1  # the coordinator epoch before a producer's first marker


class ProducerTable:
    """Producer states by producer id; the flushed ones in the order of their last batches.

    Internal producers (ids below -1) never expire, nor do producers with an open transaction. ``transactions`` are
    those of the flushed batches: ``replay`` passes each batch on; an owner passes a batch on when it is flushed.
    """

    __slots__ = ("_appended", "_changed", "_flushed", "transactions")

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        oldest_first = sorted(states, key=attrgetter("last_timestamp"))
        self._flushed: dict[int, ProducerState] = {state.producer_id: state for state in oldest_first}
        self._appended: dict[int, ProducerState] = {}
        self._changed: dict[int, ProducerState] = {}
        self.transactions = Transactions.of(oldest_first)

    def __len__(self) -> int:
        return len(self._flushed)

    def latest(self, producer_id: int) -> ProducerState | None:
        """Return the state that the producer's next batch is checked against; None if the producer is unknown."""
        return self._appended.get(producer_id) or self._flushed.get(producer_id)

    def is_flushed(self, producer_id: int) -> bool:
        """Return whether no batch of the producer waits for its flush."""
        return producer_id not in self._appended

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
        """Check a batch's producer epoch, its sequence, and that a producer stays in its transaction.

        Raises RequestError: INVALID_PRODUCER_EPOCH for a fenced epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap,
        INVALID_TXN_STATE for a plain batch inside a transaction, and for a marker what ``_check_marker`` raises. An
        unknown producer may begin with any sequence, since its state may have expired, as in Kafka.
        """
        state = self.latest(batch.producer_id)
        if batch.attributes & CONTROL:
            _check_marker(state, batch)
        if state is None:
            return
        if batch.producer_epoch < state.epoch:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} sent epoch {batch.producer_epoch}, current is {state.epoch}",
            )
        if state.txn_start != NOTHING_OPEN and not batch.is_transactional:
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} sent a plain batch, its transaction is open from {state.txn_start} on",
            )
        if batch.base_sequence == NO_SEQUENCE or state.epoch == NO_EPOCH:
            return  # of a coordinator, which repeats no batch; or of a producer whose last batches are missing
        if batch.producer_epoch == state.epoch and state.batches:
            last = state.batches[-1]
            expected = increment_sequence(last.base_sequence, last.last_delta + 1)
        else:
            expected = 0  # the epoch's first, as in Kafka also where only a marker has brought the epoch
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
        """Note a batch that a takeover found on storage: flushed, unchecked. Its producer counts as active now.

        The marker's version is not on storage: by the rule of versions 0 and 1 a marker of an equal epoch ends what is
        open. A marker that must not do so is never written. Raises FormatError if a control record cannot be read.
        """
        if batch.producer_id != NO_PRODUCER_ID:
            self.flushed(advance(self.latest(batch.producer_id), batch, wall_ms))
            self.transactions.pass_batch(batch)

    def forget_sequences(self) -> None:
        """Forget what missing batches may have changed, in a replay: all but open transactions.

        A transaction's producer keeps no epoch: as in Kafka (``NO_PRODUCER_EPOCH``), its next batch may have any.
        """
        self._flushed = {
            pid: replace(state, epoch=NO_EPOCH, batches=())
            for pid, state in self._flushed.items()
            if state.txn_start != NOTHING_OPEN
        }

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
            if pid >= 0 and state.txn_start == NOTHING_OPEN and pid not in self._appended:
                old.append(pid)
        for pid in old:
            del self._flushed[pid]
            self._changed.pop(pid, None)
        return len(old)


def advance(state: ProducerState | None, batch: Batch, wall_ms: int) -> ProducerState:
    """Return the producer's state after ``batch``, received at ``wall_ms``. A new epoch begins with no kept batches.

    Expiry counts from the time of receipt. Kafka counts from the records' timestamps, and so forgets a producer of old
    data (a backfill) while it is still writing. Raises FormatError if a control record cannot be read.
    """
    if batch.attributes & CONTROL:
        return _after_control(state, batch, wall_ms)
    kept = state.batches if state is not None and state.epoch == batch.producer_epoch else ()
    if batch.base_sequence != NO_SEQUENCE:
        entry = ProducerBatch(batch.base_sequence, batch.base_offset, batch.last_offset_delta, batch.max_timestamp)
        kept = (*kept[-(BATCHES_KEPT - 1) :], entry)
    txn_start = state.txn_start if state is not None else NOTHING_OPEN
    if batch.attributes & TRANSACTIONAL and txn_start == NOTHING_OPEN:
        txn_start = batch.base_offset
    return ProducerState(
        producer_id=batch.producer_id,
        epoch=batch.producer_epoch,
        coordinator_epoch=state.coordinator_epoch if state is not None else NO_COORDINATOR,
        last_timestamp=wall_ms,
        txn_start=txn_start,
        batches=kept,
    )


def _after_control(state: ProducerState | None, batch: Batch, wall_ms: int) -> ProducerState:
    """Return the producer's state after a control batch: a marker ends its transaction and gives both epochs."""
    end = end_marker_of(batch)
    is_same = state is not None and state.epoch == batch.producer_epoch
    before = NO_COORDINATOR if state is None else state.coordinator_epoch
    txn_start = NOTHING_OPEN if state is None or end is not None else state.txn_start
    return ProducerState(
        producer_id=batch.producer_id,
        epoch=batch.producer_epoch,
        coordinator_epoch=before if end is None else end.coordinator_epoch,
        last_timestamp=wall_ms,
        txn_start=txn_start,
        batches=state.batches if state is not None and is_same else (),
    )


def _check_marker(state: ProducerState | None, batch: Batch) -> None:
    """Check the control batch of a coordinator.

    Raises RequestError: INVALID_RECORD if it is not the end of a transaction, TRANSACTION_COORDINATOR_FENCED if a later
    coordinator has written a marker for this producer.
    """
    try:
        end = end_marker_of(batch)
    except FormatError as error:
        raise RequestError(ErrorCode.INVALID_RECORD, f"producer {batch.producer_id}: {error}") from error
    if end is None:
        text = f"producer {batch.producer_id} sent a control batch that is not the end of a transaction"
        raise RequestError(ErrorCode.INVALID_RECORD, text)
    if state is not None and end.coordinator_epoch < state.coordinator_epoch:
        raise RequestError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"coordinator epoch {end.coordinator_epoch} in a marker for producer {batch.producer_id}, current is"
            f" {state.coordinator_epoch}",
        )
