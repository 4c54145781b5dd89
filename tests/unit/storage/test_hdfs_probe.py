"""Datanodes asked whether they answer: once for all who want to know; a silent one stays excluded.  They are played."""

from __future__ import annotations

import asyncio
import time

from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.opening import Exclusions, _drop_answering
from tests.unit.storage.test_hdfs_open_block import MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY, datanodes
from tests.unit.test_hdfs_namenode import run


def test_whatever_is_answered_is_a_sign_of_life() -> None:
    async def test() -> None:
        async with datanodes(0, 0, None, MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY) as (client, located):
            nodes = [node.id for node in located.nodes]
            assert await client.datanodes.silent(nodes, located.block) == [node_name(nodes[1])]

    run(test)


def test_a_silent_node_is_asked_once_for_all() -> None:
    async def test() -> None:
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

    run(test)


def test_exclusions_that_cost_a_replica_are_dropped_but_for_silent_nodes() -> None:
    """A pipeline through a silent node would not open: fewer replicas are better."""

    async def test() -> None:
        async with datanodes(0, 0, None, 0, None) as (client, located):
            client.suspects.learn(located.nodes)
            names = [node_name(node.id) for node in located.nodes]
            client.suspect(names[2:])
            exclusions = Exclusions(advised=set(names[:2]), suspected=set(names[2:]))
            assert await _drop_answering(client, exclusions, located)
            assert (exclusions.advised, exclusions.suspected) == ({names[1]}, {names[3]})
            assert client.suspected() == {names[3]}
            assert not await _drop_answering(client, exclusions, located), "nothing more to drop: taken as it is"

    run(test)


def test_a_probe_that_our_own_stop_has_outlasted_is_asked_again() -> None:
    async def test() -> None:
        async with datanodes(0, 0) as (client, located):
            asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)  # longer than probe_timeout_s
            assert await client.datanodes.silent([located.nodes[0].id], located.block) == []

    run(test)
