"""One transactional id: pure.

Events in, effects out.  ``coordinator.transaction_shard`` writes, responds and sends markers; the decisions are here.
``TABLE`` has a function for each (state, event) pair (``core.transitions``).  The rules are those of Kafka 4.3's
``TransactionCoordinator`` and ``TransactionMetadata``, with five differences:

* A state is in force once its record is handed to the log, and its response waits until the record is durable.  Kafka
  keeps a pending state beside the state meanwhile, and refuses requests with CONCURRENT_TRANSACTIONS.
* A transaction that is aborted for its producer (time-out, InitProducerId) ends by the version of its own client.
  Kafka ends it by the level of the feature transaction.version.
* InitProducerId of a fenced epoch leaves the open transaction of its successor alone.  Kafka aborts the transaction,
  refuses the fenced producer after the abort, and fences the successor by the abort's epoch.
* A commit by EndTxn 5 that comes after an abort in the producer's stead (time-out) is PRODUCER_FENCED, as in Kafka
  after 4.3 (KAFKA-20785).  Kafka 4.3 says INVALID_TXN_STATE, which ends a thread of Kafka Streams.
* An EndTxn 5 of the epoch before is a repetition only if the last end bumped the epoch.  Kafka also answers a fenced
  producer so after an end by a successor of version 1: with the successor's epoch, so that both write.

**Epochs.**  Three events bump a producer's epoch, each once: a first InitProducerId, an end by EndTxn 5, and an abort
without a request for it.  Epoch 32,766 is a producer's last.  Only markers have 32,767.  An end with
such markers takes a new producer id along (``next_id``).  The producer has this id from the end on, with epoch 0.

**Repetitions.**  An EndTxn 5 of the epoch before the bump, or of epoch 32,766 of the producer id before the change, is
the last EndTxn repeated.  So is an InitProducerId with ``last_epoch``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.events import Effect, Event
from bmq.coordinator.transaction.partitions import contains, merged
from bmq.coordinator.transaction.records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    StoredTransaction,
)
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.errors import ErrorCode
from bmq.core.transitions import Cell

EPOCH_MAX = (1 << 15) - 1
"""Epoch for the markers of a producer whose epochs have run out."""
PRODUCER_EPOCH_MAX = EPOCH_MAX - 1
"""The largest epoch that a producer gets."""
EPOCH_BUMPING_VERSION = 2
"""Least transaction.version with a bump of the epoch at every end."""
_NOTHING = StoredTransaction(NO_PRODUCER_ID, NO_EPOCH, 0, TransactionState.DEAD)


class Transaction:
    """A transactional id during one event: made from the stored value, None if there is none."""

    __slots__ = ("state", "value")

    def __init__(self, value: StoredTransaction | None) -> None:
        self.value = value if value is not None else _NOTHING
        self.state = self.value.state

    def __repr__(self) -> str:
        return f"<{self.state.name} {self.value}>"

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order.

        ``now_ms``: wall time.
        """
        cell = TABLE[self.state, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {self.state.name}"
            return []
        return cell(self, event, now_ms)

    # ------------------------------------------------------------------------------------------- InitProducerId

    def _on_new(self, event: ev.InitProducerId, now_ms: int) -> list[Effect]:
        """Give it a new producer id with epoch 0; it counts for the principal of the request."""
        if event.fresh_id == NO_PRODUCER_ID:
            return [ev.NeedProducerId()]
        self.state = TransactionState.EMPTY
        value = StoredTransaction(
            event.fresh_id, 0, event.timeout_ms, self.state, updated_ms=now_ms, principal=event.principal
        )
        return [ev.Store(value), ev.Respond(ErrorCode.NONE, value.producer_id, value.epoch)]

    def _on_init(self, event: ev.InitProducerId, now_ms: int) -> list[Effect]:
        """Bump its epoch, or give it a new producer id once epochs have run out; a repeated request changes neither."""
        value = self.value
        if event.is_resumed and not self._is_known(event):
            return [ev.Respond(ErrorCode.PRODUCER_FENCED)]
        is_current = not event.is_resumed or event.epoch == value.epoch
        changes: dict[str, Any]
        if is_current and value.epoch >= PRODUCER_EPOCH_MAX:
            if event.fresh_id == NO_PRODUCER_ID:
                return [ev.NeedProducerId()]
            last = value.epoch if event.is_resumed else NO_EPOCH
            changes = {"producer_id": event.fresh_id, "epoch": 0, "last_epoch": last}
        elif is_current:
            changes = {"epoch": value.epoch + 1, "last_epoch": value.epoch if event.is_resumed else NO_EPOCH}
        elif event.epoch == value.last_epoch:
            changes = {"previous_id": value.previous_id}  # the next repetition must be known, too
        else:
            return [ev.Respond(ErrorCode.PRODUCER_FENCED)]
        self.state = TransactionState.EMPTY
        made = self._store(now_ms, timeout_ms=event.timeout_ms, partitions=(), started_ms=NO_TIMESTAMP, **changes)
        return [made, ev.Respond(ErrorCode.NONE, self.value.producer_id, self.value.epoch)]

    def _on_init_while_open(self, event: ev.InitProducerId, now_ms: int) -> list[Effect]:
        """Abort the open transaction of the producer before; the client asks again.

        The producer with the open transaction knows the present epoch.  A resumed producer with another epoch was
        fenced, or sent its request late.  Its request must not end the transaction.
        """
        if event.is_resumed and not self._is_present(event):
            return [ev.Respond(ErrorCode.PRODUCER_FENCED)]
        return self._abort_for_producer(event, now_ms, [ev.Respond(ErrorCode.CONCURRENT_TRANSACTIONS)])

    def _is_present(self, event: ev.InitProducerId) -> bool:
        """Return True for the present producer id and epoch."""
        return event.producer_id == self.value.producer_id and event.epoch == self.value.epoch

    def _is_known(self, event: ev.InitProducerId) -> bool:
        """Return True for the present producer id, and for the id before it: the client may not know the new id yet."""
        if event.producer_id == self.value.producer_id:
            return True
        return event.producer_id == self.value.previous_id and event.epoch >= PRODUCER_EPOCH_MAX

    # ------------------------------------------------------------------------------------------------ partitions

    def _on_begin(self, event: ev.AddPartitions, now_ms: int) -> list[Effect]:
        """Begin a transaction with these partitions."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        self.state = TransactionState.ONGOING
        made = self._store(
            now_ms,
            partitions=merged((), event.partitions),
            started_ms=now_ms,
            client_version=event.client_version,
        )
        return [made, ev.Respond(ErrorCode.NONE)]

    def _on_add(self, event: ev.AddPartitions, now_ms: int) -> list[Effect]:
        """Add the partitions that are new to the transaction; its version never falls."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        version = max(self.value.client_version, event.client_version)
        if version == self.value.client_version and contains(self.value.partitions, event.partitions):
            return [ev.Respond(ErrorCode.NONE)]
        partitions = merged(self.value.partitions, event.partitions)
        made = self._store(now_ms, partitions=partitions, client_version=version)
        return [made, ev.Respond(ErrorCode.NONE)]

    def _on_verify(self, event: ev.Verify, now_ms: int) -> list[Effect]:
        """Confirm producer and epoch; the caller compares the partitions."""
        return [ev.Respond(self._refusal(event) or ErrorCode.NONE)]

    def _on_verify_while_ending(self, event: ev.Verify, now_ms: int) -> list[Effect]:
        """Refuse: its transaction is ending."""
        return [ev.Respond(self._refusal(event) or ErrorCode.CONCURRENT_TRANSACTIONS)]

    # ---------------------------------------------------------------------------------------- ends, EndTxn 0 to 4

    def _on_commit(self, event: ev.Commit, now_ms: int) -> list[Effect]:
        """Decide to commit."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        self.state = TransactionState.PREPARE_COMMIT
        return [self._store(now_ms, client_version=0), self._done(), ev.SendMarkers()]

    def _on_abort(self, event: ev.Abort, now_ms: int) -> list[Effect]:
        """Decide to abort."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        self.state = TransactionState.PREPARE_ABORT
        return [self._store(now_ms, client_version=0), self._done(), ev.SendMarkers()]

    def _on_repeated_end(self, event: ev.OfProducer, now_ms: int) -> list[Effect]:
        """Answer as the first time: the last transaction has ended so."""
        return [ev.Respond(refusal) if (refusal := self._refusal(event)) is not None else self._done()]

    def _on_nothing_to_end(self, event: ev.OfProducer, now_ms: int) -> list[Effect]:
        """Refuse: nothing was begun, or the last transaction has ended otherwise."""
        return [ev.Respond(self._refusal(event) or ErrorCode.INVALID_TXN_STATE)]

    def _on_end_while_ending(self, event: ev.OfProducer, now_ms: int) -> list[Effect]:
        """Let the client ask again, unless it is fenced."""
        return [ev.Respond(self._refusal(event) or ErrorCode.CONCURRENT_TRANSACTIONS)]

    # ------------------------------------------------------------------------------------------- ends, EndTxn 5

    def _on_commit_v2(self, event: ev.CommitV2, now_ms: int) -> list[Effect]:
        """Decide to commit, and bump the epoch."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        if self._needs_id(event):
            return [ev.NeedProducerId()]
        self.state = TransactionState.PREPARE_COMMIT
        return [self._store(now_ms, **self._bumped(event)), self._done(), ev.SendMarkers()]

    def _on_abort_v2(self, event: ev.AbortV2, now_ms: int) -> list[Effect]:
        """Decide to abort, and bump the epoch."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        return self._abort_v2(event, now_ms)

    def _on_empty_abort(self, event: ev.AbortV2, now_ms: int) -> list[Effect]:
        """Abort, and bump the epoch, though nothing was begun: the client may have failed to add partitions."""
        if (refusal := self._refusal(event)) is not None:
            return [ev.Respond(refusal)]
        return self._abort_v2(event, now_ms, started_ms=now_ms)

    def _on_repeated_commit_v2(self, event: ev.CommitV2, now_ms: int) -> list[Effect]:
        """Answer as the first time if it is of the epoch before the bump; else nothing was begun."""
        if self._is_repeated_v2(event):
            return [self._done()]
        return [ev.Respond(self._refusal(event) or ErrorCode.INVALID_TXN_STATE)]

    def _on_repeated_abort_v2(self, event: ev.AbortV2, now_ms: int) -> list[Effect]:
        """Answer as the first time if it is of the epoch before the bump; else abort, though nothing was begun."""
        return [self._done()] if self._is_repeated_v2(event) else self._on_empty_abort(event, now_ms)

    def _on_commit_v2_of_aborted(self, event: ev.CommitV2, now_ms: int) -> list[Effect]:
        """Refuse: the transaction was aborted in the producer's stead, or nothing was begun since.

        A client repeats its own EndTxn with the same decision.  Before a commit of the epoch before, only a time-out or
        another producer can have aborted.
        """
        if self._is_repeated_v2(event):
            return [ev.Respond(ErrorCode.PRODUCER_FENCED)]
        return [ev.Respond(self._refusal(event) or ErrorCode.INVALID_TXN_STATE)]

    def _on_abort_v2_of_committed(self, event: ev.AbortV2, now_ms: int) -> list[Effect]:
        """Refuse if it is of the epoch before the bump, which was committed; else abort, though nothing was begun."""
        if self._is_repeated_v2(event):
            return [ev.Respond(ErrorCode.INVALID_TXN_STATE)]
        return self._on_empty_abort(event, now_ms)

    def _abort_v2(self, event: Event, now_ms: int, **changes: Any) -> list[Effect]:
        if self._needs_id(event):
            return [ev.NeedProducerId()]
        self.state = TransactionState.PREPARE_ABORT
        return [self._store(now_ms, **self._bumped(event), **changes), self._done(), ev.SendMarkers()]

    def _is_repeated_v2(self, event: ev.OfProducer) -> bool:
        """Return True if this EndTxn is of the epoch before the last bump."""
        value = self.value
        if value.client_version < EPOCH_BUMPING_VERSION:
            return False  # the last end bumped nothing: the epoch before is a fenced producer's
        if event.producer_id == value.producer_id and event.epoch == value.epoch - 1:
            return True
        return event.producer_id == value.previous_id and event.epoch == PRODUCER_EPOCH_MAX and value.epoch == 0

    def _needs_id(self, event: Event) -> bool:
        return self.value.epoch >= PRODUCER_EPOCH_MAX and event.fresh_id == NO_PRODUCER_ID

    def _bumped(self, event: Event) -> dict[str, Any]:
        """Return the changes by an end that bumps the epoch.  ``EPOCH_MAX`` stays: only a fault could lead there."""
        epoch = self.value.epoch
        return {
            "epoch": min(epoch + 1, EPOCH_MAX),
            "last_epoch": epoch,
            "next_id": event.fresh_id if epoch >= PRODUCER_EPOCH_MAX else NO_PRODUCER_ID,
            "client_version": EPOCH_BUMPING_VERSION,
        }

    # ------------------------------------------------------------------------------------------------------- time

    def _on_overdue(self, event: ev.Overdue, now_ms: int) -> list[Effect]:
        """Abort, with a bumped epoch, if the time-out is over since the transaction began."""
        if self.value.started_ms + self.value.timeout_ms >= now_ms:
            return []
        return self._abort_for_producer(event, now_ms, [])

    def _abort_for_producer(self, event: Event, now_ms: int, responses: list[Effect]) -> list[Effect]:
        """Decide to abort, and bump the epoch once, so that the producer can add nothing more."""
        changes: dict[str, Any]
        if self.value.client_version >= EPOCH_BUMPING_VERSION:
            if self._needs_id(event):
                return [ev.NeedProducerId()]
            changes = self._bumped(event)
        else:  # the producer must not learn the epoch: it is fenced for good
            changes = {"epoch": min(self.value.epoch + 1, EPOCH_MAX), "last_epoch": NO_EPOCH}
        self.state = TransactionState.PREPARE_ABORT
        return [self._store(now_ms, **changes), *responses, ev.SendMarkers()]

    def _on_unused(self, event: ev.Unused, now_ms: int) -> list[Effect]:
        """Forget the id if it is unused for so long."""
        if self.value.updated_ms + event.retention_ms >= now_ms:
            return []
        self.state = TransactionState.DEAD
        return [ev.Store(None)]

    # ---------------------------------------------------------------------------------------------------- markers

    def _on_committed(self, event: ev.MarkersWritten, now_ms: int) -> list[Effect]:
        """Complete the commit."""
        self.state = TransactionState.COMPLETE_COMMIT
        return [self._complete(now_ms)]

    def _on_aborted(self, event: ev.MarkersWritten, now_ms: int) -> list[Effect]:
        """Complete the abort."""
        self.state = TransactionState.COMPLETE_ABORT
        return [self._complete(now_ms)]

    def _complete(self, now_ms: int) -> ev.Store:
        changes: dict[str, Any] = {}
        if self.value.next_id != NO_PRODUCER_ID:
            changes = {"producer_id": self.value.next_id, "epoch": 0}
        return self._store(now_ms, partitions=(), next_id=NO_PRODUCER_ID, **changes)

    # ---------------------------------------------------------------------------------------------------- refusals

    def _on_unknown(self, event: ev.OfProducer, now_ms: int) -> list[Effect]:
        """Refuse: there is no such transactional id."""
        return [ev.Respond(ErrorCode.INVALID_PRODUCER_ID_MAPPING)]

    def _on_ending(self, event: Event, now_ms: int) -> list[Effect]:
        """Let the client ask again, whatever its producer id: it may know ``next_id`` already."""
        return [ev.Respond(ErrorCode.CONCURRENT_TRANSACTIONS)]

    def _refusal(self, event: ev.OfProducer) -> ErrorCode | None:
        """Return the error for another producer id or epoch; None for the present producer."""
        if event.producer_id != self.value.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.PRODUCER_FENCED if event.epoch != self.value.epoch else None

    def _done(self) -> ev.Respond:
        """Return success, with producer id and epoch for the next transaction."""
        if self.value.next_id != NO_PRODUCER_ID:
            return ev.Respond(ErrorCode.NONE, self.value.next_id, 0)
        return ev.Respond(ErrorCode.NONE, self.value.producer_id, self.value.epoch)

    def _store(self, now_ms: int, **changes: Any) -> ev.Store:
        """Change the value as given, and to the present state; return the effect that writes it."""
        defaults = {"previous_id": self.value.producer_id, "updated_ms": now_ms, "state": self.state}
        self.value = self.value._replace(**{**defaults, **changes})
        return ev.Store(self.value)


E = TypeVar("E", bound=Event)
Handler = Callable[[Transaction, E, int], list[Effect]]
_Row = dict[tuple[TransactionState, type[Any]], Handler[Any] | Cell]


def _on(event: type[E], functions: Mapping[TransactionState, Handler[E]], *, otherwise: Handler[E] | Cell) -> _Row:
    """Return an event's row; ``otherwise`` is the cell of the states without a function."""
    return {(state, event): functions.get(state, otherwise) for state in TransactionState}


_S, _T = TransactionState, Transaction
_PREPARED = (_S.PREPARE_COMMIT, _S.PREPARE_ABORT)
_COMPLETED = (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
_ENDING: dict[TransactionState, Any] = dict.fromkeys(_PREPARED, _T._on_ending)
_UNKNOWN: dict[TransactionState, Any] = {_S.DEAD: _T._on_unknown}
TABLE: Mapping[tuple[TransactionState, type[Any]], Handler[Any] | Cell] = {
    **_on(
        ev.InitProducerId,
        {_S.DEAD: _T._on_new, _S.ONGOING: _T._on_init_while_open, **_ENDING},
        otherwise=_T._on_init,
    ),
    **_on(ev.AddPartitions, {**_UNKNOWN, _S.ONGOING: _T._on_add, **_ENDING}, otherwise=_T._on_begin),
    **_on(ev.Verify, {**_UNKNOWN, **dict.fromkeys(_PREPARED, _T._on_verify_while_ending)}, otherwise=_T._on_verify),
    **_on(
        ev.Commit,
        {
            **_UNKNOWN,
            **dict.fromkeys(_PREPARED, _T._on_end_while_ending),
            _S.ONGOING: _T._on_commit,
            _S.COMPLETE_COMMIT: _T._on_repeated_end,
        },
        otherwise=_T._on_nothing_to_end,
    ),
    **_on(
        ev.Abort,
        {
            **_UNKNOWN,
            **dict.fromkeys(_PREPARED, _T._on_end_while_ending),
            _S.ONGOING: _T._on_abort,
            _S.COMPLETE_ABORT: _T._on_repeated_end,
        },
        otherwise=_T._on_nothing_to_end,
    ),
    **_on(
        ev.CommitV2,
        {
            **_UNKNOWN,
            **_ENDING,
            _S.ONGOING: _T._on_commit_v2,
            _S.COMPLETE_COMMIT: _T._on_repeated_commit_v2,
            _S.COMPLETE_ABORT: _T._on_commit_v2_of_aborted,
        },
        otherwise=_T._on_nothing_to_end,
    ),
    **_on(
        ev.AbortV2,
        {
            **_UNKNOWN,
            **_ENDING,
            _S.ONGOING: _T._on_abort_v2,
            _S.COMPLETE_COMMIT: _T._on_abort_v2_of_committed,
            _S.COMPLETE_ABORT: _T._on_repeated_abort_v2,
        },
        otherwise=_T._on_empty_abort,
    ),
    **_on(ev.Overdue, {_S.ONGOING: _T._on_overdue}, otherwise=Cell.LATE),
    **_on(
        ev.MarkersWritten,
        {_S.PREPARE_COMMIT: _T._on_committed, _S.PREPARE_ABORT: _T._on_aborted},
        otherwise=Cell.NEVER,
    ),
    **_on(
        ev.Unused,
        {_S.EMPTY: _T._on_unused, **dict.fromkeys(_COMPLETED, _T._on_unused)},
        otherwise=Cell.LATE,
    ),
}
"""The function, or the reason for none, of each (state, event type)."""
EVENTS: tuple[type[Event], ...] = tuple(dict.fromkeys(event for _, event in TABLE))
"""Every event type, in the table's order."""
