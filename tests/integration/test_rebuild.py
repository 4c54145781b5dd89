"""`bmq cluster rebuild` on real stores: the metadata is gone, the clients go on, and miss nothing but time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.filesystem import Appender, Lease, LeaseLost, PipelineFailed
from bmq.storage.hdfs import HdfsFileSystem
from tests.integration.cluster.workload import describe_pauses, workload
from tests.integration.conftest import EtcdFactory
from tests.integration.history import report
from tests.integration.load import Group, Writer, check_log, create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import BmqCluster
from tests.services.processes import wait_for

BMQ = str(Path(sys.executable).with_name("bmq"))
SETTINGS = {
    "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "8",
    "BMQ_CACHE_BYTES": str(64 << 20),
}
TIMEOUT_S = 120.0
PARTITIONS = 4
RECORDS = 2_000


def bmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BMQ, *arguments],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def rebuild(root: str, meta: str, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run `bmq cluster rebuild` and return its lines about partitions, and its last line."""
    done = bmq("cluster", "rebuild", "--root", root, "--meta", meta, "--json", *options)
    assert done.returncode == 0, done.stderr
    *partitions, end = map(json.loads, done.stdout.splitlines())
    return partitions, end


@pytest.mark.smoke
def test_one_process_on_sqlite_and_a_folder(tmp_path: Path) -> None:
    """Killed under load, its store deleted; before the rebuilding the server refuses, and names the command."""
    root, store = f"file://{tmp_path}/log", tmp_path / "meta.db"
    server = BmqServer(root, f"sqlite://{store}", environment=SETTINGS, folder=tmp_path)
    try:
        server.start()
        create_topic(server.bootstrap, "orders", PARTITIONS)
        writer = Writer(server.bootstrap, "orders", PARTITIONS)
        group = Group("g", "orders", PARTITIONS, [server.bootstrap])
        for each in (writer, group):
            each.start()
        writer.wait_acked(RECORDS)
        group.wait_more(RECORDS)
        refused = bmq("cluster", "rebuild", "--root", root, "--meta", f"sqlite://{store}")
        assert refused.returncode == 2, "the store belongs to the server that runs"
        server.kill()
        for path in tmp_path.glob("meta.db*"):
            path.unlink()
        server.start(wait=False)
        wait_for(lambda: not server.process.is_running, "a server that refuses", timeout_s=TIMEOUT_S)
        assert "bmq cluster rebuild" in server.log.read_text()
        dry, end = rebuild(root, f"sqlite://{store}", "--dry-run")
        assert not end["is_written"]
        assert {(each["topic"], each["partition"]) for each in dry} >= {("orders", n) for n in range(PARTITIONS)}
        _, end = rebuild(root, f"sqlite://{store}")
        assert end["is_written"]
        assert end["open_segments"] > 0
        again = bmq("cluster", "rebuild", "--root", root, "--meta", f"sqlite://{store}")
        assert again.returncode == 1
        assert "not lost" in again.stderr
        server.start()
        writer.wait_acked(RECORDS)
        writer.finish()
        group.finish(check_log(server.bootstrap, writer))
        server.stop()
    finally:
        server.kill()


def test_a_cluster_on_etcd_and_hdfs(hdfs_root: str, etcd_new: EtcdFactory, request: pytest.FixtureRequest) -> None:
    """All processes are killed, etcd's data is removed; etcd begins again at revision 1."""
    etcd = etcd_new()
    cluster = BmqCluster(hdfs_root, etcd, proxies=1, brokers=2, controllers=1, coordinators=1, environment=SETTINGS)
    with cluster, workload(cluster, PARTITIONS) as load:
        cluster.wait_stable()
        load.progress()
        load.take_pauses()
        cluster.kill(*cluster.members)
        etcd.kill_all()
        shutil.rmtree(etcd.folder / "data")
        etcd.heal()
        partitions, _ = rebuild(hdfs_root, etcd.url, "--dry-run")
        opened = [entry for each in partitions for entry in each["segments"] if not entry["is_closed"]]
        assert opened
        known = sum(bool(entry["holder"]) for entry in opened)
        _, end = rebuild(hdfs_root, etcd.url)
        assert end["partitions"] == len(partitions)
        cluster.start_again(*cluster.members)
        load.progress()
        pauses = load.take_pauses()
    report(request, f"{len(opened)} segments open, {known} holders known; {describe_pauses(pauses)}; {load.summary()}")


async def write_more(appender: Appender) -> None:
    appender.write(b"y")
    await appender.flush()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_file_is_fenced_without_knowing_its_holder(
    is_closed: bool, hdfs_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Fence by the holder that the NameNode reports: no recovery of the lease, of seconds to minutes, is needed."""

    async def body() -> None:
        old, new = [await HdfsFileSystem.open(hdfs_root, holder=holder) for holder in ("b1-0a1b", "b2-2c3d")]
        try:
            appender = await old.create("/a.log")
            appender.write(b"x" * 1000)
            assert await appender.flush() == 1000
            if is_closed:
                await appender.close()
            status = await new.status("/a.log")
            assert await new.fence(Lease(paths=("/a.log",), holder="", file_id=status.file_id)) == 1000
            assert (await new.status("/a.log")).length == 1000
            if not is_closed:
                with pytest.raises((PipelineFailed, LeaseLost)):
                    await write_more(appender)
        finally:
            await old.close()
            await new.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(body())
    assert "recovering the lease" not in caplog.text
