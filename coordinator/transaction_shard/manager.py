"""All shards of transactions in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bmq.coordinator.shard.context import CoordinatorContext, ShardContext
from bmq.coordinator.shard.key_bounds import KeyBounds
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.call_room import CallRoom
from bmq.coordinator.transaction_shard.markers import Ending
from bmq.coordinator.transaction_shard.parts import TransactionParts, WriteMarkers
from bmq.coordinator.transaction_shard.shard import TransactionShard
from bmq.core.aio.steps import Steps, batched
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.meta.catalog import Topic
from bmq.meta.security.client_quotas import MAX_TRANSACTIONAL_IDS
from bmq.meta.shard_kinds import TRANSACTIONS


class UnwrittenMarkers(NamedTuple):
    """The markers of ending transactions after a failed try: one a partition.

    ``oldest_s``: seconds since the markers of the first of these transactions were sent for the first time.
    """

    markers: int
    oldest_s: float


class TransactionShards(Shards[ActiveTransactions]):
    """The shards of ``__transaction_state`` in this process, and the bounds of their transactional ids."""

    def __init__(
        self,
        context: CoordinatorContext,
        topic: Callable[[], Awaitable[Topic]],
        *,
        producer_ids: Callable[[], Awaitable[int]],
        write_markers: WriteMarkers,
    ) -> None:
        """``topic``: as in ``Shards``.  ``producer_ids`` and ``write_markers``: as in ``TransactionParts``."""
        settings = context.settings
        super().__init__(
            TRANSACTIONS, context, topic,
            partitions=settings.transaction_shards, expiry_interval_s=settings.transactional_id_expiry_interval_s,
        )  # fmt: skip
        self._parts = TransactionParts(
            bounds=KeyBounds(
                context.bounds,
                OwnedKeys(self._loaded, self._coming, settings.load_timeout_s),
                MAX_TRANSACTIONAL_IDS,
                key="transactional id",
                remedy="let ids of the user expire",
            ),
            producer_ids=producer_ids,
            write_markers=write_markers,
            room=CallRoom(),
        )

    def drain(self) -> None:
        """Note that the process shuts down.  No request is parked, and markers are sent until ``close``."""
        self.is_draining = True

    def transactions_by_state(self) -> dict[str, int]:
        """Count the loaded transactional ids by Kafka's name of their state, states without any included."""
        counts = {state.kafka_name: 0 for state in TransactionState if state is not TransactionState.DEAD}
        for serving in self._loaded():
            for state, count in serving.state.by_state.items():
                counts[state.kafka_name] += count
        return counts

    def oldest_open_s(self) -> Steps[float]:
        """Return the seconds since the oldest open transaction of the loaded shards began; 0 if none is open.

        In steps: every one of 100,000 transactional ids may have an open transaction.
        """
        oldest_ms = now_ms = self._context.clock.now_ms()
        for serving in list(self._loaded()):
            state = serving.state
            for some in batched(tuple(state.open_ids), ELEMENTS_A_TURN):
                values = [state.values[each] for each in some if each in state.open_ids]  # others have ended meanwhile
                oldest_ms = min([oldest_ms, *(value.started_ms for value in values)])
                yield
        return (now_ms - oldest_ms) / 1000

    @property
    def ids_refused(self) -> int:
        """The number of requests that would have created an id past ``max_transactional_ids`` of their user."""
        return self._parts.bounds.refused

    def unwritten_markers(self) -> UnwrittenMarkers:
        """Return the markers that partitions did not take at the last try."""
        failing = [each for each in self.endings() if each.failures]
        began = min((each.began_s for each in failing), default=None)
        oldest_s = 0.0 if began is None else self._context.clock.monotonic() - began
        return UnwrittenMarkers(sum(len(each.missing) for each in failing), oldest_s)

    def endings(self) -> list[Ending]:
        """Return the transactions of the loaded shards whose markers are on their way."""
        return [ending for serving in self._loaded() for ending in serving.endings]

    def _new_shard(self, context: ShardContext) -> TransactionShard:
        return TransactionShard(context, self._parts)
