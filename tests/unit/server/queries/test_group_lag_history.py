"""The lag of a group over time: sampled by its coordinator, shown by every process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bmq.coordinator.offsets.lag import LagReport, PairLag
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.rpc.messages.coordinator import GroupLagRequest, GroupLagResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import OFFSETS_TOPIC
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.queries.group_lag_history import GroupLagHistory

NOW_MS = 1_700_000_000_000


class Collected:
    """Counts the lag each time that it is asked for."""

    def __init__(self, *pairs: PairLag) -> None:
        self._pairs = pairs
        self.group_lag = SimpleNamespace(report=LagReport())

    async def count_group_lag(self) -> None:
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


def node(*, coordinator: str | None = "own", response: Any = None, interval_ms: int = 15_000) -> Any:
    pairs = (
        PairLag("billing", "orders", 10, 5), PairLag("billing", "payments", 10, 3), PairLag("audit", "orders", 1, 0),
        PairLag("partial", "orders", 10, 5), PairLag("partial", "payments", 10, 3),
        PairLag(OTHER_TOPICS, OTHER_TOPICS, 1, 900),
    )  # fmt: skip
    handlers: dict[Any, Any] = {}
    members = {name: SimpleNamespace(incarnation=name) for name in ("own", "coordinator-1")}
    shards = {ShardId(GROUPS, 0): SimpleNamespace(incarnation=coordinator)} if coordinator is not None else {}
    return SimpleNamespace(
        config=SimpleNamespace(metrics_group_lag_ms=interval_ms),
        joined=SimpleNamespace(
            peers=Peers(response),
            endpoint=SimpleNamespace(register=handlers.__setitem__),
            view=SimpleNamespace(own="own", members=members, shard=shards.get),
        ),
        handlers=handlers,
        catalog=SimpleNamespace(topics={OFFSETS_TOPIC: SimpleNamespace(partitions=1)}),
        collected=Collected(*pairs),
    )


def history_of(of: Any) -> GroupLagHistory:
    return GroupLagHistory(of.config, of.joined, of.catalog, of.collected, lambda: NOW_MS)


async def test_a_coordinator_samples_its_groups_over_all_topics() -> None:
    of = node()
    history = history_of(of)
    history.register()
    await history.sample()
    facts = await history.facts("billing", 0)
    assert (facts["samples"], facts["error"]) == ([{"time_ms": NOW_MS, "lag": 8}], "")
    assert (await history.facts("billing", NOW_MS))["samples"] == []
    assert (await history.facts(OTHER_TOPICS, 0))["samples"] == []
    assert (await history.facts("partial", 0))["samples"] == []
    (body,) = GroupLagRequest(group_id="audit", after_ms=0).encode()
    response = GroupLagResponse.decode(memoryview(b"".join(of.handlers[GroupLagRequest](body, None))))
    assert (response.is_counted, response.samples) == (True, ((NOW_MS, 0),))


async def test_the_coordinator_is_asked() -> None:
    response = GroupLagResponse(is_counted=True, samples=((NOW_MS, 4),))
    facts = await history_of(node(coordinator="coordinator-1", response=response)).facts("billing", 0)
    assert (facts["samples"], facts["error"]) == ([{"time_ms": NOW_MS, "lag": 4}], "")


@pytest.mark.parametrize(
    ("of", "error"),
    [
        (node(coordinator=None), "no coordinator is known for the group's shard"),
        (node(coordinator="gone"), "no coordinator is known for the group's shard"),
        (node(interval_ms=0), "metrics_group_lag_ms is 0"),
        (node(coordinator="coordinator-1", response=GroupLagResponse()), "metrics_group_lag_ms is 0"),
        (node(coordinator="coordinator-1", response=TimeoutError()), "coordinator-1 did not answer within 2 s"),
        (node(coordinator="coordinator-1", response=PeerLost("refused", was_sent=False)), "coordinator-1: refused"),
        (
            node(coordinator="coordinator-1", response=RequestError(ErrorCode.UNSUPPORTED_VERSION, "of an old one")),
            "coordinator-1: UNSUPPORTED_VERSION: of an old one",
        ),
    ],
)
async def test_why_there_is_none(of: Any, error: str) -> None:
    facts = await history_of(of).facts("billing", 0)
    assert facts["samples"] == []
    assert facts["error"].startswith(error)
