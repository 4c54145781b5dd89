"""Batches for the tail cache."""

from __future__ import annotations

import uuid

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, Record, build_batch

KEY = PartitionKey(uuid.UUID(int=1), 0)


def batch(base: int, size: int) -> Batch:
    """Return a batch of one record with a value of ``size`` bytes, in a frame of its own."""
    return Batch(memoryview(build_batch([Record(value=b"x" * size)], base_offset=base)))
