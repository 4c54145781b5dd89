"""Encryption zones and erasure coding on a real HDFS: what works in a root, what is refused, and how it is read."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bmq.storage.filesystem import CreateOptions, StorageError, Unsupported
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.open import open_filesystem
from bmq.storage.user import user_of
from tests.integration.test_hdfs_kerberos import serve
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool

pytestmark = [pytest.mark.loops("asyncio"), pytest.mark.hdfs]
POLICY = "XOR-2-1-1024k"
CODED, REPLICATED, ZONE = "/coded", "/coded/replicated", "/zone"
DATA = os.urandom((2 << 20) + 12_345)
"""More than a stripe of two cells, and a part of the next one."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """Start three datanodes, with a folder that has a policy and another one that is an encryption zone.

    The zone's key is in a file of the NameNode's, which reads it as it starts.
    """
    folder = tmp_path_factory.mktemp("zones")
    keys = f"jceks://file{folder}/keys.jceks"
    data = folder / "data"
    data.write_bytes(DATA)
    made = HdfsCluster(
        datanodes=3,
        folder=folder / "hdfs",
        properties={"hadoop.security.key.provider.path": keys},
        namenode_heap_mb=192,
        datanode_heap_mb=128,
    )
    with made as cluster:
        hdfs_tool(cluster, "key", "create", "k1", "-size", "128", "-provider", keys)
        cluster.kill_namenode()
        cluster.restart_namenode()
        cluster.wait_live()
        hdfs_tool(cluster, "dfs", "-mkdir", "-p", REPLICATED, ZONE)
        hdfs_tool(cluster, "ec", "-enablePolicy", "-policy", POLICY)
        hdfs_tool(cluster, "ec", "-setPolicy", "-policy", POLICY, "-path", CODED)
        hdfs_tool(cluster, "ec", "-setPolicy", "-replicate", "-path", REPLICATED)
        hdfs_tool(cluster, "crypto", "-createZone", "-keyName", "k1", "-path", ZONE)
        hdfs_tool(cluster, "dfs", "-put", str(data), f"{CODED}/closed.log")
        hdfs_tool(cluster, "dfs", "-put", str(data), f"{ZONE}/closed.log")
        yield cluster


@asynccontextmanager
async def opened(cluster: HdfsCluster, folder: str, holder: str = "a") -> AsyncIterator[HdfsFileSystem]:
    fs = await open_filesystem(cluster.root + folder, holder=holder)
    assert isinstance(fs, HdfsFileSystem)
    try:
        yield fs
    finally:
        await fs.close()


async def refusal(work: object) -> str:
    with pytest.raises(StorageError) as caught:
        await work  # type: ignore[misc]
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("folder", [CODED, REPLICATED])
async def test_a_root_with_a_policy_keeps_replicated_files(
    cluster: HdfsCluster, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Create, append, fence, read and concatenate in a folder with a policy: the files are replicated."""
    async with opened(cluster, folder) as fs, opened(cluster, folder, "b") as other:
        with caplog.at_level("INFO"):
            await user_of(fs)
        assert (await fs.health()).root_refusal == ""
        assert (f"the root has the erasure-coding policy {POLICY}" in caplog.text) is (folder == CODED)
        whole = b""
        for name in ("/t/1.log", "/t/2.log"):
            file = await fs.create(name, CreateOptions(block_bytes=1 << 20))
            file.write(DATA[:500_000])
            await file.flush()
            assert await other.visible_length(name) == 500_000
            assert await other.read(name, 499_000, 5_000) == DATA[499_000:500_000]
            await file.close()
            file = await fs.append(name)
            file.write(DATA[500_000:600_000])
            await file.flush(sync=True)
            assert await other.fence(file.lease) == 600_000  # as after the end of its owner
            file.abort()
            whole += DATA[:600_000]
        await fs.concat("/t/1.log", ["/t/2.log"])
        assert await other.read("/t/1.log", 0, len(whole)) == whole
        info = await fs._client.namenode.file_info(f"{folder}/t/1.log")
        assert info is not None
        assert not info.HasField("erasure_coding")
        assert info.replication == 3
        assert await fs.copies("/t/1.log") == 3


async def test_a_file_that_others_coded_is_read_through_hdfs_native(
    cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(cluster, CODED) as fs:
        assert isinstance(fs, HdfsFileSystem)
        assert (await fs.status("/closed.log")).length == len(DATA)
        for position, length in ((0, 100), ((1 << 20) - 5, 10), (0, len(DATA)), (len(DATA) - 5, 100), (len(DATA), 1)):
            assert await fs.read("/closed.log", position, length) == DATA[position : position + length]
        parts = await fs.read_parts("/closed.log", 7, [1 << 20, 300_000])
        assert [bytes(part) for part in parts] == [DATA[7 : 7 + (1 << 20)], DATA[7 + (1 << 20) : 300_007 + (1 << 20)]]
        out = bytearray(len(DATA) + 5)
        assert await fs.read_into("/closed.log", 0, memoryview(out)) == len(DATA)
        assert out[: len(DATA)] == DATA
        said = await refusal(fs.append("/closed.log"))
        assert said.startswith("Unsupported: "), said
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    async with opened(cluster, CODED) as fs:
        said = await refusal(fs.read("/closed.log", 0, 100))
        assert said.startswith(f"Unsupported: {CODED}/closed.log is erasure-coded by {POLICY}, and hdfs-native is not")
        assert "pip install" in said


async def test_a_zone_is_refused_and_its_files_are_not_read_as_they_lie(cluster: HdfsCluster) -> None:
    async with opened(cluster, ZONE) as fs:
        for work in (fs.create("/1.log"), fs.read("/closed.log", 0, 10), fs.append("/closed.log")):
            said = await refusal(work)
            assert said.startswith("Unsupported: "), said
            assert "Choose a root outside of the zone; or protect records without a zone" in said
        with pytest.raises(Unsupported, match=r"/zone is in an encryption zone: .* keys of a KMS"):
            await user_of(fs)
        assert "/zone is in an encryption zone" in (await fs.health()).root_refusal


def test_a_server_in_a_zone_ends_before_it_binds_a_port(cluster: HdfsCluster, tmp_path: Path) -> None:
    done = serve(cluster, "--root", f"{cluster.root}{ZONE}/bmq", "--meta", f"sqlite://{tmp_path}/meta.db")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "ready " not in done.stdout
    assert "Traceback" not in done.stderr
    assert "Choose a root outside of the zone" in done.stderr.splitlines()[-1]
