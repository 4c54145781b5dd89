"""Batches of transactional producers, and the ends of their transactions, for tests of a partition."""

from __future__ import annotations

from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.control import EndMarker, Marker, end_record

PID = 4000


def data(
    sequence: int, *, pid: int = PID, epoch: int = 0, base: int = 0, count: int = 1, is_transactional: bool = True
) -> Batch:
    """Return a batch of a producer; ``sequence`` -1: of a coordinator."""
    return _batch([Record()] * count, sequence, pid, epoch, base, TRANSACTIONAL if is_transactional else 0)


def marker(
    kind: Marker = Marker.COMMIT, *, pid: int = PID, epoch: int = 0, base: int = 0, coordinator_epoch: int = 0
) -> Batch:
    """Return the control batch that ends a transaction."""
    record = end_record(EndMarker(kind, coordinator_epoch))
    return _batch([record], -1, pid, epoch, base, TRANSACTIONAL | CONTROL)


def _batch(records: list[Record], sequence: int, pid: int, epoch: int, base: int, attributes: int) -> Batch:
    built = build_batch(
        records,
        base_offset=base,
        base_timestamp=1000,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return Batch(memoryview(built))
