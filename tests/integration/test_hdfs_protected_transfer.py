"""The secure HDFS's tests of files where the connections to datanodes have integrity, privacy, AES or data encryption.

Each protection has a cluster of its own, whose block tokens and data encryption keys live for a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.hdfs.channel import AesCtr, Channel, Frames
from bmq.storage.hdfs.handshake import Handshake
from tests.integration.conftest import secure_cluster
from tests.integration.test_hdfs_secure_files import (
    LARGE,
    OPTIONS,
    TOKEN_LIFE_S,
    clients,
    keytab,
    processes,
    test_a_file_is_written_read_while_it_is_open_closed_and_appended_to,
    test_a_log_is_taken_over_from_a_process_that_writes,
    test_a_process_that_writes_without_pause_is_fenced,
    test_a_second_client_fences_a_file_that_is_being_written,
)
from tests.integration.test_hdfs_tokens import kdc, login, test_a_process_with_a_token_alone_reads_and_writes
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import write_conf
from tests.services.hdfs_security import TRANSFERS
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM

__all__ = [
    "kdc",
    "keytab",
    "login",
    "processes",
    "test_a_file_is_written_read_while_it_is_open_closed_and_appended_to",
    "test_a_log_is_taken_over_from_a_process_that_writes",
    "test_a_process_that_writes_without_pause_is_fenced",
    "test_a_process_with_a_token_alone_reads_and_writes",
    "test_a_second_client_fences_a_file_that_is_being_written",
]

pytestmark = pytest.mark.loops("uvloop", limit_s=300)  # two of the tests start Java's client, and 3DES is slow

CHANNELS: dict[str, tuple[type[Channel], str]] = {
    "aes": (AesCtr, ""),
    "integrity": (Frames, ""),
    "privacy": (Frames, "3des"),
    "encrypted": (AesCtr, ""),
    "encrypted-rc4": (Frames, "rc4"),
}


@pytest.fixture(scope="module", params=TRANSFERS)
def secure_hdfs(request: pytest.FixtureRequest) -> Iterator[HdfsCluster]:
    """Start a secure HDFS with one of the protections."""
    yield from secure_cluster(request, TRANSFERS[request.param])


@pytest.fixture
def protection(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["secure_hdfs"])


async def test_the_protection_is_the_one_that_the_site_has(
    secure_hdfs: HdfsCluster, keytab: str, protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed: list[tuple[type[Channel] | type[None], str]] = []
    agree = Handshake._agreed

    def note(self: Handshake, *arguments: object) -> Channel | None:
        channel = agree(self, *arguments)  # type: ignore[arg-type]
        agreed.append((type(channel), channel._layer.cipher if isinstance(channel, Frames) else ""))
        return channel

    monkeypatch.setattr(Handshake, "_agreed", note)
    async with clients(secure_hdfs, keytab, 1) as (fs,):
        appender = await fs.create("/f", OPTIONS)
        appender.write(LARGE)
        await appender.flush()
        assert await fs.read("/f", 5, 100) == LARGE[5:105]
        for _ in range(3):
            assert await fs.read("/f", 0, len(LARGE)) == LARGE
        await appender.close()
    assert set(agreed) == {CHANNELS[protection]}
    assert len(agreed) == 3, "a pipeline, a small read, and large reads on one kept connection"


async def test_javas_client_reads_what_we_wrote_and_we_read_what_it_wrote(
    secure_hdfs: HdfsCluster, keytab: str, tmp_path: Path
) -> None:
    assert secure_hdfs.security is not None
    tickets = secure_hdfs.security.kdc.log_in(f"java@{REALM}")
    source, target = tmp_path / "theirs", tmp_path / "ours"
    source.write_bytes(LARGE)
    async with clients(secure_hdfs, keytab, 1) as (fs,):
        appender = await fs.create("/ours", OPTIONS)
        for start in range(0, len(LARGE), 300_001):
            appender.write(LARGE[start : start + 300_001])
            await appender.flush()
        folder = fs.url.removeprefix(secure_hdfs.root)
        for arguments in (
            ("-put", str(source), f"{folder}/theirs"),
            ("-get", f"{folder}/ours", str(target)),  # while it is open
        ):
            await asyncio.to_thread(hdfs_tool, secure_hdfs, "dfs", *arguments, tickets=tickets)
        await appender.close()
        assert target.read_bytes() == LARGE
        assert await fs.read("/theirs", 0, 4 << 20) == LARGE
        assert await fs.read("/theirs", 70_000, 200_000) == LARGE[70_000:270_000]


async def test_a_datanode_is_killed_under_a_pipeline(secure_hdfs: HdfsCluster, keytab: str) -> None:
    """The file is fenced with what was acknowledged, and appended to on the datanodes that are left."""
    async with clients(secure_hdfs, keytab) as (writer, heir):
        appender = await writer.create("/f", OPTIONS)
        appender.write(LARGE)
        flushed = await appender.flush()
        killed = secure_hdfs.datanode_of(appender.nodes[1])
        secure_hdfs.kill_datanode(killed)
        try:
            assert await heir.fence(appender.lease) == flushed
            again = await heir.append("/f", OPTIONS)
            again.write(b"more")
            assert await again.flush() == flushed + 4
            assert await writer.read("/f", 0, flushed + 4) == LARGE + b"more"
            await again.close()
        finally:
            secure_hdfs.restart_datanode(killed)


@pytest.mark.loops("uvloop", limit_s=400)
async def test_connections_outlive_tokens_and_keys(secure_hdfs: HdfsCluster, keytab: str, protection: str) -> None:
    if protection not in {"encrypted", "aes"}:
        pytest.skip("tokens and keys expire alike at every level")
    async with clients(secure_hdfs, keytab) as (writer, reader):
        appender = await writer.create("/f", OPTIONS)
        loop = asyncio.get_running_loop()
        began, length = loop.time(), 0
        while loop.time() - began < 1.5 * TOKEN_LIFE_S:
            appender.write(LARGE)
            length = await appender.flush()
            assert await reader.read("/f", length - len(LARGE), len(LARGE)) == LARGE
            assert await reader.read("/f", length - 4, 100) == LARGE[-4:]
            assert reader._client.suspected() == set()
            await asyncio.sleep(TOKEN_LIFE_S / 6)
        other = await writer.create("/g", OPTIONS)
        other.write(b"g")
        assert await other.flush() == 1
        assert await reader.fence(appender.lease) == length


async def test_a_key_that_datanodes_do_not_know_is_asked_again_once(
    secure_hdfs: HdfsCluster, keytab: str, protection: str
) -> None:
    if not protection.startswith("encrypted"):
        pytest.skip("there are no data encryption keys")
    async with clients(secure_hdfs, keytab, 1) as (fs,):
        keys = fs._client.encryption.keys
        assert keys is not None

        async def spoil() -> None:
            key = await keys.current()
            key.id += 12345

        await spoil()
        appender = await fs.create("/f", OPTIONS)
        appender.write(LARGE)
        assert await appender.flush() == len(LARGE)
        assert len(appender.nodes) == 3
        await spoil()
        assert await fs.read("/f", 0, 10) == LARGE[:10]
        fs._client.data_connections._drop_old()
        await spoil()
        assert await fs.read("/f", 0, len(LARGE)) == LARGE
        assert fs._client.suspected() == set()
        await appender.close()


async def test_another_level_than_the_datanodes_is_refused_by_its_property(
    secure_hdfs: HdfsCluster, keytab: str, protection: str, tmp_path: Path
) -> None:
    if protection.startswith("encrypted"):
        pytest.skip("the NameNode demands keys, whatever the client's levels are")
    write_conf(tmp_path, {**secure_hdfs.client_settings, "dfs.data.transfer.protection": "authentication"})
    fs = await HdfsFileSystem.open(
        f"{secure_hdfs.root}/other-level", holder="h", conf_folder=str(tmp_path), login=HdfsLogin(keytab)
    )
    try:
        with pytest.raises(Unsupported, match=r"demands dfs\.data\.transfer\.protection=.*(integrity|privacy)"):
            await fs.create("/f", OPTIONS)
    finally:
        await fs.close()
