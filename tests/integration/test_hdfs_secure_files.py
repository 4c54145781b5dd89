"""Files on a real secure HDFS: Kerberos, block tokens that live for a minute, SASL on data transfer."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CreateOptions, StorageError
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.hdfs.namenode import NameNode
from tests.services.hdfs import HdfsCluster
from tests.services.kdc import REALM, Kdc

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("uvloop")

LARGE = os.urandom(3 << 20)
OPTIONS = CreateOptions(replication=3, block_bytes=64 << 20)
TOKEN_LIFE_S = 60.0
_names = itertools.count()


@pytest.fixture
def keytab(secure_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the keytab of the user bmq, whose realm this process uses."""
    assert secure_hdfs.security is not None
    kdc: Kdc = secure_hdfs.security.kdc
    monkeypatch.setenv("KRB5_CONFIG", kdc.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.folder}/none")
    user = f"bmq@{REALM}"
    return str(kdc.keytab(user) if kdc.keytab(user).exists() else kdc.add_service(user))


@asynccontextmanager
async def clients(secure_hdfs: HdfsCluster, keytab: str, count: int = 2) -> AsyncIterator[list[HdfsFileSystem]]:
    """Yield clients, each with a holder of its own, on one new folder."""
    root = f"{secure_hdfs.root}/files-{next(_names)}"
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            fs = await HdfsFileSystem.open(
                root,
                holder=f"holder-{next(_names)}",
                conf_folder=str(secure_hdfs.conf_folder),
                login=HdfsLogin(keytab),
            )
            stack.push_async_callback(fs.close)
            opened.append(fs)
        yield opened


async def test_a_file_is_written_read_while_it_is_open_closed_and_appended_to(
    secure_hdfs: HdfsCluster, keytab: str
) -> None:
    async with clients(secure_hdfs, keytab) as (writer, reader):
        appender = await writer.create("/d/f", OPTIONS)
        assert len(appender.nodes) == 3
        appender.write(b"first ")
        assert await appender.flush() == 6
        assert await reader.visible_length("/d/f") == 6
        assert await reader.read("/d/f", 0, 100) == b"first "
        appender.write(LARGE)
        assert await appender.flush(sync=True) == 6 + len(LARGE)
        for _ in range(2):  # the second time on a kept connection
            assert await reader.read("/d/f", 6, len(LARGE)) == LARGE
            assert b"".join(await reader.read_parts("/d/f", 6, [1 << 20, 2 << 20])) == LARGE
        assert await appender.close() == 6 + len(LARGE)
        again = await reader.append("/d/f", OPTIONS)
        again.write(b" last")
        await again.flush()
        assert await writer.read("/d/f", len(LARGE), 100) == LARGE[-6:] + b" last"
        await again.close()
        out = memoryview(bytearray(6 + len(LARGE) + 5))
        assert await writer.read_into("/d/f", 0, out) == len(out)
        assert out == b"first " + LARGE + b" last"
        assert await writer.copies("/d/f") == 3
        assert await writer.delete("/d", recursive=True)


@pytest.mark.parametrize("chunk_bytes", [512, 65536])
async def test_a_second_client_fences_a_file_that_is_being_written(
    secure_hdfs: HdfsCluster, keytab: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recoveries: list[str] = []

    async def note(self: NameNode, path: str, holder: str) -> bool:
        recoveries.append(path)
        return await recover(self, path, holder)

    recover = NameNode.recover_lease
    monkeypatch.setattr(NameNode, "recover_lease", note)
    async with clients(secure_hdfs, keytab) as (writer, heir):
        options = replace(OPTIONS, chunk_bytes=chunk_bytes)
        appender = await writer.create("/f", options)
        appender.write(LARGE)
        flushed = await appender.flush()
        appender.write(b"perhaps")
        under_way = appender.flush()
        length = await heir.fence(appender.lease, sync=True)
        with contextlib.suppress(StorageError):
            flushed = await under_way
        assert flushed <= length <= len(LARGE) + 7
        assert await heir.read("/f", 0, 4 << 20) == (LARGE + b"perhaps")[:length]
        appender.write(b"late") if appender.failure is None else None
        with pytest.raises(StorageError):
            await appender.flush()
        assert len((await heir.block_places("/f"))[0].nodes) == 3
        assert recoveries == []
