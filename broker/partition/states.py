"""The states of one ownership of a partition."""

from __future__ import annotations

from enum import Enum


class PartitionState(Enum):
    """The life of one ownership. A partition that this broker owns again begins a new one."""

    START = "reading and raising the epoch"
    FENCE = "stopping the writers of the predecessor's segments"
    RECOVER = "reading behind the last checkpoint"
    WRITE = "accepting and flushing batches"
    MOVE = "flushing what was accepted, then handing over"
    FENCED = "another broker owns the partition; nothing may be acknowledged"
    CLOSED = "handed over"
    OFFLINE = "acknowledged data is missing or damaged, or the record cannot be read; waits for an operator"


TERMINAL = frozenset({PartitionState.FENCED, PartitionState.CLOSED, PartitionState.OFFLINE})
"""States that an ownership does not leave."""
