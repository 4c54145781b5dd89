"""Reads through ``HdfsFileSystem``: the locations they use, and when they are tried again.  The NameNode is played."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.filesystem import CorruptData, StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs import filesystem
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import Shown
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.known_files import KnownFile
from bmq.storage.hdfs.settings import HdfsSettings
from tests.services.hdfs_config import write_conf
from tests.unit.storage.hdfs.fakes import SETTINGS, Answer, Call, FakeNameNode, namenode

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
async def opened(
    response: Answer = located, settings: HdfsSettings = SETTINGS
) -> AsyncIterator[tuple[HdfsFileSystem, FakeNameNode]]:
    async with namenode(response) as (_, (fake,)):
        fs = await HdfsFileSystem.open(f"hdfs://127.0.0.1:{fake.port}/", holder="a", settings=settings)
        try:
            yield fs, fake
        finally:
            await fs.close()


@pytest.mark.parametrize("is_site_encrypted", [False, True])
@pytest.mark.parametrize("is_namenode_encrypted", [False, True])
async def test_encryption_is_what_the_namenode_has_and_never_less_than_the_site_demands(
    is_site_encrypted: bool, is_namenode_encrypted: bool, tmp_path: Path
) -> None:
    def defaults(call: Call) -> bytes:
        changed = pb.GetServerDefaultsResponse.Defaults(encrypt_data=is_namenode_encrypted)
        changed.MergeFrom(DEFAULTS)
        return pb.GetServerDefaultsResponse(defaults=changed).SerializeToString()

    async with namenode(defaults) as (_, (fake,)):
        root = f"hdfs://127.0.0.1:{fake.port}"
        encrypted = {"dfs.encrypt.data.transfer": "true"} if is_site_encrypted else {}
        write_conf(tmp_path, {"fs.defaultFS": root, **encrypted})
        opening = HdfsFileSystem.open(f"{root}/", holder="a", settings=SETTINGS, conf_folder=str(tmp_path))
        if is_site_encrypted and not is_namenode_encrypted:
            with pytest.raises(Unsupported, match=r"the NameNode has dfs\.encrypt\.data\.transfer=false, and"):
                await opening
            return
        fs = await opening
        assert (fs._client.encryption.keys is not None) is is_namenode_encrypted
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

    async def read(*_: object, is_open: bool, shown: Shown) -> bytes:
        await asyncio.sleep(slow_s)
        if left:
            raise left.pop(0)
        return b"data"

    async def read_into(
        client: object, block: object, offset: int, parts: Sequence[memoryview], *, is_open: bool, shown: Shown
    ) -> int:
        parts[0][:] = await read(is_open=is_open, shown=shown)
        return len(parts[0])

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


def being_written(call: Call) -> bytes:
    """Return the NameNode's response for an open file of one block, of whose bytes it has none yet."""
    if call.method != "getBlockLocations":
        if call.method == "rename2":
            return pb.VoidResponse().SerializeToString()
        return located(call)
    block = pb.LocatedBlock(
        block=pb.Block(pool="pool", id=1, generation=1, length=0),
        offset=0,
        nodes=[pb.Node(id=pb.NodeId(ip="127.0.0.1", host="dn", uuid="u", data_port=1, info_port=2, ipc_port=3))],
        corrupt=False,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
    )
    locations = pb.LocatedBlocks(file_length=0, under_construction=True, last_block_complete=False, last_block=block)
    return pb.GetBlockLocationsResponse(locations=locations).SerializeToString()


