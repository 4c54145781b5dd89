"""Replicas with wrong checksums: which of them are reported to the NameNode. Servers are played."""

from __future__ import annotations

import logging

import pytest

from bmq.storage.filesystem import CorruptData, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.bad_replicas import REPORTS_MAX, BadReplicas
from bmq.storage.hdfs.block_reader import BadChecksum, _from_any_replica
from bmq.storage.hdfs.datanode import ReplicaFailed, node_name
from tests.unit.storage.hdfs.fakes import FakeNameNode, datanodes, namenode

pytestmark = pytest.mark.loops("asyncio")

GOOD, BAD, AWAY = "good", "bad", "away"
VOID = b""


def reported(fake: FakeNameNode) -> list[list[str]]:
    """Return, for each block that was reported, its datanodes and their storages."""
    requests = [pb.ReportBadBlocksRequest.FromString(call.request) for call in fake.calls]
    return [
        [f"{node_name(node.id)} {storage}" for node, storage in zip(block.nodes, block.storage_ids, strict=True)]
        for request in requests
        for block in request.blocks
    ]


async def reading(*replicas: str, is_open: bool = False, times: int = 1) -> tuple[list[list[str]], list[str]]:
    """Read a block of such replicas; what was reported, and the nodes in order."""
    found: list[list[str]] = []
    names: list[str] = []
    async with (
        datanodes(100, *[100] * len(replicas)) as (client, located),
        namenode(lambda _call: VOID) as (nn, (fake,)),
    ):
        client.bad_replicas = BadReplicas(nn, client.tasks.start)
        names.extend(node_name(node.id) for node in located.nodes)
        located.storage_ids.extend(f"s{number}" for number in range(len(replicas)))
        located.storage_types.extend([1] * len(replicas))

        async def take(node: pb.NodeId, wanted: int) -> bytes:
            kind = replicas[names.index(node_name(node))]
            if kind == BAD:
                raise BadChecksum(f"{node_name(node)}: bad checksum near 0")
            if kind == AWAY:
                raise ReplicaFailed(f"{node_name(node)}: away")
            return bytes(wanted)

        async def read() -> None:
            await _from_any_replica(client, located, 0, 100, take, is_open=is_open)

        for _ in range(times):
            if GOOD in replicas:
                await read()
            else:
                with pytest.raises(CorruptData if BAD in replicas else StorageUnavailable):
                    await read()
        while client.tasks:
            await client.tasks.finish()
        found.extend(reported(fake))
    return found, names


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([BAD, GOOD, GOOD], [[0]]),
        ([BAD, BAD, GOOD], [[0, 1]]),
        ([AWAY, BAD, GOOD], [[1]]),
        ([GOOD, BAD, BAD], []),
        ([BAD], [[0]]),
        ([BAD, BAD, BAD], []),
        ([BAD, AWAY], [[0]]),
        ([BAD, BAD, AWAY], [[0, 1]]),
        ([AWAY, AWAY], []),
    ],
)
async def test_bad_replicas_are_reported_unless_all_of_several_are_bad(
    replicas: list[str], expected: list[list[int]]
) -> None:
    """A client that finds all of several replicas bad may be damaged itself (DFSInputStream.reportCheckSumFailure)."""
    found, names = await reading(*replicas)
    assert found == [[f"{names[number]} s{number}" for number in numbers] for numbers in expected]


async def test_a_replica_is_reported_once() -> None:
    found, names = await reading(BAD, GOOD, times=5)
    assert found == [[f"{names[0]} s0"]]


async def test_those_of_an_open_block_are_left_to_its_fence() -> None:
    found, _ = await reading(BAD, GOOD, is_open=True)
    assert found == []


async def test_reports_are_bounded_and_a_refusal_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        refusal = "org.apache.hadoop.security.AccessControlException"
        async with datanodes(100, 100) as (client, located), namenode(lambda _call: refusal) as (nn, (fake,)):
            bad = BadReplicas(nn, client.tasks.start)
            bad.report(located, located.nodes)
            await client.tasks.finish()
            assert len(fake.calls) == 1
            for number in range(2 * REPORTS_MAX):
                located.block.id = 100 + number
                bad.report(located, located.nodes)
            assert len(bad._reported) <= 2 * REPORTS_MAX, "two minutes at most"
    assert any("cannot report bad replicas to the NameNode" in record.getMessage() for record in caplog.records)
