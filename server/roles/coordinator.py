"""The coordinator role of one process: the coordinator of its shards, and its service to other processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.server import Forwarding
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.remote_log import RemoteShardLogs, RoutedShardLogs
from bmq.core.rpc.messages.coordinator import ForwardRequest, ShardsNotLoadedRequest
from bmq.meta.catalog import Topic
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.parts import Parts


class CoordinatorRole:
    """The coordinator role of one process.  ``start`` it once catalog and view are loaded."""

    def __init__(self, parts: Parts, broker: BrokerRole | None, offsets_topic: Callable[[], Awaitable[Topic]]) -> None:
        """Make the role; ``offsets_topic`` returns ``__consumer_offsets``, and creates it if it is missing.

        Shards whose partition ``broker`` owns are written and read in this process.
        """
        joined = parts.joined
        remote = RemoteShardLogs(joined.view, parts.catalog, joined.peers)
        logs: ShardLogs = remote
        if broker is not None:
            logs = RoutedShardLogs(joined.view, parts.catalog, broker.shard_logs, remote)
        self.coordinator = Coordinator(
            parts.config, parts.clock, logs, offsets_topic, parts.catalog, joined.view,
            bounds=parts.security.client_quotas,
        )  # fmt: skip
        self._forwarding = Forwarding(self.coordinator, joined.view)
        joined.endpoint.register(ForwardRequest, self._forwarding.handle)
        joined.endpoint.register(ShardsNotLoadedRequest, self._forwarding.list_not_loaded)

    async def start(self) -> None:
        """Begin to load the shards that are assigned to this process."""
        await self.coordinator.start()

    def drain(self) -> None:
        """Respond to all requests that wait, and let none wait any more."""
        self.coordinator.drain()

    async def close(self) -> None:
        """Close all shards.  May be called after a ``start`` that failed."""
        self._forwarding.close()
        await self.coordinator.close()
