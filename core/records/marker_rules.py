"""Kafka's rules for a coordinator's marker at a log, by the marker's version (KIP-890, KIP-1228, KAFKA-19999).  Pure.

The owner of a partition and the coordinator of a group's shard judge a marker by this table.

From version 2 on, a coordinator raises the producer's epoch before each marker.  So a marker of an equal epoch is late
or repeated.  In versions 0 and 1 a marker has the epoch of the transaction's own batches.

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

A marker of an equal epoch, version 0 or 1 and nothing open may be the repetition of the last marker.  It may also be
the marker of a later transaction that a former owner of the log does not know.  Only the log can tell them apart: it
refuses the batch of a former owner.

A marker with a lower coordinator epoch than the producer's last marker is refused: TRANSACTION_COORDINATOR_FENCED.  A
marker without a producer is refused: INVALID_REQUEST.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.errors import ErrorCode
from bmq.core.records.control import TransactionMarker

LAST_EPOCH = 32_767
RAISES_EPOCH_SINCE = 2
"""First version of transactions whose coordinators raise the producer's epoch before each marker."""


class KnownProducer(NamedTuple):
    """The state of a producer in a log: the highest epochs, its own and its coordinator's, and an open transaction."""

    epoch: int
    coordinator_epoch: int
    is_open: bool


def verdict_on(marker: TransactionMarker, known: KnownProducer | None) -> ErrorCode | None:
    """Return the code of a marker that is not written: NONE if it is done already.  Return None if it must be written.

    ``known`` is None for a producer that is not known in the log.
    """
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return ErrorCode.INVALID_REQUEST
    if known is None:
        return None
    if marker.producer_epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH if known.is_open else ErrorCode.NONE
    if marker.coordinator_epoch < known.coordinator_epoch:
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    if marker.producer_epoch > known.epoch or marker.version < RAISES_EPOCH_SINCE:
        return None
    return None if known.is_open and marker.producer_epoch == LAST_EPOCH else ErrorCode.NONE


def changes_nothing(marker: TransactionMarker, known: KnownProducer | None) -> bool:
    """Return whether the producer's state would be the same after the marker: nothing is open, both epochs equal."""
    return known == (marker.producer_epoch, marker.coordinator_epoch, False)
