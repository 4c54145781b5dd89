"""A cluster is restored from an HDFS snapshot: its root's files and its metadata store are lost, its processes killed.

These are the steps of docs/operations/backup.md, done with Hadoop's tools and `bmq cluster rebuild`; the snapshot is
made while producers and a group work.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import hdfs_native
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.conftest import EtcdFactory
from tests.integration.history import report
from tests.integration.load import Writer, create_topic, read_log
from tests.integration.test_rebuild import SETTINGS, bmq, rebuild
from tests.services.bmq_cluster import BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.processes import wait_for

PARTITIONS = 4
RECORDS = 1_000
TOLD_S = 120.0  # the NameNode gets lengths every 30 s
TOPIC = "orders"
GROUP = "billing"
KEPT = ("topics", "cluster.json", "root.json")


@contextlib.contextmanager
def snapshottable(hdfs: HdfsCluster, folder: str) -> Iterator[None]:
    """Allow snapshots of the folder; afterwards there are none, so that it may be deleted."""
    hdfs_tool(hdfs, "dfsadmin", "-allowSnapshot", folder)
    try:
        yield
    finally:
        if list(hdfs_native.Client(hdfs.root).list_status(f"{folder}/.snapshot")):
            hdfs_tool(hdfs, "dfs", "-deleteSnapshot", folder, "s1")
        hdfs_tool(hdfs, "dfsadmin", "-disallowSnapshot", folder)


def held(root: str, topic: str) -> list[int]:
    """Return the end offset of each of the topic's partitions, as `bmq segment verify` reads it below `root`."""
    done = bmq("segment", "verify", "--root", root, "--topic", topic, "--json")
    assert done.returncode in (0, 1), done.stderr  # 1: a journal in the snapshot may say more than the segments hold
    ends = [0] * int(SETTINGS["BMQ_OFFSETS_TOPIC_NUM_PARTITIONS"] if topic != TOPIC else PARTITIONS)
    for line in map(json.loads, done.stdout.splitlines()):
        if line["kind"] == "segment":
            partition = int(line["file"].split("/")[-2])
            ends[partition] = max(ends[partition], line["end_offset"])
    return ends


def commit(bootstrap: str, offsets: Sequence[int]) -> None:
    """Commit these offsets for the group, one for each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        consumer.commit(
            offsets=[TopicPartition(TOPIC, number, offset) for number, offset in enumerate(offsets)], asynchronous=False
        )
    finally:
        consumer.close()


def committed(bootstrap: str) -> list[int]:
    """Return the offset of each partition at which the group would go on."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition(TOPIC, number) for number in range(PARTITIONS)], timeout=60)
        return [max(0, each.offset) for each in found]
    finally:
        consumer.close()


def lose(hdfs: HdfsCluster, folder: str, etcd: EtcdCluster, cluster: BmqCluster) -> None:
    """Delete what the root holds, under the processes that write it; kill them; empty the metadata store."""
    hdfs_tool(hdfs, "dfs", "-rm", "-r", "-skipTrash", f"{folder}/*")
    cluster.kill(*cluster.members)
    etcd.kill_all()
    shutil.rmtree(etcd.folder / "data")
    etcd.heal()


def restore(hdfs: HdfsCluster, folder: str, etcd: EtcdCluster, cluster: BmqCluster) -> None:
    left = [status.path for status in hdfs_native.Client(hdfs.root).list_status(folder)]
    if left:  # of processes that lived longer than the files
        hdfs_tool(hdfs, "dfs", "-rm", "-r", "-skipTrash", *left)
    sources = [f"{folder}/.snapshot/s1/{name}" for name in KEPT]
    hdfs_tool(hdfs, "dfs", "-cp", "-p", "-d", "-t", "10", *sources, folder)
    _, end = rebuild(cluster.root, etcd.url)
    assert end["is_written"]
    cluster.start_again(*cluster.members)
    cluster.wait_stable()


def check_restored(bootstrap: str, writer: Writer, least: Sequence[int]) -> list[int]:
    """Each partition holds the first of its records, once and in order, at the offsets that were answered; so many at
    least.  Returns how many."""
    kept = []
    for partition, log in enumerate(read_log(bootstrap, TOPIC, PARTITIONS)):
        numbers = [number for _, number in log]
        assert numbers == list(range(partition, writer.sent, PARTITIONS))[: len(numbers)]
        for offset, answered in enumerate(writer.offsets[partition][: len(numbers)]):
            assert answered in (-1, offset)
        kept.append(len(numbers))
    assert all(count >= needed for count, needed in zip(kept, least, strict=True)), (kept, least)
    return kept


