"""The coordinator role of one process: the coordinators of its shards, and their service to other processes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from bmq.coordinator.api import LocalTransactionCoordinator
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.server import Forwarding
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.shard.remote_log import RemoteShardLogs, RoutedShardLogs
from bmq.core.rpc.messages.coordinator import ForwardRequest, ShardsNotLoadedRequest
from bmq.core.rpc.messages.markers import EndGroupTransactionsRequest
from bmq.meta.catalog import Topic
from bmq.meta.shard_kinds import ShardId
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.parts import Parts


class TransactionParts(NamedTuple):
    """The transaction coordinator of one process: its shards, and the coordinator that serves requests over them.

    ``close`` closes what the shards use, once they have ended.
    """

    shards: Shards[Any]
    coordinator: LocalTransactionCoordinator
    close: Callable[[], Awaitable[None]]


class CoordinatorRole:
    """The coordinator role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(
        self,
        parts: Parts,
        broker: BrokerRole | None,
        offsets_topic: Callable[[], Awaitable[Topic]],
        make_transactions: Callable[[CoordinatorContext], TransactionParts],
    ) -> None:
        """Make the role; ``offsets_topic`` returns ``__consumer_offsets``, and creates it if it is missing.

        Shards whose partition ``broker`` owns are written and read in this process.  ``make_transactions`` returns the
        transaction coordinator.
        """
        joined = parts.joined
        remote = RemoteShardLogs(joined.view, parts.catalog, joined.peers)
        logs: ShardLogs = remote
        if broker is not None:
            logs = RoutedShardLogs(joined.view, parts.catalog, broker.shard_logs, remote)
        context = CoordinatorContext(
            settings=CoordinatorSettings.of(parts.config), clock=parts.clock, logs=logs, catalog=parts.catalog,
            view=joined.view, bounds=parts.security.client_quotas,
        )  # fmt: skip
        self.coordinator = Coordinator(context, offsets_topic, parts.verifier)
        self._transactions = make_transactions(context)
        self._forwarding = Forwarding(
            self.coordinator, joined.view, transactions=self.transactions, shards_not_loaded=self.shards_not_loaded
        )
        joined.standstill.on_doubt.add(lambda _: self._doubt())
        joined.endpoint.register(ForwardRequest, self._forwarding.handle)
        joined.endpoint.register(EndGroupTransactionsRequest, self._forwarding.end_transactions)
        joined.endpoint.register(ShardsNotLoadedRequest, self._forwarding.list_not_loaded)

    @property
    def transactions(self) -> LocalTransactionCoordinator:
        """The transaction coordinator of this process."""
        return self._transactions.coordinator

    @property
    def transaction_shards(self) -> Shards[Any]:
        """The shards of transactions of this process."""
        return self._transactions.shards

    def shards_not_loaded(self) -> dict[ShardId, str]:
        """Return the shards of all kinds that are not loaded, each with the reason.  For operators."""
        return {**self.coordinator.shards_not_loaded(), **self._transactions.shards.not_loaded()}

    def shards_not_loaded_by_reason(self) -> Mapping[LoadFailure, int]:
        """Count the shards that are not loaded by kind of reason, kinds without any included.  For metrics."""
        counts = Counter(self.coordinator.shards_not_loaded_by_reason())
        counts.update(self._transactions.shards.not_loaded_by_reason())
        return counts

    async def start(self) -> None:
        """Begin to load the shards that are assigned to this process."""
        await self.coordinator.start()
        await self._transactions.shards.start()

    def _doubt(self) -> None:
        """Have all shards prove their ownership: they may have new owners after a standstill."""
        self.coordinator.doubt()
        self._transactions.shards.doubt()

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more."""
        self.coordinator.drain()
        self._transactions.shards.drain()

    async def close(self) -> None:
        """Close all shards, also if one kind fails.  May be called after a ``start`` that failed."""
        self._forwarding.close()
        async with contextlib.AsyncExitStack() as kinds:
            kinds.push_async_callback(self.coordinator.close)
            kinds.push_async_callback(self._transactions.close)
            kinds.push_async_callback(self._transactions.shards.wait_closed)
            kinds.callback(self._transactions.shards.close)