class OpenBlock:
    """An open block of which the datanode shows ``length`` bytes."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked = 0
        self.fails = 0

    async def read_into(
        self, client: object, block: object, offset: int, parts: Sequence[memoryview], *, is_open: bool, shown: Shown
    ) -> int:
        assert is_open
        wanted = sum(map(len, parts))
        if shown.get("node", 0) < offset + wanted:
            self.asked += 1
            shown["node"] = self.length
        if self.fails:
            self.fails -= 1
            raise StorageUnavailable("the datanode is gone")
        return min(wanted, max(0, self.length - offset))


MB = 1 << 20


async def test_reads_of_an_open_file_ask_once_where_it_is_and_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    block = OpenBlock(8 * MB)
    monkeypatch.setattr(filesystem, "read_block_into", block.read_into)
    monkeypatch.setattr(filesystem, "READ_AGAIN_S", 0.0)
    async with opened(being_written) as (fs, fake):

        async def read(position: int, *lengths: int) -> tuple[int, int, int]:
            """Return the bytes read, and how often the NameNode and the datanode were asked."""
            calls, asked = len(fake.calls), block.asked
            parts = await fs.read_parts("/f", position, lengths)
            return sum(map(len, parts)), len(fake.calls) - calls, block.asked - asked

        assert await read(0, MB) == (MB, 1, 1)
        assert await read(MB, MB, MB) == (2 * MB, 0, 0)
        assert await read(5 * MB, 3 * MB) == (3 * MB, 0, 0)
        assert await read(7 * MB, MB, MB) == (MB, 1, 1), "less than was wanted: the file may have got another block"
        block.length = 9 * MB
        assert await read(8 * MB, MB) == (MB, 0, 1), "it has grown"
        block.fails = 1
        assert await read(MB, MB) == (MB, 1, 1), "by the locations that the NameNode has now"
        await fs.rename("/f", "/g")
        assert await read(MB, MB) == (MB, 1, 1), "another file may have the name"


@pytest.mark.parametrize("change", ["closed", "another block", "another writer"])
async def test_less_than_wanted_of_a_file_that_has_changed_is_read_again(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, reads = OpenBlock(2 * MB), 0
    is_changed = False

    def respond(call: Call) -> bytes:
        found = pb.GetBlockLocationsResponse.FromString(being_written(call))
        if call.method != "getBlockLocations" or not is_changed:
            return being_written(call)
        last = found.locations.last_block
        if change == "closed":
            found.locations.under_construction, found.locations.last_block_complete = False, True
        elif change == "another block":
            last.block.id += 1
        else:
            last.block.generation += 1
        return found.SerializeToString()

    async def read_into(*arguments: Any, **options: Any) -> int:
        nonlocal reads
        reads += 1
        return await block.read_into(*arguments, **options)

    monkeypatch.setattr(filesystem, "read_block_into", read_into)
    async with opened(respond) as (fs, _):
        for _ in range(2):
            assert sum(map(len, await fs.read_parts("/f", MB, [MB, MB]))) == MB
        assert reads == 2, "once each"
        is_changed = True
        await fs.read_parts("/f", MB, [MB, MB])
        assert reads == (3 if change == "closed" else 4), "a closed file of this length has no such bytes"


READS: dict[str, Callable[[HdfsFileSystem], Awaitable[object]]] = {
    "visible_length": lambda fs: fs.visible_length("/f"),
    "read": lambda fs: fs.read("/f", 0, 4),
    "read_into": lambda fs: fs.read_into("/f", 0, memoryview(bytearray(4))),
    "copies": lambda fs: fs.copies("/f"),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("reports_late", [True, False])
async def test_a_namenode_without_a_report_of_an_open_block_is_asked_again(
    name: str, reports_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NameNode that has just become active knows the block from its edit log alone."""
    asked = 0

    def respond(call: Call) -> bytes:
        nonlocal asked
        response = being_written(call)
        if call.method != "getBlockLocations":
            return response
        asked += 1
        if reports_late and asked > 3:
            return response
        changed = pb.GetBlockLocationsResponse.FromString(response)
        del changed.locations.last_block.nodes[:]
        return changed.SerializeToString()

    async def find(client: object, block: pb.LocatedBlock, *_: object, **__: object) -> Any:
        if not block.nodes:
            raise StorageUnavailable("the NameNode has no replica of it")
        return {"visible_length": 4, "read": b"data", "read_into": 4}[name]

    for function in ("visible_length", "read_block", "read_block_into"):
        monkeypatch.setattr(filesystem, function, find)
    monkeypatch.setattr(filesystem, "REFUSED_WITHIN_S", 0.0)
    async with opened(respond, replace(SETTINGS, report_timeout_s=10.0 if reports_late else 0.05)) as (fs, _):

        async def none_silent(nodes: Sequence[pb.NodeId]) -> list[str]:
            return []

        monkeypatch.setattr(fs._client.datanodes, "silent", none_silent)
        if reports_late:
            assert await READS[name](fs) in (4, b"data", 1)
            assert asked == 4
        elif name == "copies":
            assert await READS[name](fs) == 0
        else:
            with pytest.raises(StorageUnavailable, match="has no replica"):
                await READS[name](fs)


