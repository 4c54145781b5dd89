"""The measurements of bench.storage_bill: the cost of some partitions at several rates, and of one segment's life."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from bench import hdfs_facts
from bench.deployments import Deployment
from bench.mover import hadoop_command
from bmq.core.records.batch import Record, build_batch
from bmq.storage.filesystem import CreateOptions
from bmq.storage.hdfs import HdfsFileSystem
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for

KEYS = "/bmq/"
VALUE = bytes(1000)
BATCH_BYTES = len(build_batch([Record(value=VALUE)]))
"""Bytes of a batch of one record of 1 KB."""
CALL = "call "
"""The beginning of the metrics that are calls of one method."""
FLUSH_TIMEOUT_S = 120.0
CLOSE_S = 240.0
"""Seconds after which a broker closes a segment that is not written: BrokerConfig.idle_close_ms."""
CREATE_AT_ONCE = 16
TOUCH_AT_ONCE = 2000
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and times of a run."""

    rounds: int = 3
    partitions: int = 100
    idle_s: float = 60.0
    second_s: float = 60.0
    minute_s: float = 180.0
    closed_s: float = 60.0
    """Seconds of idling after all segments are closed; 0: that is not measured, it takes four minutes."""
    life_s: float = 150.0
    life_every_s: float = 2.0
    """Seconds between batches, each of which opens a segment."""
    files: int = 4000
    """Files whose memory is measured."""


