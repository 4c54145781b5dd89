"""All shards of transactions in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.call_room import CallRoom
from bmq.coordinator.transaction_shard.id_bounds import TransactionalIdBounds
from bmq.coordinator.transaction_shard.markers import Ending, WriteMarkers
from bmq.coordinator.transaction_shard.shard import TransactionShard
from bmq.core.aio.steps import Steps, batched
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.clock import Clock
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.view import ClusterView
from bmq.meta.group_placement import shard_of
from bmq.meta.security.client_quotas import Bounds
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId, shard_count


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
        settings: CoordinatorSettings,
        clock: Clock,
        logs: ShardLogs,
        topic: Callable[[], Awaitable[Topic]],
        catalog: Catalog,
        view: ClusterView,
        *,
        producer_ids: Callable[[], Awaitable[int]],
        write_markers: WriteMarkers,
        bounds: Bounds,
    ) -> None:
        """``producer_ids`` returns a new producer id, and raises RequestError if there is none now.

        ``bounds``: how many transactional ids a principal may own.
        """
        settings = replace(settings, expiry_interval_s=settings.transactional_id_expiry_interval_s)
        super().__init__(TRANSACTIONS, settings, topic, catalog, view)
        self._clock = clock
        self._logs = logs
        self._producer_ids = producer_ids
        self._write_markers = write_markers
        self._room = CallRoom()
        self._bounds = TransactionalIdBounds(bounds, OwnedKeys(self._loaded, self._coming))

    @property
    def settings(self) -> CoordinatorSettings:
        return self._settings

    def shard_of(self, key: str) -> ShardId:
        """Return the shard of a transactional id, also before the topic exists."""
        count = self._count or shard_count(TRANSACTIONS, self._catalog, 0) or self._settings.transaction_shards
        return ShardId(TRANSACTIONS, shard_of(key, count))

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
        oldest_ms = now_ms = self._clock.now_ms()
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
        return self._bounds.refused

    def unwritten_markers(self) -> UnwrittenMarkers:
        """Return the markers that partitions did not take at the last try."""
        failing = [each for each in self.endings() if each.failures]
        began = min((each.began_s for each in failing), default=None)
        return UnwrittenMarkers(
            sum(len(each.missing) for each in failing), 0.0 if began is None else self._clock.monotonic() - began
        )

    def endings(self) -> list[Ending]:
        """Return the transactions of the loaded shards whose markers are on their way."""
        return [ending for serving in self._loaded() for ending in serving.endings]

    def _new_shard(self, shard: ShardId, ownership: int) -> TransactionShard:
        return TransactionShard(
            shard,
            ownership,
            self._logs,
            self._clock,
            self._settings,
            self._loads,
            self._spawn,
            catalog=self._catalog,
            producer_ids=self._producer_ids,
            write_markers=self._write_markers,
            room=self._room,
            bounds=self._bounds,
        )
