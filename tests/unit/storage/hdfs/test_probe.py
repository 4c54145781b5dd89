"""Datanodes asked whether they answer: once for all who want to know; a silent one stays excluded.  They are played."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from bmq.storage.hdfs.block_allocation import Exclusions, _drop_responding
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import NodeUnreachable, node_name
from tests.unit.storage.hdfs.test_open_block import MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY, datanodes
from tests.unit.storage.hdfs.test_refusing_nodes import played_hdfs

pytestmark = pytest.mark.loops("asyncio")


async def test_whatever_is_answered_is_a_sign_of_life() -> None:
    async with datanodes(0, 0, None, MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY) as (client, located):
        nodes = [node.id for node in located.nodes]
        assert await client.datanodes.silent(nodes, located.block) == [node_name(nodes[1])]


async def test_a_silent_node_is_asked_once_for_all() -> None:
    async with datanodes(0, None) as (client, located):
        nodes = [node.id for node in located.nodes]
        asked = 0
        visible_length = client.datanodes.visible_length

        async def count(*arguments: object) -> int:
            nonlocal asked
            asked += 1
            return await visible_length(*arguments)  # type: ignore[arg-type]

        client.datanodes.visible_length = count  # type: ignore[method-assign, assignment]
        answers = await asyncio.gather(*(client.datanodes.silent(nodes, located.block) for _ in range(8)))
        assert answers == [[node_name(nodes[0])]] * 8
        assert await client.datanodes.silent(nodes, located.block) == [node_name(nodes[0])]
        assert asked == 1, "shared, and remembered for silent_s"


async def test_exclusions_that_cost_a_replica_are_dropped_but_for_silent_nodes() -> None:
    """A pipeline through a silent node would not open: fewer replicas are better."""

    async with datanodes(0, 0, None, 0, None) as (client, located):
        client.suspects.learn(located.nodes)
        names = [node_name(node.id) for node in located.nodes]
        client.suspect(names[2:])
        exclusions = Exclusions(advised=set(names[:2]), suspected=set(names[2:]))
        assert await _drop_responding(client, exclusions, located)
        assert (exclusions.advised, exclusions.suspected) == ({names[1]}, {names[3]})
        assert client.suspected() == {names[3]}
        assert not await _drop_responding(client, exclusions, located), "nothing more to drop: taken as it is"


async def test_a_probe_that_our_own_stop_has_outlasted_is_asked_again() -> None:
    async with datanodes(0, 0) as (client, located):
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)  # longer than probe_timeout_s
        assert await client.datanodes.silent([located.nodes[0].id], located.block) == []


def _cut(client: HdfsClient, cut: set[str]) -> Callable[[], int]:
    """Let no probe reach the nodes in ``cut``.  Returns a function that gives the number of probes so far."""
    visible_length, asked = client.datanodes.visible_length, 0

    async def ask(node: Any, *arguments: Any) -> int:
        nonlocal asked
        asked += 1
        if node_name(node) in cut:
            raise NodeUnreachable(f"{node_name(node)}: cut off")
        return await visible_length(node, *arguments)

    client.datanodes.visible_length = ask  # type: ignore[method-assign, assignment]
    return lambda: asked


@pytest.mark.parametrize("all_copies", [True, False])
async def test_a_file_opened_right_after_a_cut_has_all_its_copies(
    all_copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four nodes were found silent a moment ago: it was this process that was cut off.  The fourth had just
    been started, and was never suspected: it alone would have the file."""

    async with played_hdfs(monkeypatch, 0, 0, 0, 0) as hdfs:
        client, cut = hdfs._client, set(hdfs.names[:3])
        client.suspects.learn(hdfs._nodes)
        _cut(client, cut)
        nodes = [node.id for node in hdfs._nodes]
        assert await client.datanodes.silent(nodes, hdfs._block) == hdfs.names[:3]
        client.suspect(hdfs.names[:3])
        assert await hdfs.open(all_copies=all_copies) == [3], "as long as they are silent"
        cut.clear()
        assert await hdfs.open(all_copies=all_copies) == [0, 1, 2]
        assert hdfs.blocks_held == 2, "what was asked for in vain is given back"


async def test_a_dead_node_is_not_asked_again_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        client = hdfs._client
        client.suspects.learn(hdfs._nodes)
        asked = _cut(client, {hdfs.names[0]})
        client.suspect(hdfs.names[:1])
        for _ in range(4):
            assert await hdfs.open() == [1, 2]
        assert asked() == 1
