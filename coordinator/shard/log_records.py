"""Records of a shard's log, and the producer of a batch of them.  Pure."""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, Batch

KeyValue = tuple[bytes, bytes | None]
"""Key and value of one record; a record without a value deletes its key."""


class BatchProducer(NamedTuple):
    """The producer of one batch, as the batch's header names it.

    ``is_control``: the batch has a control record, such as the end of a transaction.
    """

    producer_id: int
    producer_epoch: int
    is_transactional: bool = True
    is_control: bool = False

    @property
    def attributes(self) -> int:
        """The bits for the header of the batch."""
        return TRANSACTIONAL * self.is_transactional | CONTROL * self.is_control


def producer_of(batch: Batch) -> BatchProducer | None:
    """Return the producer of a batch; None for a batch without a producer id that has no control record."""
    if batch.producer_id == NO_PRODUCER_ID and not batch.is_control:
        return None
    return BatchProducer(batch.producer_id, batch.producer_epoch, batch.is_transactional, batch.is_control)
