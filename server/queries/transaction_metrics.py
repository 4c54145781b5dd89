"""Numbers of a process's transactions for ``/metrics``.  Kafka has no metrics of most of them."""

from __future__ import annotations

from bmq.console.state import OwnMetric
from bmq.coordinator.transaction_shard.manager import TransactionShards


def transaction_metrics(shards: TransactionShards, oldest_open_s: float) -> list[OwnMetric]:
    """Return the numbers of the transaction coordinator's loaded shards; ``oldest_open_s`` is counted before."""
    text = "Transactional ids by the state of their transaction"
    refused = "Requests that would have created a transactional id past max_transactional_ids of their user"
    unwritten = shards.unwritten_markers()
    return [
        OwnMetric("user_transactional_ids_refused", refused, shards.ids_refused, True),
        *(
            OwnMetric("transactions", text, count, False, "state", state)
            for state, count in shards.transactions_by_state().items()
        ),
        OwnMetric(
            "oldest_transaction_age_seconds",
            "How long the oldest open transaction has been open",
            oldest_open_s,
        ),
        OwnMetric(
            "markers_not_written",
            "Markers of transactions that their partitions did not take at the last try, and that are sent again",
            unwritten.markers,
        ),
        OwnMetric(
            "oldest_marker_not_written_seconds",
            "How long the oldest transaction has ended to which such a marker belongs",
            unwritten.oldest_s,
        ),
    ]
