"""Numbers that are collected between scrapes, each by the process that shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bmq.core.config import NodeConfig
from bmq.server.queries.collected_metrics import Collected


def collected(asked: list[str], *, leads: bool = False) -> Collected:
    """Return the metrics of a broker and coordinator; ``asked`` gets the name of each source that is read."""

    def offsets() -> list[Any]:
        asked.append("offsets")
        return []

    def open_owners() -> list[Any]:
        asked.append("logs")
        return []

    broker: Any = SimpleNamespace(assigned=SimpleNamespace(open_owner=None, open_owners=open_owners))
    coordinator: Any = SimpleNamespace(coordinator=SimpleNamespace(offsets=offsets))
    controller: Any = SimpleNamespace(is_leader=leads)
    catalog: Any = SimpleNamespace(topics={})
    joined: Any = SimpleNamespace(view=SimpleNamespace(own="own", members={}), peers=None)

    async def facts() -> None:
        asked.append("room")

    room: Any = SimpleNamespace(facts=facts)
    return Collected(
        NodeConfig(), catalog, joined, broker=broker, coordinator=coordinator, controller=controller, room=room
    )


async def test_a_scrape_has_all_of_it_collected() -> None:
    asked: list[str] = []
    of = collected(asked)
    of.request()
    await of.wait()
    assert set(asked) == {"offsets", "logs"}
    await of.close()


async def test_the_leader_alone_reads_the_room_of_storage() -> None:
    """One process of the cluster looks, and not at each scrape: without a quota, HDFS counts the root's files."""
    asked: list[str] = []
    of = collected(asked, leads=True)
    for _ in range(3):
        of.request()
        await of.wait()
    assert asked.count("room") == 1
    await of.close()


async def test_the_first_count_of_the_log_sizes_is_waited_for() -> None:
    asked: list[str] = []
    of = collected(asked)
    sizes = await of.count_log_sizes()
    assert (set(asked), sizes.is_counted) == ({"logs"}, True)
    looks = len(asked)
    assert await of.count_log_sizes() is sizes
    await of.wait()
    assert len(asked) == looks, "it was counted a moment ago"
    await of.close()


async def test_the_lag_is_counted_without_a_look_at_storage() -> None:
    """Count the lag, which is sampled all the time: also while no scrape comes, and while storage does not respond."""

    asked: list[str] = []
    of = collected(asked)
    await of.count_group_lag()
    assert set(asked) == {"offsets"}
    looks = len(asked)
    await of.count_group_lag()
    assert len(asked) == looks, "it was counted a moment ago"
    await of.close()
