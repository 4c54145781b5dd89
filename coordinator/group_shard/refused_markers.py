"""Markers that a shard's log has refused for their producer: known refusals, kept while the shard is loaded again.

The owner of the log's partition may know later epochs than the shard: a snapshot has dropped their batches.  A refused
append ends the log's handle, so the shard is loaded again, and the replay finds nothing new.  The transaction's
coordinator sends the marker again after each refusal.  So without this table the marker would have the shard loaded
again at each try, and its groups with it.

The response from the table is the log's own code.  The transaction's coordinator then confirms its ownership, reports
the refusal, and tries again after its longest pause (``transaction_shard.markers``).  COORDINATOR_NOT_AVAILABLE would
hide the refusal.
"""

from __future__ import annotations

from typing import NamedTuple

from bmq.core.aio.lru import LruCache
from bmq.core.errors import ErrorCode
from bmq.core.records.control import TransactionMarker

REFUSED_MAX = 1_000
"""Producers with a kept refusal: some 300 KB."""
KEPT_S = 3_600.0
"""The log is asked again after so long: the owner of the partition forgets epochs of producers that are idle."""


class _Refusal(NamedTuple):
    marker: TransactionMarker
    code: ErrorCode
    at_s: float


class RefusedMarkers:
    """The last refusal of each producer, of the producers refused last.  Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._refusals: LruCache[int, _Refusal] = LruCache(REFUSED_MAX)

    def refused(self, marker: TransactionMarker, code: ErrorCode, now_s: float) -> None:
        """Keep the log's refusal of ``marker``."""
        self._refusals.put(marker.producer_id, _Refusal(marker, code, now_s))

    def code_of(self, marker: TransactionMarker, now_s: float) -> ErrorCode | None:
        """Return the code with which the log refused this very marker; None if the log is to be asked."""
        found = self._refusals.get(marker.producer_id)
        if found is None or found.marker != marker or now_s - found.at_s >= KEPT_S:
            return None
        return found.code
