"""``dfs.encrypt.data.transfer`` is switched on and off at HDFS's servers while a client goes on."""

from __future__ import annotations

import asyncio

import uvloop

from bmq.storage.filesystem import CreateOptions, FileSystem, StorageError
from bmq.storage.hdfs import HdfsFileSystem
from tests.integration.conftest import HdfsFactory

DATA = b"0123456789" * 1000
TIMEOUT_S = 90.0
SWITCH = "dfs.encrypt.data.transfer"


async def until_written(fs: FileSystem, path: str) -> None:
    """Write a new file as soon as datanodes accept one, and read it."""
    async with asyncio.timeout(TIMEOUT_S):
        for attempt in range(1000):
            try:
                appender = await fs.create(f"{path}-{attempt}", CreateOptions(block_bytes=1 << 20))
                appender.write(DATA)
                await appender.flush()
                await appender.close()
                assert await fs.read(f"{path}-{attempt}", 0, len(DATA)) == DATA
                return
            except StorageError:  # datanodes are restarted
                await asyncio.sleep(0.2)


def test_rule_6_a_client_goes_on_when_encryption_is_switched(hdfs_new: HdfsFactory) -> None:
    hdfs = hdfs_new(datanodes=2, properties={"dfs.block.access.token.enable": "true", SWITCH: "false"})

    async def test() -> None:
        fs = await HdfsFileSystem.open(hdfs.root, holder="writer")
        try:
            await until_written(fs, "/plain")
            for value in ("true", "false"):
                await asyncio.to_thread(hdfs.restart_with, {SWITCH: value})
                await until_written(fs, f"/{value}")
                assert (fs._client.encryption.keys is not None) is (value == "true")
                assert await fs.read("/plain-0", 0, len(DATA)) == DATA
        finally:
            await fs.close()

    uvloop.run(test())
