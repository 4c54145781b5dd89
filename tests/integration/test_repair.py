"""`bmq segment repair` on real stores: a real log is damaged, its partition goes OFFLINE, is repaired and read on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hdfs_native
from confluent_kafka import Consumer, Producer, TopicPartition

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.meta import ownership
from bmq.meta.kv import Put
from bmq.meta.open import open_keyvalue
from bmq.meta.ownership import PartitionRecord
from bmq.storage import layout
from bmq.storage.filesystem import Lease
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.journal import read_journals
from bmq.storage.open import open_filesystem
from tests.integration.conftest import EtcdFactory
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import BmqCluster
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for

BMQ = str(Path(sys.executable).with_name("bmq"))
SETTINGS = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4", "BMQ_CACHE_BYTES": str(64 << 20)}
TIMEOUT_S = 120.0
COUNT = 20


def repair(partition: int, *arguments: str) -> dict[str, Any]:
    """Run `bmq segment repair`, which must not be refused, and return its report."""
    done = subprocess.run(
        [BMQ, "segment", "repair", "orders", str(partition), "--json", *arguments],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    notified: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == int(bool(notified["offline_reason"]) and not notified["is_done"]), done.stderr
    return notified


def produce(bootstrap: str, first: int, count: int, partition: int = 0) -> list[int]:
    """Produce each record as a batch of its own, and return the offsets."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(int(message.offset() or 0))

    for number in range(first, first + count):
        producer.produce("orders", value=b"%d" % number * 1000, partition=partition, on_delivery=delivered)
        assert producer.flush(TIMEOUT_S) == 0
    return offsets


def consume(bootstrap: str, end: int, partition: int = 0) -> list[int]:
    """Return the offsets of all records below ``end``, as librdkafka reads them from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("orders", partition, 0)])
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


class Partition:
    """The record of a partition that no broker has now."""

    def __init__(self, meta: str, topic_id: str, partition: int) -> None:
        self._meta = meta
        self._key = ownership.partition_key("bmq", PartitionKey(uuid.UUID(topic_id), partition))

    async def change(self, value: Callable[[PartitionRecord], bytes]) -> PartitionRecord:
        """Write the record as ``value`` makes it of what is there, which is returned."""
        kv = await open_keyvalue(self._meta)
        try:
            record, _ = await ownership.read(kv, self._key)
            await kv.commit([], [Put(self._key, value(record))])
            return record
        finally:
            await kv.close()

    def forget_checkpoints(self) -> PartitionRecord:
        return asyncio.run(self.change(forgetful))


class Stopped(Partition):
    """A stopped server's partition: its files and its record."""

    def __init__(self, root: Path, meta: str, partition: int) -> None:
        (self.log,) = root.glob(f"topics/orders/*/{partition}/*.log")
        super().__init__(meta, self.log.parts[-3], partition)

    def register(self, base: int) -> None:
        """List a second segment of three batches from ``base`` on."""
        record = self.forget_checkpoints()
        (first,) = record.segments
        name = SegmentName(base, first.name.epoch, first.name.n + 1)
        entry = replace(first, name=name, spare=f"{first.spare}-2", file_id=0)
        asyncio.run(self.change(lambda found: ownership.encode(replace(found, segments=(first, entry)))))
        data = b"".join(
            build_batch([Record(value=b"late")], base_offset=offset, leader_epoch=name.epoch)
            for offset in range(base, base + 3)
        )
        self.log.with_name(f"{name}.log").write_bytes(data)


