"""Each row of the table that decides about a pipeline whose flush is late (broker/partition/slow_pipeline.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.context import BrokerState, OpenPartition
from bmq.broker.events import CheckSlowPipeline, SegmentFailed
from bmq.broker.files.datanode_health import NodeHealth
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.slow_pipeline import check_slow_pipeline
from bmq.core.model import SegmentName
from tests.harness.waiting import now

NAME, OTHER = SegmentName(0, 1, 0), SegmentName(9, 1, 0)
NODES = ("d1", "d2", "d3")
SLOW_MS = BrokerConfig().slow_flush_ms
PROBE_S = 0.1


def now_ms() -> int:
    return int(now() * 1000)


class Partition:
    """A partition with an open pipeline, whose oldest flush began ``age_ms`` ago; None: nothing is in flight."""

    def __init__(self, shared: Any, age_ms: int | None, nodes: Sequence[str] = NODES, name: SegmentName = NAME) -> None:
        self.context = shared
        self.nodes = tuple(nodes)
        self.posted: list[Any] = []
        self.inflight = [] if age_ms is None else [SimpleNamespace(sent_ms=now_ms() - age_ms)]
        self.machine = SimpleNamespace(
            current=SimpleNamespace(entry=SimpleNamespace(name=name)), batches=SimpleNamespace(inflight=self.inflight)
        )
        shared.state.busy.add(cast(OpenPartition, self))

    def post(self, event: Any) -> None:
        self.posted.append(event)

    async def check(self, age_ms: int = SLOW_MS, *, is_slow: bool = True) -> SegmentFailed | None:
        return await check_slow_pipeline(cast(PartitionDriver, self), CheckSlowPipeline(NAME, age_ms, is_slow))


class Shared:
    """The part of a broker that its partitions share; ``silent`` nodes do not respond to a probe."""

    def __init__(self, silent: Sequence[str] = ()) -> None:
        self.silent = set(silent)
        self.health = NodeHealth()
        self.config = BrokerConfig()
        self.fs = self
        self.state = BrokerState()

    def now_ms(self) -> int:
        return now_ms()

    async def probe(self, node: str) -> bool:
        await asyncio.sleep(PROBE_S)
        return node not in self.silent

    def take_all_tokens(self) -> None:
        while self.health.take_roll_token(now_ms()):
            pass

    @property
    def tokens(self) -> int:
        count = 0
        while self.health.take_roll_token(now_ms()):
            count += 1
        return count


@pytest.mark.parametrize("is_slow", [True, False])
@pytest.mark.parametrize("has_token", [True, False])
async def test_a_silent_node_ends_every_pipeline_that_waits_for_it_at_once(is_slow: bool, has_token: bool) -> None:
    shared = Shared(silent=["d2"])
    if not has_token:
        shared.take_all_tokens()
    late = Partition(shared, SLOW_MS)
    same, elsewhere = Partition(shared, 1, ("d2", "d4")), Partition(shared, 1, ("d4", "d5"))
    idle = Partition(shared, None, ("d2",))
    failed = await late.check(is_slow=is_slow)
    assert failed == SegmentFailed(NAME, f"no flush for {SLOW_MS + 100} ms; silent: d2")
    assert now() == pytest.approx(PROBE_S)
    assert [len(each.posted) for each in (same, elsewhere, idle)] == [1, 0, 0]
    assert shared.health.excluded(now_ms()) == ("d2",)


@pytest.mark.parametrize("has_token", [True, False])
async def test_if_no_node_responds_a_token_is_needed(has_token: bool) -> None:
    shared = Shared(silent=NODES)
    if not has_token:
        shared.take_all_tokens()
    late = Partition(shared, SLOW_MS)
    failed = await late.check()
    assert (failed is not None) == has_token
    assert shared.health.excluded(now_ms()) == (NODES if has_token else ())


@pytest.mark.parametrize("has_token", [True, False])
async def test_an_outlier_ends_a_slow_pipeline_at_once_for_a_token(has_token: bool) -> None:
    shared = Shared()
    for _ in range(100):
        shared.health.flushed(["d1", "d3", "d4", "d5"], 1)
        shared.health.flushed(["d2"], 5_000)
    if not has_token:
        shared.take_all_tokens()
    failed = await Partition(shared, SLOW_MS).check()
    assert now() == pytest.approx(PROBE_S)
    if has_token:
        assert failed == SegmentFailed(NAME, f"no flush for {SLOW_MS} ms; slow: d2")
        assert shared.health.excluded(now_ms()) == ("d2",)
    else:
        assert failed is None
        assert shared.health.excluded(now_ms()) == ()


@pytest.mark.parametrize("has_token", [True, False])
async def test_without_an_outlier_it_has_twice_the_time(has_token: bool) -> None:
    shared = Shared()
    if not has_token:
        shared.take_all_tokens()
    failed = await Partition(shared, SLOW_MS).check()
    assert now() >= SLOW_MS / 1000
    assert (failed is not None) == has_token
    if failed is not None:
        assert failed.reason.endswith("slow: all")
    assert shared.health.excluded(now_ms()) == ()


async def test_a_pipeline_that_is_not_called_slow_is_kept_while_its_nodes_respond() -> None:
    shared = Shared()
    assert await Partition(shared, SLOW_MS).check(is_slow=False) is None
    assert now() == pytest.approx(PROBE_S)
    assert shared.tokens == shared.health.config.roll_tokens


async def test_a_pipeline_that_is_fast_again_is_kept() -> None:
    """The pipeline's oldest flush is acknowledged while it is watched, and the next one is young."""
    shared = Shared()
    late = Partition(shared, SLOW_MS)

    def acknowledge() -> None:
        late.inflight[:] = [SimpleNamespace(sent_ms=now_ms())]

    asyncio.get_running_loop().call_later(SLOW_MS / 1000 - 0.05, acknowledge)
    assert await late.check() is None
    assert shared.tokens == shared.health.config.roll_tokens


@pytest.mark.parametrize("why", ["nothing is in flight", "another segment is open", "none is open"])
async def test_what_nothing_waits_for_any_more_is_left_alone(why: str) -> None:
    shared = Shared(silent=["d2"])
    late = Partition(
        shared, None if why == "nothing is in flight" else SLOW_MS, name=OTHER if "another" in why else NAME
    )
    if why == "none is open":
        late.machine.current = None
    assert await late.check() is None
    assert shared.health.excluded(now_ms()) == ()
