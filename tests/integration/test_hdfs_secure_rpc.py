"""Calls to a real secure HDFS whose ``hadoop.rpc.protection`` is integrity or privacy: files, fences, take-overs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import NotAllowed, StorageError
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.hdfs.auth import make_authenticator
from bmq.storage.hdfs.name_service import read_config, resolve
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.security import read_security
from bmq.storage.hdfs.settings import HdfsSettings
from tests.integration.test_hdfs_secure_files import (
    OPTIONS,
    clients,
    keytab,
    processes,
    test_a_file_is_written_read_while_it_is_open_closed_and_appended_to,
    test_a_log_is_taken_over_from_a_process_that_writes,
    test_a_process_that_writes_without_pause_is_fenced,
    test_a_second_client_fences_a_file_that_is_being_written,
    test_bmq_serve_is_killed_and_another_process_takes_over,
)
from tests.integration.test_hdfs_tokens import kdc, login, test_a_process_with_a_token_alone_reads_and_writes
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import write_conf

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
    "test_bmq_serve_is_killed_and_another_process_takes_over",
]

pytestmark = [
    pytest.mark.loops("uvloop"),
    pytest.mark.parametrize("secure_hdfs", ["privacy", "integrity"], indirect=True),
]


def level(secure_hdfs: HdfsCluster) -> str:
    assert secure_hdfs.security is not None
    return secure_hdfs.security.rpc_protection


def namenode(secure_hdfs: HdfsCluster, keytab: str, folder: Path, levels: str) -> NameNode:
    """Return a client of the cluster's NameNode whose ``hadoop.rpc.protection`` is ``levels``."""
    write_conf(folder, {**secure_hdfs.client_settings, "hadoop.rpc.protection": levels})
    config, login = read_config(str(folder)), HdfsLogin(keytab)
    address = resolve(f"{secure_hdfs.root}/", config)
    identity = make_authenticator(read_security(config), login)
    return NameNode(address.namenodes, HdfsSettings(), identity)


@pytest.mark.parametrize("levels", ["{}", "{},authentication", "authentication,{}", "integrity,privacy,authentication"])
async def test_a_list_with_the_servers_level_is_taken(
    secure_hdfs: HdfsCluster, keytab: str, tmp_path: Path, levels: str
) -> None:
    client = namenode(secure_hdfs, keytab, tmp_path, levels.format(level(secure_hdfs)))
    try:
        await client.mkdirs("/a/b")
        assert await client.file_info("/a/b") is not None
        assert client._connection is not None
        assert client._connection._wrapped is not None, "the calls are wrapped"
    finally:
        await client.close()


@pytest.mark.parametrize("levels", ["authentication", "integrity", "privacy", "privacy,authentication"])
async def test_a_lower_or_higher_level_is_refused_with_both(
    secure_hdfs: HdfsCluster, keytab: str, tmp_path: Path, levels: str
) -> None:
    theirs = level(secure_hdfs)
    if theirs in levels.split(","):
        levels = "integrity" if theirs == "privacy" else "privacy"
    client = namenode(secure_hdfs, keytab, tmp_path, levels)
    with pytest.raises(NotAllowed) as refused:
        await client.server_defaults()
    await client.close()
    assert f"offers hadoop.rpc.protection={theirs}; this client has hadoop.rpc.protection={levels}:" in str(
        refused.value
    )


async def test_long_requests_and_responses_go_through(secure_hdfs: HdfsCluster, keytab: str) -> None:
    """A request of more than the 64 KB that the server takes in one message, and a listing of some 300 KB."""
    async with clients(secure_hdfs, keytab, 1) as (fs,):
        await many_files(fs)


async def many_files(fs: HdfsFileSystem) -> None:
    client = fs._client.namenode
    folder = fs._address.full_path("/many")
    names = [f"{number:04}-{'n' * 240}" for number in range(1000)]
    await client.mkdirs(folder)
    await asyncio.gather(*(client.mkdirs(f"{folder}/{name}") for name in names))
    listing = await client.listing(folder, b"")
    assert listing is not None
    assert [entry.path.decode() for entry in listing.entries] == names
    assert listing.ByteSize() > 256 << 10
    with pytest.raises(StorageError, match="concat"):
        await client.concat(f"{folder}/none", [f"{folder}/{name}" for name in names])
    assert await fs.delete("/many", recursive=True)


@pytest.mark.loops("uvloop", limit_s=300)
async def test_files_go_on_while_the_kdc_is_silent_and_the_namenode_starts_again(
    secure_hdfs: HdfsCluster, keytab: str
) -> None:
    """Clients log in again by the tickets that they hold, and take part in what was open."""
    assert secure_hdfs.security is not None
    kdc = secure_hdfs.security.kdc.process

    def lose_connections(*filesystems: HdfsFileSystem) -> None:
        for fs in filesystems:
            assert fs._client.namenode._connection is not None
            fs._client.namenode._connection.close()

    async with clients(secure_hdfs, keytab) as (writer, reader):
        appender = await writer.create("/f", OPTIONS)
        appender.write(b"one ")
        length = await appender.flush()
        assert await reader.visible_length("/f") == length
        kdc.pause()
        try:
            lose_connections(writer, reader)
            appender.write(b"two ")
            length = await appender.flush()
            assert await reader.read("/f", 0, 100) == b"one two "
            another = await writer.create("/g", OPTIONS)
            another.write(b"g")
            assert await another.flush() == 1
        finally:
            kdc.resume()
        secure_hdfs.kill_namenode(0)
        appender.write(b"three ")
        length = await appender.flush()
        await asyncio.to_thread(secure_hdfs.restart_namenode, 0)
        appender.write(b"four")
        length = await appender.flush()
        assert await reader.read("/f", 0, 100) == b"one two three four"
        assert await reader.fence(appender.lease) == length
        assert await another.close() == 1