def check_goes_on(cluster: BmqCluster, kept: Sequence[int]) -> None:
    """Check that new records follow the ones that are kept, and that the cluster's status finds nothing wrong."""
    writer = Writer(cluster.bootstrap, TOPIC, PARTITIONS, number=1)
    writer.start()
    writer.wait_acked(RECORDS)
    writer.finish()
    assert [offsets[0] for offsets in writer.offsets] == list(kept)
    done = bmq("cluster", "status", "--http", cluster[cluster.names("proxy")[0]].http)
    assert done.returncode == 0, done.stdout + done.stderr


def new_cluster(root: str, etcd: EtcdCluster) -> BmqCluster:
    return BmqCluster(root, etcd, proxies=1, brokers=2, controllers=1, coordinators=1, environment=SETTINGS)


def test_a_snapshot_under_load_holds_what_was_acknowledged_before_it(
    hdfs: HdfsCluster, hdfs_root: str, etcd_new: EtcdFactory, request: pytest.FixtureRequest
) -> None:
    """Take a snapshot while segments stay open: it holds them up to the lengths that the NameNode had."""
    etcd, folder = etcd_new(), urlsplit(hdfs_root).path
    with new_cluster(hdfs_root, etcd) as cluster, snapshottable(hdfs, folder):
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(cluster.bootstrap, TOPIC, PARTITIONS, burst_s=0.05)
        writer.start()
        try:
            writer.wait_acked(RECORDS)
            commit(cluster.bootstrap, [1] * PARTITIONS)
            acked_before = [len(offsets) for offsets in writer.offsets]
            commit(cluster.bootstrap, acked_before)
            hdfs_tool(hdfs, "dfs", "-createSnapshot", folder, "s1")
            snapshot = f"{hdfs_root}/.snapshot/s1"
            first = held(snapshot, TOPIC)
            wait_for(
                lambda: (
                    all(now >= then for now, then in zip(held(snapshot, TOPIC), acked_before, strict=True))
                    and sum(held(snapshot, "__consumer_offsets")) >= 2 * PARTITIONS
                ),
                f"a snapshot with {acked_before} records and their group; at first {first}",
                timeout_s=TOLD_S,
                interval_s=2,
            )
            writer.wait_acked(RECORDS)
            lose(hdfs, folder, etcd, cluster)
        finally:
            writer.abandon()
        acked = [len(offsets) for offsets in writer.offsets]
        restore(hdfs, folder, etcd, cluster)
        kept = check_restored(cluster.bootstrap, writer, acked_before)
        assert sum(kept) < sum(acked), "what was acknowledged behind the files' end is lost: this test shows how much"
        assert committed(cluster.bootstrap) == acked_before
        check_goes_on(cluster, kept)
    report(
        request,
        f"records of each partition when the snapshot was made {acked_before}, in it at once {first}, when all was lost"
        f" {acked}, kept {kept}",
    )


def test_a_snapshot_of_a_stopped_cluster_holds_everything(
    hdfs: HdfsCluster, hdfs_root: str, etcd_new: EtcdFactory
) -> None:
    etcd, folder = etcd_new(), urlsplit(hdfs_root).path
    with new_cluster(hdfs_root, etcd) as cluster, snapshottable(hdfs, folder):
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(cluster.bootstrap, TOPIC, PARTITIONS)
        writer.start()
        writer.wait_acked(RECORDS)
        writer.finish()
        acked = [len(offsets) for offsets in writer.offsets]
        commit(cluster.bootstrap, acked)
        for name in [*cluster.names("proxy"), *cluster.names("coordinator"), *cluster.names("broker")]:
            cluster[name].stop()
        hdfs_tool(hdfs, "dfs", "-createSnapshot", folder, "s1")
        assert held(f"{hdfs_root}/.snapshot/s1", TOPIC) == acked
        lose(hdfs, folder, etcd, cluster)
        restore(hdfs, folder, etcd, cluster)
        kept = check_restored(cluster.bootstrap, writer, acked)
        assert kept == acked
        assert committed(cluster.bootstrap) == acked
        check_goes_on(cluster, kept)
