"""The coordinator role of one process: the coordinators of its shards, and their service to other processes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.server import Forwarding
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.remote_log import RemoteShardLogs, RoutedShardLogs
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.meta.catalog import Topic
from bmq.meta.shard_kinds import ShardId
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.parts import Parts


def coordinator_context(parts: Parts, broker: BrokerRole | None) -> CoordinatorContext:
    """Return the context of the process's coordinators.

    Shards whose partition ``broker`` owns are written and read in this process.
    """
    view, remote = parts.joined.view, RemoteShardLogs(parts.joined.view, parts.catalog, parts.joined.peers)
    logs: ShardLogs = remote
    if broker is not None:
        logs = RoutedShardLogs(view, parts.catalog, broker.shard_logs, remote)
    return CoordinatorContext(
        settings=CoordinatorSettings.of(parts.config), clock=parts.clock, logs=logs, catalog=parts.catalog, view=view,
        bounds=parts.security.client_quotas,
    )  # fmt: skip


class CoordinatorRole:
    """The coordinator role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(
        self,
        parts: Parts,
        context: CoordinatorContext,
        offsets_topic: Callable[[], Awaitable[Topic]],
        transactions: TransactionApis,
    ) -> None:
        """Make the role; ``offsets_topic`` returns ``__consumer_offsets``, and creates it if it is missing.

        The coordinators of all kinds, as ``transactions``, have the same ``context``.
        """
        joined = parts.joined
        self.coordinator = Coordinator(context, offsets_topic, parts.verifier)
        self.transactions = transactions
        self._kinds: Sequence[KindCoordinator[Any]] = (self.coordinator, self.transactions)
        """The kinds in the order in which they start and drain; they close from the last to the first."""
        self._forwarding = Forwarding(self._kinds, joined.view)
        self._standstill = joined.standstill
        joined.standstill.on_doubt.add(lambda _: self._doubt())
        self._forwarding.register(joined.endpoint)

    def offsets(self) -> list[Offsets]:
        """Return the offsets of ``Coordinator.offsets``; none after a standstill that this process has not noticed yet.

        A count of the lag is not a request, before which ``Standstill.look`` would have begun the doubt.
        """
        return [] if self._standstill.is_unnoticed else self.coordinator.offsets()

    def shards_not_loaded(self) -> dict[ShardId, str]:
        """Return the shards of all kinds that are not loaded, each with the reason.  For operators."""
        return {shard: why for kind in self._kinds for shard, why in kind.shards_not_loaded().items()}

    def shards_not_loaded_by_reason(self) -> Mapping[LoadFailure, int]:
        """Count the shards that are not loaded by kind of reason, kinds without any included.  For metrics."""
        counts = Counter[LoadFailure]()
        for kind in self._kinds:
            counts.update(kind.shards_not_loaded_by_reason())
        return counts

    async def start(self) -> None:
        """Begin to load the shards that are assigned to this process."""
        for kind in self._kinds:
            await kind.start()

    def _doubt(self) -> None:
        """Have all shards prove their ownership: they may have new owners after a standstill."""
        for kind in self._kinds:
            kind.doubt()

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more."""
        for kind in self._kinds:
            kind.drain()

    async def close(self) -> None:
        """Close all shards, also if one kind fails.  May be called after a ``start`` that failed."""
        self._forwarding.close()
        async with contextlib.AsyncExitStack() as kinds:
            for kind in self._kinds:
                kinds.push_async_callback(kind.close)
