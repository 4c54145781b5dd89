"""``dfs.encrypt.data.transfer`` is switched on and off at HDFS's servers while a client goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CreateOptions, FileSystem, StorageError
from bmq.storage.hdfs import HdfsFileSystem
from tests.integration.conftest import HdfsFactory
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_security import TRANSFERS, HdfsSecurity
from tests.services.hdfs_tools import open_root
from tests.services.kdc import REALM, missing

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


async def switched_twice(hdfs: HdfsCluster, root: str, **options: Any) -> None:
    """Switch the encryption on and off under a client.  It writes and reads."""
    fs = await HdfsFileSystem.open(root, holder="writer", **options)
    try:
        await until_written(fs, "/plain")
        for value in ("true", "false"):
            await asyncio.to_thread(hdfs.restart_with, {SWITCH: value})
            await until_written(fs, f"/{value}")
            assert (fs._client.encryption.keys is not None) is (value == "true")
            assert await fs.read("/plain-0", 0, len(DATA)) == DATA
    finally:
        await fs.close()


def test_rule_6_a_client_goes_on_when_encryption_is_switched(hdfs_new: HdfsFactory) -> None:
    hdfs = hdfs_new(datanodes=2, properties={"dfs.block.access.token.enable": "true", SWITCH: "false"})
    uvloop.run(switched_twice(hdfs, hdfs.root))


def test_rule_6_a_client_with_privacy_goes_on_when_encryption_is_switched(
    hdfs_new: HdfsFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switch where both kinds of connections agree on a level: datanodes refuse the user of the other kind."""
    if packages := missing():
        pytest.skip(f"no Kerberos on this machine: install {packages}")
    security = HdfsSecurity(tmp_path / "security", transfer=TRANSFERS["aes"])
    hdfs = hdfs_new(datanodes=2, folder=tmp_path, properties={SWITCH: "false"}, security=security)
    open_root(hdfs)
    monkeypatch.setenv("KRB5_CONFIG", security.kdc.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    login = HdfsLogin(str(security.kdc.add_service(f"bmq@{REALM}")))
    uvloop.run(switched_twice(hdfs, f"{hdfs.root}/files", conf_folder=str(hdfs.conf_folder), login=login))
