"""The role of a broker: its settings of upkeep, and the time by which it closes."""

from __future__ import annotations

import asyncio
import math

import pytest

from bmq.broker.broker import Broker
from bmq.broker.cleanup.config import JanitorConfig
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.server.roles.broker import _janitor_config
from tests.harness.single_node import memory_node


@pytest.mark.parametrize(("backoff_ms", "interval_ms"), [(100, 1_000), (5_000, 5_000), (60_000, 30_000)])
def test_a_short_backoff_of_the_cleaner_shortens_the_rounds_of_upkeep(backoff_ms: int, interval_ms: int) -> None:
    config = _janitor_config(NodeConfig(log_cleaner_backoff_ms=backoff_ms))
    assert (config.clean_ms, config.interval_ms) == (backoff_ms, interval_ms)


def test_the_default_backoff_changes_nothing() -> None:
    assert _janitor_config(NodeConfig()) == JanitorConfig()


def test_the_cleaner_can_be_disabled() -> None:
    assert _janitor_config(NodeConfig(log_cleaner_enable=False)) == JanitorConfig(clean_enabled=False)


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_broker_closes_by_the_end_of_the_drain(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[float | None] = []
    close = Broker.close

    async def noted(self: Broker, deadline: float | None = None) -> None:
        deadlines.append(deadline)
        await close(self, deadline)

    monkeypatch.setattr(Broker, "close", noted)
    now = asyncio.get_running_loop().time()
    async with memory_node(NodeConfig(roles=("broker",), default_replication_factor=1), LoopClock()) as node:
        await node.start()
        if leaves:
            await node.leave(now + 1.0, close_by=now + 2.0)
    assert deadlines == [now + 2.0 if leaves else math.inf]
