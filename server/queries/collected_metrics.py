"""Numbers of a ``Node``, collected between scrapes of ``/metrics``: groups' lag, bytes and room of storage."""

from __future__ import annotations

from bmq.broker.log_sizes import LogSizes
from bmq.coordinator.offsets.lag import GroupLag
from bmq.core.config import NodeConfig
from bmq.core.metrics.refresh import Refresh
from bmq.meta.catalog import Catalog
from bmq.proxy.routing.high_watermarks import HighWatermarks
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.counts import Counts
from bmq.server.queries.storage_room import StorageRoom
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.controller import ControllerRole
from bmq.server.roles.coordinator import CoordinatorRole

LOG_SIZES_S = 15.0
"""Least time between two refreshes of the log sizes."""
ROOM_S = 300.0
"""Least time between two looks at storage's room: without a quota, HDFS counts the files of the root for each."""
FIRST_SIZES_S = 1.0
"""Time-out of the wait for the first count of the log sizes."""


class Collected:
    """The collected numbers of one process.

    A scrape shows the last collection and starts the next one.  Without scrapes only the lag is counted, for its
    samples (``server.queries.group_lag_history``), and the log sizes while a console shows them.
    """

    def __init__(
        self,
        config: NodeConfig,
        catalog: Catalog,
        joined: ClusterMember,
        *,
        broker: BrokerRole | None,
        coordinator: CoordinatorRole | None,
        controller: ControllerRole | None,
        room: StorageRoom,
    ) -> None:
        """Collect the numbers of the roles; ``room`` is read by the leader alone."""
        self.counts = Counts(broker, coordinator)
        self._controller = controller
        self._room_refresh = Refresh(lambda: _read(room), ROOM_S, "the room of storage")
        self.group_lag: GroupLag | None = None
        self.log_sizes: LogSizes | None = None
        self._lag_refresh: Refresh | None = None
        self._sizes_refresh: Refresh | None = None
        self._refreshes: list[Refresh] = []
        if coordinator is not None:
            local = broker.assigned.proven_watermark if broker is not None else None
            ends = HighWatermarks(joined.view, local, joined.peers)
            self.group_lag = GroupLag(coordinator.offsets, catalog, ends.find, config.metrics_groups_max)
            interval_s = config.metrics_group_lag_ms / 1000
            self._lag_refresh = Refresh(self.group_lag.refresh, interval_s, "the lag of groups")
            self._refreshes.append(self._lag_refresh)
        if broker is not None:
            self.log_sizes = LogSizes(broker.assigned.open_owners, config.metrics_topics_max)
            self._sizes_refresh = Refresh(self.log_sizes.refresh, LOG_SIZES_S, "the sizes of logs")
            self._refreshes.append(self._sizes_refresh)

    def request(self) -> None:
        """Start a collection in the background, unless the last one is recent."""
        for refresh in self._refreshes:
            refresh.request()
        if self._controller is not None and self._controller.is_leader:
            self._room_refresh.request()

    async def count_group_lag(self) -> None:
        """Count the lag again, unless the last count is recent, and wait for it.

        The log sizes are not counted here, since they wait for storage.
        """
        if self._lag_refresh is not None:
            self._lag_refresh.request()
            await self._lag_refresh.wait()

    async def count_log_sizes(self) -> LogSizes:
        """Return this broker's log sizes as counted last, and start the next count in the background.

        Before the first count has ended, waits for it, ``FIRST_SIZES_S`` at most (see ``LogSizes.is_counted``).
        """
        assert self.log_sizes is not None, "only a broker has logs"
        assert self._sizes_refresh is not None
        self._sizes_refresh.request()
        if not self.log_sizes.is_counted:
            await self._sizes_refresh.wait(FIRST_SIZES_S)
        return self.log_sizes

    async def wait(self) -> None:
        """Wait for the collections that are under way, except the counts, whose callers wait for them."""
        for refresh in (*self._refreshes, self._room_refresh):
            await refresh.wait()

    async def close(self) -> None:
        """End the collections, and start no more."""
        await self.counts.close()
        for refresh in (*self._refreshes, self._room_refresh):
            await refresh.close()


async def _read(room: StorageRoom) -> None:
    await room.facts()
