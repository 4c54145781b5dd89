"""State of one shard, as a replay and a snapshot see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.core.aio.steps import Steps


class ShardState(Protocol):
    """Facts that are stored in a shard's log.

    A replay and the live shard change it by the same function, record by record in the order of the log.
    """

    @property
    def is_by_key(self) -> bool:
        """True if of the records without a producer only the last of each key counts, and whether the key was deleted.

        A replay may then leave out the others of a run: of the records between two batches that name a producer.  False
        for a state whose replay is of every record.
        """

    def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> Steps[None] | None:
        """Apply a record of a batch; return the steps of the work, None if it is done.

        ``producer`` is None if the batch names no producer.

        For a record that a snapshot repeats (``Repeated``) it is ``REPEATING``.

        Raises FormatError if the record cannot be decoded.
        """

    def live_records(self) -> Iterator[KeyValue]:
        """Yield a record for every key that is live now, with its value at the moment when it is yielded.

        Other records may be applied between two steps.
        """

    def parts(self) -> list[object]:
        """Return the objects that hold most of the state's memory, so that they can be freed in turns."""

    @property
    def summary(self) -> str:
        """Size of the state, for a log line: ``3 groups``."""
