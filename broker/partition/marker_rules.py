"""Kafka's rules for a coordinator's marker at a partition, by the marker's version (KIP-890, KIP-1228, KAFKA-19999).

From version 2 on, a coordinator raises the producer's epoch before each marker. So a marker of an equal epoch is late
or repeated. In versions 0 and 1 a marker has the epoch of the transaction's own batches.

| version | producer epoch    | transaction | the marker                                                            |
| ------- | ----------------- | ----------- | --------------------------------------------------------------------- |
| any     | lower             | open        | is refused: INVALID_PRODUCER_EPOCH                                    |
| any     | lower             | none open   | is done: a later epoch has written here, and left nothing to end      |
| any     | higher            | any         | is written: it ends what is open, and brings its epochs               |
| 0, 1    | equal             | any         | is written, as in Kafka also with nothing open                        |
| 2       | equal             | none open   | is done: the log has it (Kafka writes it again)                       |
| 2       | equal             | open        | is done: it is late, and of the transaction before the open one       |
| 2       | equal, the last   | open        | is written: the coordinator cannot raise the last epoch (32,767)      |

Kafka refuses every marker of a lower epoch.  A plain batch of a higher epoch, from any client with the right to write,
would then hold the transaction in Prepare for ever.

A marker with a lower coordinator epoch than the producer's last marker is refused: TRANSACTION_COORDINATOR_FENCED.
"""

from __future__ import annotations

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import TransactionMarker
from bmq.storage.checkpoint import ProducerState
from bmq.storage.transactions import NOTHING_OPEN

LAST_EPOCH = 32_767
RAISES_EPOCH_SINCE = 2
"""The version of transactions from which on the producer's epoch is raised before each marker."""


def is_to_be_written(state: ProducerState | None, marker: TransactionMarker) -> bool:
    """Return whether the marker must be appended; False if the producer's ``state`` shows that there is nothing to do.

    Raises RequestError if a later coordinator or a later epoch of the producer has written here, and INVALID_REQUEST
    for a marker without a producer.
    """
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        text = f"a marker for producer {marker.producer_id} with epoch {marker.producer_epoch}: both are 0 or more"
        raise RequestError(ErrorCode.INVALID_REQUEST, text)
    if state is None:
        return True
    if marker.producer_epoch < state.epoch:
        if state.txn_start == NOTHING_OPEN:
            return False
        raise RequestError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"a marker for producer {marker.producer_id} has epoch {marker.producer_epoch}, current is {state.epoch}",
        )
    if marker.coordinator_epoch < state.coordinator_epoch:
        raise RequestError(
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            f"coordinator epoch {marker.coordinator_epoch} in a marker for producer {marker.producer_id}, current is"
            f" {state.coordinator_epoch}",
        )
    if marker.producer_epoch > state.epoch or marker.version < RAISES_EPOCH_SINCE:
        return True
    return state.txn_start != NOTHING_OPEN and marker.producer_epoch == LAST_EPOCH


def changes_nothing(state: ProducerState | None, marker: TransactionMarker) -> bool:
    """Return whether the producer's state would be the same after the marker: nothing is open, both epochs equal."""
    return (
        state is not None
        and state.txn_start == NOTHING_OPEN
        and state.epoch == marker.producer_epoch
        and state.coordinator_epoch == marker.coordinator_epoch
    )
