"""A datanode that is paused, not dead: it takes connections and answers nothing.

It is left by every pipeline at once, whatever the tokens for slowness, and avoided by all that is opened.
"""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker.config import BrokerConfig, log_config
from bmq.storage.memory import MemoryFileSystem
from tests.unit.broker.world import World, batch, world

PARTITIONS = 8
DETECTION_S = 1.0
"""Here a probe costs no time: what is left is ``silent_flush_ms``, and opening the next files."""


def make_topic(w: World, partitions: int = 1) -> None:
    """Make a topic with three copies of each segment."""
    topic = w.topic("orders", partitions, assign=False)
    for number in range(partitions):
        w.assigned.assign(w.path("orders", number), w.key("orders", number), log_config(topic.configs, 3))


def spend_tokens(w: World) -> None:
    while w.broker.context.health.take_roll_token(w.broker.context.now_ms()):
        pass


def open_nodes(w: World) -> list[set[str]]:
    """Return the datanodes of each open segment."""
    return [set(appender.nodes) for appender in w.storage.appenders if "/topics/" in appender.lease.paths[0]]


async def produce_all(w: World) -> float:
    """Produce a batch to each partition, as a request of its own, and return the seconds until the last response."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await asyncio.gather(*(w.produce_one(batch(), number) for number in range(PARTITIONS)))
    assert [response.error_code for response in answers] == [0] * PARTITIONS
    return loop.time() - began


@pytest.mark.parametrize("has_tokens", [True, False])
async def test_rule_6_a_silent_node_is_left_by_all_partitions_at_once(has_tokens: bool) -> None:
    async with world() as w:
        make_topic(w, PARTITIONS)
        await produce_all(w)
        if not has_tokens:
            spend_tokens(w)
        w.storage.stop_datanode("dn1")
        affected = sum("dn1" in nodes for nodes in open_nodes(w))
        assert affected > 1
        assert await produce_all(w) < DETECTION_S
        assert not any("dn1" in nodes for nodes in open_nodes(w))
        w.storage.resume_datanode("dn1")


@pytest.mark.slow
async def test_a_second_silent_node_is_left_as_soon_as_the_first() -> None:
    """The new pipelines are younger than ``slow_roll_interval_ms``: that is for slowness alone."""

    async with world() as w:
        make_topic(w, PARTITIONS)
        await produce_all(w)
        for node in ("dn1", "dn2"):
            w.storage.stop_datanode(node)
            assert await produce_all(w) < DETECTION_S
        for node in ("dn1", "dn2"):
            w.storage.resume_datanode(node)


async def test_a_pipeline_that_was_idle_is_left_with_its_first_batch() -> None:
    async with world() as w:
        make_topic(w, 2)
        loop = asyncio.get_running_loop()
        for number in range(2):
            await w.produce_one(batch(), number)
        (node, *_) = set.intersection(*open_nodes(w))
        w.storage.stop_datanode(node)
        await w.produce_one(batch(), 0)
        began = loop.time()
        await w.produce_one(batch(), 1)
        assert loop.time() - began < BrokerConfig().silent_flush_ms / 1000, "nothing was sent to it"
        w.storage.resume_datanode(node)


async def test_segments_without_any_responding_node_are_left_only_for_a_token() -> None:
    """Stop every datanode of the segment while no roll token is left: the fault may be the broker's own network, so it
    does not open a storm of new files."""

    async with world() as w:
        make_topic(w)
        await w.produce_one(batch())
        spend_tokens(w)
        (nodes,) = before = open_nodes(w)
        for node in nodes:
            w.storage.stop_datanode(node)
        waiting = w.produce({("orders", 0): batch()})
        await asyncio.sleep(2.0)
        assert open_nodes(w) == before
        for node in nodes:
            w.storage.resume_datanode(node)
        assert (await waiting)[0].error_code == 0


async def test_segments_on_slow_nodes_that_respond_are_left_only_for_a_token() -> None:
    async with world() as w:
        make_topic(w)
        await w.produce_one(batch())
        spend_tokens(w)
        before = open_nodes(w)
        for node in w.storage.datanodes:
            w.storage.slow_datanode(node, 2.5)
        assert (await w.produce_one(batch())).error_code == 0
        assert open_nodes(w) == before


async def test_the_journal_probes_the_nodes_of_a_late_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage then knows which ones the next file is to avoid."""
    asked: list[str] = []
    probe = MemoryFileSystem.probe

    async def note(fs: MemoryFileSystem, node: str) -> bool:
        asked.append(node)
        return await probe(fs, node)

    monkeypatch.setattr(MemoryFileSystem, "probe", note)

    async with world() as w:
        make_topic(w)
        await w.produce_one(batch())
        (journal,) = [each for each in w.storage.appenders if "/journals/" in each.lease.paths[0]]
        (node,) = set(journal.nodes[:1])
        w.storage.stop_datanode(node)
        await w.produce_one(batch())
        await asyncio.sleep(BrokerConfig().checkpoint_ms / 1000 + 1.0)
        assert set(journal.nodes) <= set(asked)
        w.storage.resume_datanode(node)
