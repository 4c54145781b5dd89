"""Reads of open blocks whose replicas cannot be read at the moment: they are never taken for empty (rule 1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread, read_block_into, visible_length
from tests.unit.storage.hdfs.fakes import MISSING, NOT_REGISTERED, WAITS_FOR_RECOVERY, datanodes

pytestmark = pytest.mark.loops("asyncio")

OLDER = "java.io.IOException: replica.getGenerationStamp() < block.getGenerationStamp(), block=1, replica=1"
UNKNOWN = "java.io.IOException: something that nobody has seen yet"


@pytest.mark.slow
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
async def test_rule_1_an_open_block_that_cannot_be_read_now_is_not_empty(
    known: int, answers: Sequence[str | int | None]
) -> None:
    async with datanodes(known, *answers) as (client, located):
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await visible_length(client, located)
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await read_block(client, located, 0, 100, is_open=True)
        with pytest.raises(StorageUnavailable, match="block 1: "):
            await read_block_into(client, located, 0, [memoryview(bytearray(100))], is_open=True)


@pytest.mark.parametrize("answers", [[MISSING] * 3, [OLDER], [MISSING, OLDER]])
async def test_a_block_that_was_never_written_is_empty(answers: Sequence[str | int | None]) -> None:
    """Allocate a block whose pipeline is not open yet."""

    async with datanodes(0, *answers) as (client, located):
        assert await visible_length(client, located) == 0
        assert await read_block(client, located, 0, 100, is_open=True) == b""
        assert await read_block_into(client, located, 0, [memoryview(bytearray(100))], is_open=True) == 0


@pytest.mark.slow
async def test_the_error_names_a_datanode_that_does_not_respond() -> None:
    async with datanodes(2330, None) as (client, located):
        with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:1: no response"):
            await visible_length(client, located)


async def test_one_replica_that_responds_is_enough() -> None:
    async with datanodes(2330, WAITS_FOR_RECOVERY, 2400, 2330) as (client, located):
        assert await visible_length(client, located) == 2330
        assert await read_block(client, located, 2400, 100, is_open=True) == b"", "behind what is visible"


@pytest.mark.slow
async def test_a_length_that_comes_late_counts_only_if_no_other_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A datanode that was just started takes a second for its first log-in, and all of them may have been started."""

    async with datanodes(0, 7, 5, 3) as (client, located):
        client.settings = replace(client.settings, read_timeout_s=30.0)
        shown = client.datanodes.visible_length
        late = {"2", "3"}

        async def respond(node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
            if str(node.data_port) in late:
                await asyncio.sleep(2 * client.settings.probe_timeout_s if node.data_port == 2 else 20.0)
            return await shown(node, block, token, timeout_s)

        monkeypatch.setattr(client.datanodes, "visible_length", respond)
        assert await visible_length(client, located) == 7
        late.add("1")
        located.nodes.pop(0)
        assert await visible_length(client, located) == 5


async def test_a_read_after_the_clients_end_is_storage_unavailable() -> None:
    async with datanodes(0) as (client, located):
        located.block.length = 100
        located.nodes.add().id.CopyFrom(pb.NodeId(ip="127.0.0.1", data_port=1, ipc_port=1))
        client.threads.shutdown()
        with pytest.raises(StorageUnavailable, match="the HDFS client is closed"):
            await read_block_by_thread(client, located, 0, 100, is_open=False)
