"""Numbers that are collected between scrapes, each by the process that shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.server.queries.collected_metrics import Collected
from bmq.server.roles.controller import ControllerRole
from tests.unit.server.queries.console_node import node_with


@asynccontextmanager
async def collected(asked: list[str]) -> AsyncIterator[Collected]:
    """Yield the numbers of a broker and coordinator; ``asked`` gets the name of each source that is read."""

    def offsets() -> list[Any]:
        asked.append("offsets")
        return []

    def open_owners() -> list[Any]:
        asked.append("logs")
        return []

    async def facts() -> Any:
        asked.append("room")

    async with node_with("broker", "coordinator", "controller", starts=False) as node:
        assert node.broker is not None
        assert node.coordinator is not None
        node.broker.assigned.open_owners = open_owners  # type: ignore[method-assign]
        node.coordinator.coordinator.offsets = offsets  # type: ignore[method-assign]
        node.storage_room.facts = facts
        of = Collected(
            node.config, node.catalog, node.joined, broker=node.broker, coordinator=node.coordinator,
            controller=node.controller, room=node.storage_room,
        )  # fmt: skip
        yield of
        await of.close()


async def test_a_scrape_has_all_of_it_collected() -> None:
    asked: list[str] = []
    async with collected(asked) as of:
        of.request()
        await of.wait()
        assert set(asked) == {"offsets", "logs"}


async def test_the_leader_alone_reads_the_room_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of the cluster looks, and not at each scrape: without a quota, HDFS counts the root's files."""
    asked: list[str] = []
    monkeypatch.setattr(ControllerRole, "is_leader", True)
    async with collected(asked) as of:
        for _ in range(3):
            of.request()
            await of.wait()
        assert asked.count("room") == 1


async def test_the_first_count_of_the_log_sizes_is_waited_for() -> None:
    asked: list[str] = []
    async with collected(asked) as of:
        sizes = await of.count_log_sizes()
        assert (set(asked), sizes.is_counted) == ({"logs"}, True)
        looks = len(asked)
        assert await of.count_log_sizes() is sizes
        await of.wait()
        assert len(asked) == looks, "it was counted a moment ago"


async def test_the_lag_is_counted_without_a_look_at_storage() -> None:
    """Count the lag, which is sampled all the time: also while no scrape comes, and while storage does not respond."""

    asked: list[str] = []
    async with collected(asked) as of:
        await of.count_group_lag()
        assert set(asked) == {"offsets"}
        looks = len(asked)
        await of.count_group_lag()
        assert len(asked) == looks, "it was counted a moment ago"
