"""Records of a shard's log, and the producer of a batch of them.  Pure."""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.records.batch import CONTROL, NO_PRODUCER_ID, TRANSACTIONAL, Batch

KeyValue = tuple[bytes, bytes | None]
"""Key and value of one record; a record without a value deletes its key."""


class Repeated(NamedTuple):
    """A ``KeyValue`` that a snapshot repeats while a transaction has written the same key.

    Its place in the order of records is before the place of its batch, and a header says so.  The record counts only if
    the log has no other record of its key, and it overtakes no pending value.
    """

    key: bytes
    value: bytes | None


REPEATED_HEADERS = (("r", None),)
"""Headers of a ``Repeated`` record.  Kafka's loader of this topic ignores headers."""


class BatchProducer(NamedTuple):
    """The producer of one batch, as the batch's header names it.

    ``is_control``: the batch has a control record, such as the end of a transaction.  ``base_offset``: the batch's, in
    a replay; -1 for a batch that is yet to be written.
    """

    producer_id: int
    producer_epoch: int
    is_transactional: bool = True
    is_control: bool = False
    base_offset: int = -1

    @property
    def attributes(self) -> int:
        """The bits for the header of the batch."""
        return TRANSACTIONAL * self.is_transactional | CONTROL * self.is_control


def producer_of(batch: Batch) -> BatchProducer | None:
    """Return the producer of a batch; None for a batch without a producer id that has no control record."""
    if batch.producer_id == NO_PRODUCER_ID and not batch.is_control:
        return None
    is_control = batch.is_control
    return BatchProducer(batch.producer_id, batch.producer_epoch, batch.is_transactional, is_control, batch.base_offset)


REPEATING = BatchProducer(NO_PRODUCER_ID, -1, is_transactional=False)
"""In place of a producer: the record is ``Repeated``."""
