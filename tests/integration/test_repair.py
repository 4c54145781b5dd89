"""`bmq segment repair` on real stores: a real log is damaged, its partition goes OFFLINE, is repaired and read on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bmq.storage import layout
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.journal import read_journals
from bmq.storage.open import open_filesystem
from tests.integration.conftest import EtcdFactory
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import BmqCluster
from tests.services.processes import wait_for

BMQ = str(Path(sys.executable).with_name("bmq"))
SETTINGS = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4", "BMQ_CACHE_BYTES": str(64 << 20)}
TIMEOUT_S = 120.0
COUNT = 20


def repair(*arguments: str) -> dict[str, Any]:
    """The report of a run that must not be refused."""
    done = subprocess.run(
        [BMQ, "segment", "repair", "orders", "0", "--json", *arguments],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == int(bool(told["offline_reason"]) and not told["is_done"]), done.stderr
    return told


def produce(bootstrap: str, first: int, count: int) -> list[int]:
    """One batch a record; the offsets."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def told(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(int(message.offset() or 0))

    for number in range(first, first + count):
        producer.produce("orders", value=b"%d" % number * 30, partition=0, on_delivery=told)
        assert producer.flush(TIMEOUT_S) == 0
    return offsets


def consume(bootstrap: str, end: int) -> list[int]:
    """Offsets of all records below ``end``, as librdkafka reads them from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    offsets: list[int] = []

    def is_done() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            offsets.append(int(message.offset() or 0))
        return bool(offsets) and offsets[-1] >= end - 1

    try:
        wait_for(is_done, f"records up to {end - 1}, got {offsets}", timeout_s=TIMEOUT_S, interval_s=0)
    finally:
        consumer.close()
    return offsets


def segment_of(root: Path) -> Path:
    (path,) = root.glob("topics/orders/*/0/*.log")
    return path


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def vanished(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "label"),
    [(shorter, "shorter than its checkpoint"), (vanished, "vanished")],
    ids=["shorter", "vanished"],
)
def test_one_process_on_sqlite_and_a_folder(damage: Callable[[Path], None], label: str, tmp_path: Path) -> None:
    """By the server itself, which goes on with the partition that was OFFLINE; and without one."""
    root = tmp_path / "log"
    server = BmqServer(f"file://{root}", f"sqlite://{tmp_path}/meta.db", environment=SETTINGS, folder=tmp_path)
    try:
        server.start()
        create_topic(server.bootstrap, "orders", 1)
        assert produce(server.bootstrap, 0, COUNT) == list(range(COUNT))
        asyncio.run(wait_covered(f"file://{root}"))
        server.kill()
        damage(segment_of(root))
        direct = ["--root", f"file://{root}", "--meta", f"sqlite://{tmp_path}/meta.db"]
        assert label in repair(*direct)["offline_reason"]
        server.start()
        wait_for(lambda: label in server.log.read_text(), "OFFLINE", timeout_s=TIMEOUT_S)
        http = ["--http", server.http]
        shown = repair(*http)
        assert label in shown["offline_reason"]
        done = repair(*http, "--yes")
        lost = done["lost_offsets"]
        assert lost == shown["lost_offsets"] > 0
        assert done["end_offset"] == COUNT
        assert produce(server.bootstrap, COUNT, 3) == [COUNT, COUNT + 1, COUNT + 2]
        read = consume(server.bootstrap, COUNT + 3)
        assert read == [*range(COUNT - lost), *range(COUNT, COUNT + 3)]
        server.stop()
        assert repair(*direct)["offline_reason"] == ""
    finally:
        server.kill()


async def wait_covered(root: str) -> None:
    """Wait until a checkpoint in a journal says that all records are flushed."""
    fs = await open_filesystem(root, holder="test")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                names = {layout.parse_journal(layout.base_name(status.path)) async for status in fs.list("/journals")}
                for incarnation in {name[0] for name in names if name is not None}:
                    found = await read_journals(fs, incarnation)
                    if any(checkpoint.end_offset == COUNT for checkpoint in found.values()):
                        return
                await asyncio.sleep(0.2)
    finally:
        await fs.close()


def test_a_cluster_on_etcd_and_hdfs(hdfs_root: str, etcd_new: EtcdFactory) -> None:
    """The segment is gone from HDFS; a command with root and store repairs it while the cluster runs."""
    etcd = etcd_new()
    cluster = BmqCluster(hdfs_root, etcd, proxies=1, brokers=1, controllers=1, coordinators=1, environment=SETTINGS)
    with cluster:
        cluster.wait_settled()
        create_topic(cluster.bootstrap, "orders", 1)
        assert produce(cluster.bootstrap, 0, COUNT) == list(range(COUNT))
        (broker,) = cluster.names("broker")
        asyncio.run(wait_covered(hdfs_root))
        cluster.kill(broker)
        asyncio.run(_damage(hdfs_root))
        cluster.start_again(broker)
        wait_for(lambda: "vanished" in cluster[broker].log.read_text(), "OFFLINE", timeout_s=TIMEOUT_S)
        direct = ["--root", hdfs_root, "--meta", etcd.url]
        assert "vanished" in repair(*direct)["offline_reason"]
        assert repair(*direct, "--yes")["lost_offsets"] == COUNT
        assert produce(cluster.bootstrap, COUNT, 3) == [COUNT, COUNT + 1, COUNT + 2]
        assert consume(cluster.bootstrap, COUNT + 3)[-3:] == [COUNT, COUNT + 1, COUNT + 2]


async def _damage(root: str) -> None:
    fs = await HdfsFileSystem.open(root, holder="test")
    try:
        async for topic in fs.list("/topics/orders"):
            if topic.is_dir:
                async for status in fs.list(f"{topic.path}/0"):
                    if status.path.endswith(".log"):
                        await fs.delete(status.path)
    finally:
        await fs.close()
