"""Life cycle of a shard of transactions."""

from __future__ import annotations

import logging

from bmq.coordinator.shard.active import Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.log_records import KeyValue
from bmq.coordinator.shard.shard import Shard
from bmq.coordinator.transaction.records import TransactionRecord, encode
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.parts import TransactionParts
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.logging.fields import fields

_log = logging.getLogger(__name__)


class TransactionShard(Shard[TransactionsState, ActiveTransactions]):
    """A shard of transactions under a single ownership of this process."""

    def __init__(self, context: ShardContext, parts: TransactionParts) -> None:
        super().__init__(context)
        self._parts = parts

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

    def _activate(self, loaded: Loaded[TransactionsState]) -> ActiveTransactions:
        if loaded.state.unknown_keys:
            _log.warning(
                "shard has %d keys of unknown versions, which it keeps as they are",
                loaded.state.unknown_keys,
                extra=fields(topic=self.id.kind.topic, shard=self.id.number),
            )
        return ActiveTransactions(self.context, loaded, self._parts)
