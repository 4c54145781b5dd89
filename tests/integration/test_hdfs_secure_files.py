"""Files on a real secure HDFS: Kerberos, block tokens that live for a minute, SASL on data transfer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CreateOptions, StorageError
from bmq.storage.hdfs import HdfsFileSystem, HdfsSettings
from bmq.storage.hdfs.known_files import KnownFiles
from bmq.storage.hdfs.namenode import NameNode
from tests.integration.conftest import EtcdFactory
from tests.integration.history import report
from tests.integration.load import Writer, check_log, create_topic
from tests.integration.test_hdfs_takeover import fence_rounds
from tests.integration.test_log_takeover import Break, kill_one, nothing, take_over_again_and_again
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.hdfs import HdfsCluster
from tests.services.kdc import REALM, Kdc

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("uvloop")

LARGE = os.urandom(3 << 20)
OPTIONS = CreateOptions(replication=3, block_bytes=64 << 20)
TOKEN_LIFE_S = 60.0
PATIENT = HdfsSettings(
    probe_timeout_s=10.0,
    takeover_node_timeout_s=10.0,
    takeover_copies_timeout_s=20.0,
    setup_timeout_s=20.0,
    ack_timeout_s=20.0,
)
"""Datanodes are given time: just started, they take a second for their first log-in, on a busy machine more."""
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
async def clients(
    secure_hdfs: HdfsCluster, keytab: str, count: int = 2, settings: HdfsSettings = PATIENT
) -> AsyncIterator[list[HdfsFileSystem]]:
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
                settings=settings,
            )
            stack.push_async_callback(fs.close)
            opened.append(fs)
        yield opened


async def all_copies(fs: HdfsFileSystem, path: str) -> None:
    """Wait for three copies: a file is closed once a single datanode has reported its block."""
    async with asyncio.timeout(180):  # a node that left the pipeline is replaced by the NameNode, in its own time
        while await fs.copies(path) < 3:  # noqa: ASYNC110 - no event: datanodes report to the NameNode
            await asyncio.sleep(0.1)


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
        await all_copies(writer, "/d/f")  # an append leaves out a node that has not reported the closed block
        again = await reader.append("/d/f", OPTIONS)
        again.write(b" last")
        await again.flush()
        assert await writer.read("/d/f", len(LARGE), 100) == LARGE[-6:] + b" last"
        await again.close()
        out = memoryview(bytearray(6 + len(LARGE) + 5))
        assert await writer.read_into("/d/f", 0, out) == len(out)
        assert out == b"first " + LARGE + b" last"
        await all_copies(writer, "/d/f")
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


@pytest.mark.loops("uvloop", limit_s=400)
async def test_a_file_stays_open_for_two_lives_of_its_tokens(secure_hdfs: HdfsCluster, keytab: str) -> None:
    """Pipelines check tokens at their set-up only; readers keep locations, connections and their tokens."""
    keeping = replace(PATIENT, reader_ttl_s=10 * TOKEN_LIFE_S)
    async with clients(secure_hdfs, keytab, 4, settings=keeping) as (writer, reader, keeper, heir):
        reader._known_files = KnownFiles(PATIENT)
        appender = await writer.create("/f", OPTIONS)
        idle = await writer.create("/idle", OPTIONS)
        idle.write(b"idle")
        await idle.flush()
        appender.write(LARGE)
        length = await appender.flush()
        loop = asyncio.get_running_loop()
        began, last = loop.time(), 0.0
        while last < 2.1 * TOKEN_LIFE_S:
            appender.write(b"more")
            length = await appender.flush()
            for fs in (reader, keeper):
                assert await fs.visible_length("/f") == length
                assert await fs.read("/f", length - 4, 100) == b"more"
                assert await fs.read("/f", 0, len(LARGE)) == LARGE
                assert fs._client.suspected() == set()
            await asyncio.sleep(TOKEN_LIFE_S / 10)
            last = loop.time() - began
        assert await keeper.read("/idle", 0, 10) == b"idle"
        idle.write(b" no more")
        assert await idle.flush() == 12
        assert await heir.fence(appender.lease) == length
        assert await idle.close() == 12
        assert await keeper.read("/f", 0, len(LARGE)) == LARGE
        assert keeper._client.suspected() == heir._client.suspected() == set()


@pytest.fixture
def processes(secure_hdfs: HdfsCluster, keytab: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root for processes that have the cluster's configuration and a ticket in their environment."""
    assert secure_hdfs.security is not None
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_folder))
    monkeypatch.setenv("KRB5CCNAME", secure_hdfs.security.kdc.log_in(f"writer-{next(_names)}@{REALM}"))
    return f"{secure_hdfs.root}/processes-{next(_names)}"


@pytest.mark.parametrize("is_one_killed", [False, True])
def test_a_process_that_writes_without_pause_is_fenced(
    secure_hdfs: HdfsCluster, processes: str, tmp_path: Path, is_one_killed: bool
) -> None:
    def kill(nodes: list[int]) -> None:
        secure_hdfs.kill_datanode(nodes[1])

    times = fence_rounds(secure_hdfs, processes, tmp_path, fault=kill if is_one_killed else None, rounds=3)
    assert len(times) == 3


@pytest.mark.parametrize("how", [nothing, kill_one])
def test_a_log_is_taken_over_from_a_process_that_writes(
    how: Break, secure_hdfs: HdfsCluster, processes: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    report(request, str(take_over_again_and_again(secure_hdfs, processes, tmp_path, how, 1)))


def test_bmq_serve_is_killed_and_another_process_takes_over(
    secure_hdfs: HdfsCluster, keytab: str, etcd_new: EtcdFactory
) -> None:
    """Every record is in the log once, at the offset that was acknowledged."""
    settings = {"BMQ_HADOOP_CONF_DIR": str(secure_hdfs.conf_folder), "BMQ_HDFS_KEYTAB": keytab}
    root = f"{secure_hdfs.root}/serve-{next(_names)}"
    with BmqCluster(
        root, etcd_new(), proxies=0, brokers=0, controllers=0, coordinators=0, nodes=2, environment=settings
    ) as cluster:
        create_topic(cluster.bootstrap, "words", 4)
        writer = Writer(cluster.bootstrap, "words", 4)
        writer.start()
        try:
            writer.wait_acked(4000)
            first = cluster.names(NODE)[0]
            cluster[first].kill()
            writer.wait_acked(4000)
            cluster[first].start()
            writer.wait_acked(400)
            writer.finish()
        finally:
            writer.abandon()
        assert sum(check_log(cluster.bootstrap, writer)) == writer.sent
        said = b"".join(cluster[name].log.read_bytes() for name in cluster.names(NODE))
        assert b"recovering the lease" not in said
