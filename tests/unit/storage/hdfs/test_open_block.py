"""Open blocks whose replicas cannot be read at the moment are never taken for empty (rule 1).  Datanodes are played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread, read_block_into, visible_length
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.settings import HdfsSettings
from tests.unit.storage.hdfs.test_namenode import Answer, FakeNameNode

pytestmark = pytest.mark.loops("asyncio")

MISSING = "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException: Replica not found for pool:1"
OLDER = "java.io.IOException: replica.getGenerationStamp() < block.getGenerationStamp(), block=1, replica=1"
NOT_REGISTERED = "org.apache.hadoop.ipc.RetriableException: Datanode not registered. Try again later."
UNKNOWN = "java.io.IOException: something that nobody has seen yet"
WAITS_FOR_RECOVERY = -1


def answering(what: str | int | None) -> Answer:
    """Return a datanode's response to getReplicaVisibleLength: a length, an error's class, or, for None, no response at
    all."""
    if what is None or isinstance(what, str):
        return lambda _call: what
    length = what & (1 << 64) - 1
    return lambda _call: pb.GetReplicaVisibleLengthResponse(length=length).SerializeToString()


@contextlib.asynccontextmanager
async def datanodes(known: int, *answers: str | int | None) -> AsyncIterator[tuple[HdfsClient, pb.LocatedBlock]]:
    """Yield an open block of which the NameNode has ``known`` bytes, with a replica on a datanode for each answer."""
    settings = HdfsSettings(probe_timeout_s=0.2, read_timeout_s=0.2)
    client = HdfsClient.build((("127.0.0.1", 1),), "h", settings, SimpleAuthenticator("alice"))
    located = pb.LocatedBlock(
        block=pb.Block(pool="pool", id=1, generation=1, length=known),
        offset=0,
        corrupt=False,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        for number, answer in enumerate(answers):
            fake = FakeNameNode(answering(answer))
            server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
            stack.push_async_callback(fake.close)
            stack.callback(server.close)
            node = located.nodes.add()
            node.id.CopyFrom(
                pb.NodeId(
                    ip="127.0.0.1",
                    host="dn",
                    uuid=str(number),
                    data_port=number + 1,
                    info_port=1,
                    ipc_port=server.sockets[0].getsockname()[1],
                )
            )
        yield client, located


@pytest.mark.parametrize(
    ("known", "answers"),
    [
        (2330, [WAITS_FOR_RECOVERY] * 3),
        (2330, [NOT_REGISTERED] * 3),
        (2330, [MISSING] * 3),
        (2330, [OLDER] * 3),
        (2330, [UNKNOWN] * 3),
        (2330, [MISSING, WAITS_FOR_RECOVERY, None]),
        (2330, [2329, MISSING]),
        (2330, []),
        (0, [WAITS_FOR_RECOVERY] * 3),
        (0, [MISSING, NOT_REGISTERED, MISSING]),
        (0, [UNKNOWN]),
        (0, [MISSING, None]),
    ],
)
async def test_rule_1_unreadable_is_not_empty(known: int, answers: Sequence[str | int | None]) -> None:
    async with datanodes(known, *answers) as (client, located):
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await visible_length(client, located)
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await read_block(client, located, 0, 100, is_open=True)
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await read_block_into(client, located, 0, memoryview(bytearray(100)), is_open=True)


@pytest.mark.parametrize("answers", [[MISSING] * 3, [OLDER], [MISSING, OLDER]])
async def test_a_block_that_was_never_written_is_empty(answers: Sequence[str | int | None]) -> None:
    """Allocate a block whose pipeline is not open yet."""

    async with datanodes(0, *answers) as (client, located):
        assert await visible_length(client, located) == 0
        assert await read_block(client, located, 0, 100, is_open=True) == b""
        assert await read_block_into(client, located, 0, memoryview(bytearray(100)), is_open=True) == 0


async def test_a_silent_datanode_is_said_to_be_silent() -> None:
    async with datanodes(2330, None) as (client, located):
        with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:1: no response"):
            await visible_length(client, located)


async def test_one_replica_that_can_be_asked_is_enough() -> None:
    async with datanodes(2330, WAITS_FOR_RECOVERY, 2400, 2330) as (client, located):
        assert await visible_length(client, located) == 2330
        assert await read_block(client, located, 2400, 100, is_open=True) == b"", "behind what is visible"


async def test_a_read_that_outlives_its_client() -> None:
    async with datanodes(0) as (client, located):
        located.block.length = 100
        located.nodes.add().id.CopyFrom(pb.NodeId(ip="127.0.0.1", data_port=1, ipc_port=1))
        client.threads.shutdown()
        with pytest.raises(StorageUnavailable, match="the HDFS client is closed"):
            await read_block_by_thread(client, located, 0, 100, is_open=False)
