"""Recent lag of a ``Node``'s groups, sampled in the background, and of any group, from its coordinator."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from bmq.console.lag_history import (
    INTERVAL_MS,
    LagHistory,
    LagHistoryFacts,
    LagSample,
    LagSampleFacts,
)
from bmq.core.config import NodeConfig
from bmq.core.errors import RequestError
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.coordinator import GroupLagRequest, GroupLagResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.meta.catalog import Catalog
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.member_queries import RESPONSE_S

_OFF = "metrics_group_lag_ms is 0: its coordinator does not count the lag of groups"


class GroupLagHistory:
    """Samples of the lag of this process's groups, taken while ``run`` runs.

    They cost as much as a scrape every 15 seconds (see ``coordinator.offsets.lag``).
    """

    def __init__(
        self,
        config: NodeConfig,
        joined: ClusterMember,
        catalog: Catalog,
        collected: Collected,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._joined = joined
        self._catalog = catalog
        self._collected = collected
        self._now_ms = now_ms
        self._own = LagHistory()

    def __repr__(self) -> str:
        return f"<GroupLagHistory {self._own!r}>"

    def register(self) -> None:
        """Register the internal API by which other members read the samples.  To be called once."""
        if self._collected.group_lag is not None:
            self._joined.endpoint.register(GroupLagRequest, self._respond)

    async def run(self) -> None:
        """Sample the groups of this process until it is cancelled; return at once in one without a coordinator."""
        while self._collected.group_lag is not None:
            await self.sample()
            await asyncio.sleep(INTERVAL_MS / 1000)

    async def sample(self) -> None:
        """Take one sample.  A group whose lag is known only in part has none: its line would dip without a cause."""
        collected = self._collected
        if collected.group_lag is None:
            return
        await collected.count_group_lag()
        lags: defaultdict[str, int] = defaultdict(int)
        report = collected.group_lag.report
        for pair in report.pairs:
            if pair.group != OTHER_TOPICS and pair.group not in report.groups_in_part:
                lags[pair.group] += pair.lag
        self._own.add(self._now_ms(), lags)

    def _respond(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        request = GroupLagRequest.decode(body)
        samples = tuple(self._own.since(request.group_id, request.after_ms))
        return GroupLagResponse(is_counted=self._is_counted(), samples=samples).encode()

    def _is_counted(self) -> bool:
        return self._config.metrics_group_lag_ms > 0

    async def facts(self, group_id: str, after_ms: int) -> LagHistoryFacts:
        """Return the samples of a group that are newer than ``after_ms``, from whichever process coordinates it.

        Errors are in the result.
        """
        samples, error = await self._samples(group_id, after_ms)
        return LagHistoryFacts(
            group_id=group_id,
            interval_ms=INTERVAL_MS,
            samples=[LagSampleFacts(time_ms=each.time_ms, lag=each.lag) for each in samples],
            error=error,
        )

    async def _samples(self, group_id: str, after_ms: int) -> tuple[Sequence[LagSample], str]:
        owner = self._coordinator_of(group_id)
        if owner == self._joined.view.own:
            return self._own.since(group_id, after_ms), "" if self._is_counted() else _OFF
        member = self._joined.view.members.get(owner)
        if member is None:
            return (), "no coordinator is known for the group's shard"
        try:
            response = await self._joined.peers.ask(member, GroupLagRequest(group_id, after_ms), RESPONSE_S)
            return [LagSample(*each) for each in response.samples], "" if response.is_counted else _OFF
        except TimeoutError:
            return (), f"{owner} did not answer within {RESPONSE_S:g} s"
        except (RequestError, PeerLost) as error:
            return (), f"{owner}: {error or type(error).__name__}"

    def _coordinator_of(self, group_id: str) -> str:
        topic = self._catalog.topics.get(GROUPS.topic)
        if topic is None:
            return ""
        shard = self._joined.view.shard(ShardId(GROUPS, shard_of(group_id, topic.partitions)))
        return shard.incarnation if shard is not None else ""