def shorter(at: Stopped) -> None:
    os.truncate(at.log, at.log.stat().st_size // 2)


def in_the_middle(at: Stopped) -> None:
    at.forget_checkpoints()
    data = bytearray(at.log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    at.log.chmod(0o644)
    at.log.write_bytes(data)


def vanished(at: Stopped) -> None:
    at.log.unlink()


def renamed_back(at: Stopped) -> None:
    (entry,) = asyncio.run(at.change(ownership.encode)).segments
    at.log.rename(at.log.with_name(entry.spare.rpartition("/")[2]))


def ends_before(at: Stopped) -> None:
    at.register(COUNT + 4)


def lost_whole(at: Stopped) -> None:
    at.register(COUNT + 4)
    at.log.unlink()


def unknown_record(at: Stopped) -> None:
    asyncio.run(at.change(lambda record: b"what?"))


DAMAGE: list[tuple[Callable[[Stopped], None], str, set[int] | None, int]] = [
    # what, the reason, the offsets that are lost (None: some), where the log ends
    (shorter, "shorter than its checkpoint", None, COUNT),
    (in_the_middle, "damaged in the middle", None, COUNT),
    (vanished, "vanished", set(range(COUNT)), COUNT),
    (renamed_back, "renamed or moved", set(), COUNT),
    (ends_before, "ends before the next one begins", set(range(COUNT, COUNT + 4)), COUNT + 7),
    (lost_whole, "lost whole", set(range(COUNT + 4)), COUNT + 7),
    (unknown_record, "not a partition record", set(), COUNT),
]


def test_one_process_on_sqlite_and_a_folder(tmp_path: Path) -> None:
    """Damage each partition in another way: the command names the reason without a server, and repairs by a server."""
    root, meta = tmp_path / "log", f"sqlite://{tmp_path}/meta.db"
    server = BmqServer(f"file://{root}", meta, environment=SETTINGS, folder=tmp_path)
    try:
        server.start()
        create_topic(server.bootstrap, "orders", len(DAMAGE))
        for partition in range(len(DAMAGE)):
            assert produce(server.bootstrap, 0, COUNT, partition) == list(range(COUNT))
        asyncio.run(wait_covered(f"file://{root}", len(DAMAGE)))
        server.kill()
        for partition, (damage, *_) in enumerate(DAMAGE):
            damage(Stopped(root, meta, partition))
        direct = ["--root", f"file://{root}", "--meta", meta]
        for partition, (_, label, _, _) in enumerate(DAMAGE):
            assert label in repair(partition, *direct)["offline_reason"]
        server.start()
        http = ["--http", server.http]
        for partition, (_, label, lost, end) in enumerate(DAMAGE):
            wait_for(lambda label=label: label in server.log.read_text(), f"OFFLINE: {label}", timeout_s=TIMEOUT_S)  # type: ignore[misc]
            shown = repair(partition, *http)
            assert label in shown["offline_reason"]
            done = repair(partition, *http, "--yes")
            assert (done["lost_offsets"], done["end_offset"]) == (shown["lost_offsets"], end)
            gone = {
                offset
                for segment in done["segments"]
                for gap in segment["gaps"]
                for offset in range(gap["first"], gap["last"] + 1)
            }
            assert gone == lost if lost is not None else 0 < len(gone) < COUNT
            assert produce(server.bootstrap, COUNT, 3, partition) == [end, end + 1, end + 2]
            assert consume(server.bootstrap, end + 3, partition) == [n for n in range(end + 3) if n not in gone]
        server.stop()
        for partition in range(len(DAMAGE)):
            assert repair(partition, *direct)["offline_reason"] == ""
    finally:
        server.kill()


async def wait_covered(root: str, partitions: int = 1) -> None:
    """Wait until checkpoints in a journal say that all records are flushed."""
    fs = await open_filesystem(root, holder="test")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                names = {layout.parse_journal(layout.base_name(status.path)) async for status in fs.list("/journals")}
                for incarnation in {name[0] for name in names if name is not None}:
                    found = await read_journals(fs, incarnation)
                    if sum(checkpoint.end_offset == COUNT for checkpoint in found.values()) == partitions:
                        return
                await asyncio.sleep(0.2)
    finally:
        await fs.close()


def test_a_cluster_on_etcd_and_hdfs(hdfs: HdfsCluster, hdfs_root: str, etcd_new: EtcdFactory) -> None:
    """One segment is gone from HDFS, of another one block is damaged on each datanode; a command with root and store
    repairs both while the cluster runs, and its broker opens them without a restart."""
    etcd = etcd_new()
    cluster = BmqCluster(hdfs_root, etcd, proxies=1, brokers=1, controllers=1, coordinators=1, environment=SETTINGS)
    with cluster:
        cluster.wait_stable()
        create_topic(cluster.bootstrap, "orders", 2)
        for partition in (0, 1):
            assert produce(cluster.bootstrap, 0, COUNT, partition) == list(range(COUNT))
        (broker,) = cluster.names("broker")
        asyncio.run(wait_covered(hdfs_root, 2))
        cluster.kill(broker)
        gone, damaged = asyncio.run(fenced(hdfs_root, etcd.url))
        hdfs_native.Client(hdfs.root).delete(gone)
        (block,) = hdfs.blocks(damaged)
        for replica in hdfs.replica_paths(block.block_id):
            data = bytearray(replica.read_bytes())
            data[len(data) // 2] ^= 0xFF
            replica.write_bytes(data)
        cluster.start_again(broker)
        direct = ["--root", hdfs_root, "--meta", etcd.url]
        for partition, label in enumerate(("vanished", "no replica gives right bytes")):
            wait_for(lambda label=label: label in cluster[broker].log.read_text(), label, timeout_s=TIMEOUT_S)  # type: ignore[misc]
            assert repair(partition, *direct)["offline_reason"]
            lost = repair(partition, *direct, "--yes")["lost_offsets"]
            assert lost == COUNT if partition == 0 else 0 < lost < COUNT
            assert produce(cluster.bootstrap, COUNT, 3, partition) == [COUNT, COUNT + 1, COUNT + 2]
            assert len(consume(cluster.bootstrap, COUNT + 3, partition)) == COUNT + 3 - lost


def forgetful(record: PartitionRecord) -> bytes:
    """Return the record without its journals."""
    return ownership.encode(replace(record, journals=()))


async def fenced(root: str, meta: str) -> list[str]:
    """Close the segments of a dead broker, and forget what checkpoints say of the second one; their full paths."""
    fs = await HdfsFileSystem.open(root, holder="test")
    try:
        (topic,) = [status async for status in fs.list("/topics/orders") if status.is_dir]
        found = []
        for number in (0, 1):
            partition = Partition(meta, layout.base_name(topic.path), number)
            record = await partition.change(forgetful if number else ownership.encode)
            (entry,) = record.segments
            path = f"{topic.path}/{number}/{entry.name}.log"
            await fs.fence(Lease(paths=(path, entry.spare), holder=entry.holder, file_id=entry.file_id))
            found.append(urlsplit(root).path + path)
        return found
    finally:
        await fs.close()