FULL = Plan()
QUICK = Plan(
    rounds=1, partitions=8, idle_s=2.0, second_s=3.0, minute_s=3.0, closed_s=0.0, life_s=8.0, files=50,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Site:
    """The deployment, with its HDFS and its etcd."""

    deployment: Deployment
    hdfs: HdfsCluster
    etcd: EtcdCluster


class Writer:
    """A producer of single records to every partition of a topic, each a batch of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
        self._topic = topic
        self._partitions = partitions
        self._errors: list[str] = []
        self.written = 0

    def once(self) -> None:
        """Write a record to each partition.  Raises RuntimeError if one is not acknowledged."""
        for partition in range(self._partitions):
            self._producer.produce(self._topic, VALUE, partition=partition, on_delivery=self._delivered)
        if (left := self._producer.flush(FLUSH_TIMEOUT_S)) or self._errors:
            raise RuntimeError(f"{left} records to {self._topic} not acknowledged: {self._errors[:3]}")
        self.written += self._partitions

    def every(self, every_s: float, seconds: float) -> None:
        """Write a record to each partition every so many seconds, and wait to the end of the time."""
        begun = time.monotonic()
        due = begun
        while due < begun + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            self.once()
            due += every_s
        time.sleep(max(0.0, begun + seconds - time.monotonic()))

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(str(error))


@contextmanager
def counted(site: Site) -> Iterator[Metrics]:
    """Count the calls to the NameNode, files created and writes to etcd; filled in at the end.

    It takes as long as counters need to be new, at least.
    """
    found: Metrics = {}
    calls, files = hdfs_facts.calls(site.hdfs), hdfs_facts.files_created(site.hdfs)
    revision, begun = site.etcd.revision(), time.monotonic()
    yield found
    time.sleep(max(0.0, begun + hdfs_facts.COUNTERS_S - time.monotonic()))
    after = hdfs_facts.calls(site.hdfs)
    made = {name: count - calls.get(name, 0.0) for name, count in after.items()}
    clients, datanodes = hdfs_facts.split_calls(made)
    found |= {"seconds": time.monotonic() - begun, "calls": clients, "datanode_calls": datanodes}
    found |= {"files_created": hdfs_facts.files_created(site.hdfs) - files}
    found |= {"etcd_writes": float(site.etcd.revision() - revision)}
    found |= {f"{CALL}{name}": count for name, count in made.items() if count and name not in hdfs_facts.SERVER_CALLS}


def cases(site: Site, plan: Plan) -> Iterator[tuple[str, Metrics]]:
    """Yield each case of a round with its figures, in the order of measuring."""
    with counted(site) as idle:
        time.sleep(plan.idle_s)
    yield "idle, before", idle

    keys, in_use = site.etcd.stored(KEYS)
    with counted(site) as created:
        topic = site.deployment.create_topic(plan.partitions)
    more, then_in_use = site.etcd.stored(KEYS)
    yield "created", created | {"etcd_keys": more - keys, "etcd_bytes": then_in_use - in_use}

    writer = Writer(site.deployment.bootstrap, topic, plan.partitions)
    before = _held(site)
    with counted(site) as opened:
        writer.once()
    yield "opened", opened | {name: value - before[name] for name, value in _held(site).items()}

    for name, every_s, seconds in (("a batch a second", 1.0, plan.second_s), ("a batch a minute", 60.0, plan.minute_s)):
        with counted(site) as written:
            writer.every(every_s, seconds)
        yield name, written | {name: value - before[name] for name, value in _held(site).items()}

    if plan.closed_s:
        with counted(site) as closed:
            wait_for(
                lambda: _held(site)["open_files"] <= before["open_files"], "segments that close by themselves",
                timeout_s=3 * CLOSE_S, interval_s=1.0,
            )  # fmt: skip
        yield "closed", closed
        with counted(site) as idle:
            time.sleep(plan.closed_s)
        yield "idle, after", idle
    site.deployment.delete_topic(topic)
    yield "segments' lives", _lives(site, plan)


def _lives(site: Site, plan: Plan) -> Metrics:
    """Measure partitions each of whose batches opens a segment, which is closed, merged and deleted soon."""
    config = {
        "segment.ms": str(round(plan.life_every_s * 500)),
        "retention.ms": str(round(plan.life_s * 1000 / 5)),
        "file.delete.delay.ms": "1000",
    }
    topic = site.deployment.create_topic(plan.partitions, config=config)
    writer = Writer(site.deployment.bootstrap, topic, plan.partitions)
    writer.once()
    written = writer.written
    _, in_use = site.etcd.stored(KEYS)
    with counted(site) as found:
        writer.every(plan.life_every_s, plan.life_s)
    _, then_in_use = site.etcd.stored(KEYS)
    site.deployment.delete_topic(topic)
    return found | {"batches": writer.written - written, "etcd_bytes": then_in_use - in_use}


def heap(site: Site, plan: Plan) -> Metrics:
    """Measure the NameNode's heap for files without a block, and for files of one block with its replicas."""
    folder, hdfs = f"/heap-{os.getpid()}-{time.monotonic_ns()}", site.hdfs
    before = hdfs_facts.live_heap_bytes(hdfs)
    for first in range(0, plan.files, TOUCH_AT_ONCE):
        names = [f"{folder}/empty/{n}" for n in range(first, min(plan.files, first + TOUCH_AT_ONCE))]
        if not first:
            _shell(hdfs, "-mkdir", "-p", f"{folder}/empty")
        _shell(hdfs, "-touchz", *names)
    empty = hdfs_facts.live_heap_bytes(hdfs)
    asyncio.run(_create_files(hdfs.root, f"{folder}/full", plan.files))
    full = hdfs_facts.live_heap_bytes(hdfs)
    _shell(hdfs, "-rm", "-r", "-skipTrash", folder)
    inode, file = (empty - before) / plan.files, (full - empty) / plan.files
    return {"inode_bytes": inode, "file_bytes": file, "block_bytes": file - inode}


def _shell(hdfs: HdfsCluster, *arguments: str) -> None:
    command = hadoop_command(hdfs, "org.apache.hadoop.fs.FsShell", *arguments)
    subprocess.run(command, check=True, capture_output=True, timeout=300)


async def _create_files(root: str, folder: str, count: int) -> None:
    """Create closed files with one small block."""
    fs = await HdfsFileSystem.open(root, holder=f"bench-{os.getpid()}")
    turns = asyncio.Semaphore(CREATE_AT_ONCE)

    async def create(number: int) -> None:
        async with turns:
            file = await fs.create(f"{folder}/{number}", CreateOptions(block_bytes=1 << 20))
            file.write(b"x")
            await file.flush()
            await file.close()

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(create(number))
    finally:
        await fs.close()


def _held(site: Site) -> Metrics:
    """Return the files, the blocks, the open files and the room that datanodes keep for them."""
    names = hdfs_facts.namespace(site.hdfs)
    held = {name: names[name] for name in ("files", "blocks", "open_files")}
    return held | {"reserved_bytes": hdfs_facts.reserved_bytes(site.hdfs)}


def per_partition(metrics: Mapping[str, float], idle: Mapping[str, float], partitions: int) -> float:
    """Return the calls a second of one partition, those of an idle deployment left out."""
    return (metrics["calls"] / metrics["seconds"] - idle["calls"] / idle["seconds"]) / partitions
