"""States of a transactional id, with Kafka's numbers and names for them.  Pure."""

from __future__ import annotations

from enum import Enum


class TransactionState(Enum):
    """State of a transactional id.  Kafka's PrepareEpochFence is missing: here a fence is a Prepare at once."""

    DEAD = "no such transactional id: it was never used, or has expired"
    EMPTY = "a producer has been initialized, and has begun nothing since"
    ONGOING = "a transaction is open"
    PREPARE_COMMIT = "decided to commit; markers are on their way to the partitions"
    PREPARE_ABORT = "decided to abort; markers are on their way to the partitions"
    COMPLETE_COMMIT = "committed, all partitions have their marker"
    COMPLETE_ABORT = "aborted, all partitions have their marker"

    __hash__ = object.__hash__  # Enum's own calls Python code, several times a transaction

    @property
    def code(self) -> int:
        """Kafka's number of the state, in records."""
        return _CODES[self]

    @property
    def kafka_name(self) -> str:
        """Kafka's name of the state, in responses."""
        return _NAMES[self]

    @property
    def is_prepare(self) -> bool:
        """True while markers are on their way."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


_CODES = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
    TransactionState.DEAD: 6,
}
_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
}
KAFKA_NAMES = frozenset({*_NAMES.values(), "PrepareEpochFence"})
"""The names that a filter of ListTransactions may have."""
_STORED = {code: state for state, code in _CODES.items() if state is not TransactionState.DEAD}


def stored_state(code: int) -> TransactionState | None:
    """Return the state of a record with this number; None for a number that is never stored."""
    return _STORED.get(code)
