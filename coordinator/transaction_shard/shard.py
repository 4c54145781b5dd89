"""Life cycle of a shard of transactions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.freshness import Freshness
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.log_records import KeyValue
from bmq.coordinator.shard.shard import Shard, Spawn
from bmq.coordinator.shard.writer import Writer
from bmq.coordinator.transaction.records import TransactionRecord, encode
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.call_room import CallRoom
from bmq.coordinator.transaction_shard.id_bounds import TransactionalIdBounds
from bmq.coordinator.transaction_shard.markers import WriteMarkers
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.clock import Clock
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Catalog
from bmq.meta.shard_kinds import ShardId

_log = logging.getLogger(__name__)


class TransactionShard(Shard[TransactionsState, ActiveTransactions]):
    """A shard of transactions under a single ownership of this process."""

    def __init__(
        self,
        shard: ShardId,
        ownership: int,
        logs: ShardLogs,
        clock: Clock,
        settings: CoordinatorSettings,
        loads: asyncio.Semaphore,
        spawn: Spawn,
        *,
        catalog: Catalog,
        producer_ids: Callable[[], Awaitable[int]],
        write_markers: WriteMarkers,
        room: CallRoom,
        bounds: TransactionalIdBounds,
    ) -> None:
        super().__init__(shard, ownership, logs, clock, settings, loads, spawn)
        self._catalog = catalog
        self._producer_ids = producer_ids
        self._write_markers = write_markers
        self._room = room
        self._bounds = bounds

    async def expire(self) -> None:
        """Forget unused transactional ids.  Errors are logged, not raised: the next round tries again."""
        serving = self._serving
        if serving is not None:
            await self._try(serving.expire(), "unused transactional ids")

    def _new_state(self) -> TransactionsState:
        return TransactionsState()

    def _barrier(self) -> KeyValue:
        """Return a record without effect, here and for Kafka's tools: the tombstone of the id "", which nobody has."""
        return encode(TransactionRecord("", None))

    def _activate(self, state: TransactionsState, writer: Writer, freshness: Freshness) -> ActiveTransactions:
        if state.unknown_keys:
            _log.warning(
                "shard has %d keys of unknown versions, which it keeps as they are",
                state.unknown_keys,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )
        return ActiveTransactions(
            state,
            writer,
            self._clock,
            self._settings,
            freshness,
            shard=self.id,
            coordinator_epoch=self.ownership,
            catalog=self._catalog,
            producer_ids=self._producer_ids,
            write_markers=self._write_markers,
            room=self._room,
            bounds=self._bounds,
            spawn=self._spawn,
        )
