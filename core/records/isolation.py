"""Read isolation: the batches that a reader of committed data sees, by the rules of Kafka's consumer.  Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Aborted:
    """The aborted transactions of a stretch of a partition, for calls batch by batch in offset order.

    A transaction is aborted from its first offset to the producer's next abort marker.  So ``transactions`` must not
    have a transaction from before the stretch: its marker will not be seen.
    """

    __slots__ = ("_coming", "_open")

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        """Take (producer id, first offset) of each transaction, in any order."""
        self._coming = sorted(((first, producer) for producer, first in transactions), reverse=True)
        self._open: set[int] = set()

    def hides(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional batch with this last offset belongs to an aborted transaction."""
        self._begin(last_offset)
        return producer_id in self._open

    def end(self, producer_id: int, last_offset: int) -> None:
        """Take the producer's abort marker, which ends its transaction."""
        self._begin(last_offset)
        self._open.discard(producer_id)

    def _begin(self, last_offset: int) -> None:
        while self._coming and self._coming[-1][0] <= last_offset:
            self._open.add(self._coming.pop()[1])
