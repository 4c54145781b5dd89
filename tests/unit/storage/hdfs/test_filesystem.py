"""Reads through ``HdfsFileSystem``: the locations they use, and when they are tried again.  The NameNode is played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable
from bmq.storage.hdfs import filesystem
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from tests.unit.storage.hdfs.fakes import SETTINGS, Call, FakeNameNode, namenode

pytestmark = pytest.mark.loops("asyncio")

DEFAULTS = pb.GetServerDefaultsResponse.Defaults(
    block_size=1, chunk_bytes=1, packet_bytes=1, replication=1, buffer_bytes=1
)


def located(call: Call) -> bytes:
    """Return the NameNode's response for a closed file of one block, without datanodes: the test plays those."""
    if call.method == "getServerDefaults":
        return pb.GetServerDefaultsResponse(defaults=DEFAULTS).SerializeToString()
    assert call.method == "getBlockLocations"
    block = pb.LocatedBlock(
        block=pb.Block(pool="pool", id=1, generation=1, length=4),
        offset=0,
        corrupt=False,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
    )
    locations = pb.LocatedBlocks(
        file_length=4, blocks=[block], under_construction=False, last_block_complete=True, last_block=block
    )
    return pb.GetBlockLocationsResponse(locations=locations).SerializeToString()


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[HdfsFileSystem, FakeNameNode]]:
    async with namenode(located) as (_, (fake,)):
        fs = await HdfsFileSystem.open(f"hdfs://127.0.0.1:{fake.port}/", holder="a", settings=SETTINGS)
        try:
            yield fs, fake
        finally:
            await fs.close()


@pytest.mark.parametrize("is_bulk", [False, True])
@pytest.mark.parametrize(
    ("failures", "slow_s", "expected"),
    [
        ([], 0.0, b"data"),
        ([StorageUnavailable("No data exists for block")], 0.0, b"data"),
        ([StorageUnavailable("no"), StorageUnavailable("still not")], 0.0, StorageUnavailable),
        ([StorageUnavailable("timed out")], 0.03, StorageUnavailable),
        ([CorruptData("wrong bytes")], 0.0, CorruptData),
    ],
)
async def test_a_read_that_all_replicas_refuse_at_once_is_tried_once_more(
    failures: list[StorageError],
    slow_s: float,
    expected: bytes | type[StorageError],
    is_bulk: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = list(failures)

    async def read(*_: object, is_open: bool) -> bytes:
        await asyncio.sleep(slow_s)
        if left:
            raise left.pop(0)
        return b"data"

    async def read_into(client: object, block: object, offset: int, out: memoryview, *, is_open: bool) -> int:
        out[:] = await read(is_open=is_open)
        return len(out)

    monkeypatch.setattr(filesystem, "read_block", read)
    monkeypatch.setattr(filesystem, "read_block_into", read_into)
    monkeypatch.setattr(filesystem, "READ_AGAIN_S", 0.0)
    if slow_s:
        monkeypatch.setattr(filesystem, "REFUSED_WITHIN_S", 0.0)

    async with opened() as (fs, fake):
        out = bytearray(4)
        work = fs.read_into("/f", 0, memoryview(out)) if is_bulk else fs.read("/f", 0, 4)
        if isinstance(expected, bytes):
            result = await work
            assert (bytes(out) if is_bulk else result) == expected
        else:
            with pytest.raises(expected):
                await work
        asked = [call for call in fake.calls if call.method == "getBlockLocations"]
        assert len(asked) == 1 + (len(failures) > 0 and slow_s == 0 and expected is not CorruptData)
