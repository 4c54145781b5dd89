"""Datanodes that are probed and suspected: one probe for all callers, and suspicions that end."""

from __future__ import annotations

import asyncio
import time

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.datanode import SuspectNodes, node_name
from tests.unit.storage.hdfs.fakes import MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY, datanodes

pytestmark = pytest.mark.loops("asyncio")


@pytest.mark.slow
async def test_a_probe_takes_any_response_for_a_sign_of_life() -> None:
    async with datanodes(0, 0, None, MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY) as (client, located):
        nodes = [node.id for node in located.nodes]
        assert await client.datanodes.silent(nodes) == [node_name(nodes[1])]


@pytest.mark.slow
async def test_callers_share_one_probe_of_a_silent_node() -> None:
    async with datanodes(0, None) as (client, located):
        nodes = [node.id for node in located.nodes]
        asked = 0
        visible_length = client.datanodes.visible_length

        async def count(*arguments: object) -> int:
            nonlocal asked
            asked += 1
            return await visible_length(*arguments)  # type: ignore[arg-type]

        client.datanodes.visible_length = count  # type: ignore[method-assign, assignment]
        answers = await asyncio.gather(*(client.datanodes.silent(nodes) for _ in range(8)))
        assert answers == [[node_name(nodes[0])]] * 8
        assert await client.datanodes.silent(nodes) == [node_name(nodes[0])]
        assert asked == 1, "shared, and remembered for silent_s"


async def test_a_probe_is_repeated_if_this_process_was_stopped_meanwhile() -> None:
    async with datanodes(0, 0) as (client, located):
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)  # longer than probe_timeout_s
        assert await client.datanodes.silent([located.nodes[0].id]) == []


def test_the_nodes_seen_last_are_given_first() -> None:
    nodes = SuspectNodes(1.0)
    seen = [pb.Node(id=pb.NodeId(ip="::1", host="dn", uuid=str(n), data_port=n)) for n in range(4)]
    nodes.learn(seen)
    nodes.learn(seen[:1])
    assert nodes.latest(2, besides={"::1:3"}) == [seen[0], seen[2]]
    nodes.forget({"::1:0"})
    assert nodes.latest(9, besides=set()) == [seen[3], seen[2], seen[1]]


def node(port: int) -> pb.Node:
    return pb.Node(
        id=pb.NodeId(ip="10.0.0.1", host="a", uuid=f"u{port}", data_port=port, info_port=1, ipc_port=2),
    )


def test_a_suspicion_ends_after_its_time_or_when_the_node_responds() -> None:
    suspects = SuspectNodes(30.0)
    suspects.learn([node(1), node(2)])
    suspects.suspect(["10.0.0.1:1", "10.0.0.1:9"], now=100.0)
    assert suspects.suspected(110.0) == {"10.0.0.1:1", "10.0.0.1:9"}
    assert [node_name(known.id) for known in suspects.resolve({"10.0.0.1:1", "10.0.0.1:9"})] == ["10.0.0.1:1"]
    suspects.clear(["10.0.0.1:9"])
    assert suspects.suspected(129.0) == {"10.0.0.1:1"}
    assert suspects.suspected(130.0) == set()