async def test_a_read_before_an_open_block_does_not_wait_for_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def respond(call: Call) -> bytes:
        response = being_written(call)
        if call.method != "getBlockLocations":
            return response
        changed = pb.GetBlockLocationsResponse.FromString(response)
        locations, last = changed.locations, changed.locations.last_block
        locations.file_length = 4
        locations.blocks.add().CopyFrom(last)
        locations.blocks[0].block.length = 4
        last.offset, last.block.id = 4, 2
        del last.nodes[:]
        return changed.SerializeToString()

    async def read(*_: object, **__: object) -> bytes:
        return b"data"

    monkeypatch.setattr(filesystem, "read_block", read)
    async with opened(respond) as (fs, fake):
        assert await fs.read("/f", 0, 4) == b"data"
        assert [call.method for call in fake.calls].count("getBlockLocations") == 1


async def test_a_small_open_file_is_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals and other metadata: they may be replaced."""
    block = OpenBlock(MB - 1)
    monkeypatch.setattr(filesystem, "read_block_into", block.read_into)
    async with opened(being_written) as (fs, fake):
        for _ in range(3):
            assert sum(map(len, await fs.read_parts("/f", 0, [MB // 2]))) == MB // 2
        assert [call.method for call in fake.calls].count("getBlockLocations") == 3


def located_as(form: dict[str, Any]) -> Answer:
    """Return the responses of a NameNode whose file has ``form``: encrypted, or erasure-coded."""

    def respond(call: Call) -> bytes:
        response = located(call)
        if call.method == "getBlockLocations":
            changed = pb.GetBlockLocationsResponse.FromString(response)
            changed.locations.MergeFrom(
                pb.LocatedBlocks(file_length=4, under_construction=False, last_block_complete=True, **form)
            )
            return changed.SerializeToString()
        return response

    return respond


async def test_a_file_that_is_erasure_coded_is_read_by_its_own_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int, int]] = []

    async def read(path: str, policy: str, position: int, length: int) -> bytes:
        asked.append((path, policy, position, length))
        return b"data"[position : position + length]

    async with opened(located_as({"erasure_coding": pb.ErasureCodingPolicy(id=4)})) as (fs, _):
        monkeypatch.setattr(fs._coded, "read", read)
        assert await fs.read("/f", 1, 9) == b"ata"
        assert [bytes(part) for part in await fs.read_parts("/f", 0, [3, 2])] == [b"dat", b"a"]
        parts = [memoryview(bytearray(3)), memoryview(bytearray(2))]
        assert await fs._fill("/f", KnownFile(await fs._client.namenode.block_locations("/f")), 0, parts) == 4
        assert [bytes(part) for part in parts] == [b"dat", b"a\0"]
        out = bytearray(6)
        assert await fs.read_into("/f", 0, memoryview(out)) == 4
        assert out == b"data\0\0"

        async def refuse_denied() -> None:
            raise StorageUnavailable("the demand of encryption is denied")

        monkeypatch.setattr(fs._client.encryption, "refuse_denied", refuse_denied)
        for denied in (fs.read("/f", 0, 4), fs.read_into("/f", 0, memoryview(out))):
            with pytest.raises(StorageUnavailable, match="is denied"):
                await denied
        assert len(asked) == 4, "the library reads nothing then"
    assert {call[:2] for call in asked} == {("/f", "XOR-2-1-1024k")}


async def test_a_file_of_a_zone_is_never_read_as_it_lies() -> None:
    async with opened(located_as({"encryption": pb.EncryptionInfo(key_name="k1")})) as (fs, _):
        for work in (fs.read("/f", 0, 4), fs.read_into("/f", 0, memoryview(bytearray(4)))):
            with pytest.raises(Unsupported, match=r"^/f is encrypted by the key k1"):
                await work
