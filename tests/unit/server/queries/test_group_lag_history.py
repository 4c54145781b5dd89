"""The lag of a group over time: sampled by its coordinator, shown by every process."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from bmq.coordinator.offsets.lag import GroupLag, LagReport, PairLag
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.rpc.messages.coordinator import GroupLagRequest, GroupLagResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import OFFSETS_TOPIC
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.group_lag_history import GroupLagHistory
from bmq.server.queries.member_queries import RESPONSE_S
from tests.unit.server.queries.joined import catalog_of, joined, member, topic

NOW_MS = 1_700_000_000_000


class CollectedLag(Collected):
    """Counts the lag each time that it is asked for."""

    def __init__(self, *pairs: PairLag) -> None:
        self._pairs = pairs
        self.group_lag = object.__new__(GroupLag)
        self.group_lag.report = LagReport()

    async def count_group_lag(self) -> None:
        assert self.group_lag is not None
        self.group_lag.report = LagReport(pairs=self._pairs, groups_in_part={"partial"})


class Peers:
    def __init__(self, response: Any) -> None:
        self.outcome = response

    async def ask(self, member: Any, request: GroupLagRequest, timeout_s: float) -> Any:
        assert member.incarnation == "coordinator-1"
        assert request.group_id == "billing"
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def cluster_of(coordinator: str | None = "own", response: Any = None) -> ClusterMember:
    """Return the membership of a process in a cluster with a group's shard at ``coordinator``."""
    shards = {ShardId(GROUPS, 0): ShardOwner(coordinator, 1)} if coordinator is not None else {}
    ask = None if response is None else Peers(response).ask
    return joined(member("own"), member("coordinator-1"), ask=ask, shards=shards)


def history_of(of: ClusterMember, interval_ms: int = 15_000) -> GroupLagHistory:
    collected = CollectedLag(
        PairLag("billing", "orders", 10, 5, 5), PairLag("billing", "payments", 10, 3, 3),
        PairLag("audit", "orders", 1, 0, 0),
        PairLag("partial", "orders", 10, 5, 5), PairLag("partial", "payments", 10, 3, 3),
        PairLag(OTHER_TOPICS, OTHER_TOPICS, 1, 900, 900),
    )  # fmt: skip
    config, catalog = NodeConfig(metrics_group_lag_ms=interval_ms), catalog_of(topic(OFFSETS_TOPIC, UUID(int=1)))
    return GroupLagHistory(config, of, catalog, collected, lambda: NOW_MS)


async def test_a_coordinator_samples_its_groups_over_all_topics() -> None:
    of = cluster_of()
    history = history_of(of)
    history.register()
    await history.sample()
    facts = await history.facts("billing", 0)
    assert (facts["samples"], facts["error"]) == ([{"time_ms": NOW_MS, "lag": 8}], "")
    assert (await history.facts("billing", NOW_MS))["samples"] == []
    assert (await history.facts(OTHER_TOPICS, 0))["samples"] == []
    assert (await history.facts("partial", 0))["samples"] == []
    response = await of.peers.ask(member("own"), GroupLagRequest(group_id="audit", after_ms=0), RESPONSE_S)
    assert (response.is_counted, response.samples) == (True, ((NOW_MS, 0),))


async def test_the_coordinator_is_asked() -> None:
    response = GroupLagResponse(is_counted=True, samples=((NOW_MS, 4),))
    facts = await history_of(cluster_of("coordinator-1", response)).facts("billing", 0)
    assert (facts["samples"], facts["error"]) == ([{"time_ms": NOW_MS, "lag": 4}], "")


@pytest.mark.parametrize(
    ("coordinator", "response", "error"),
    [
        (None, None, "no coordinator is known for the group's shard"),
        ("gone", None, "no coordinator is known for the group's shard"),
        ("coordinator-1", GroupLagResponse(), "metrics_group_lag_ms is 0"),
        ("coordinator-1", TimeoutError(), "coordinator-1 did not answer within 2 s"),
        ("coordinator-1", PeerLost("refused", was_sent=False), "coordinator-1: refused"),
        (
            "coordinator-1",
            RequestError(ErrorCode.UNSUPPORTED_VERSION, "of an old one"),
            "coordinator-1: UNSUPPORTED_VERSION: of an old one",
        ),
    ],
)
async def test_why_there_is_none(coordinator: str | None, response: Any, error: str) -> None:
    facts = await history_of(cluster_of(coordinator, response)).facts("billing", 0)
    assert facts["samples"] == []
    assert facts["error"].startswith(error)


async def test_there_is_none_while_the_lag_is_not_counted() -> None:
    facts = await history_of(cluster_of(), interval_ms=0).facts("billing", 0)
    assert (facts["samples"], facts["error"][:25]) == ([], "metrics_group_lag_ms is 0")
