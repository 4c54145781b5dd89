"""Three brokers on an HDFS that has datanode threads for a part of the files that their partitions want open.

One broker's partitions are written last, when the others hold all that there is room for.  Every record is
acknowledged once, none waits longer than docs/design/places.md says, and each broker has its share.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
import urllib.request
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig
from bmq.controller.file_shares import FileShares, OpenFileReport
from bmq.controller.member_client import SHARE_S
from bmq.controller.share_rounds import ROOMY_ROUND_S, SHARE_ROUND_S
from bmq.core.records.batch import Record, build_batch
from bmq.meta.open import open_keyvalue
from bmq.storage.filesystem import CreateOptions, FileSystem
from tests.integration.conftest import EtcdFactory, HdfsFactory
from tests.integration.driver import partition_of
from tests.integration.history import broker_on, report
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import BmqCluster
from tests.services.hdfs import HdfsCluster
from tests.services.processes import wait_for

FILES = 90
THREADS_BESIDE = 6  # for journals and indexes
BROKERS = 3
ROOM = 30
"""Threads of each datanode for the processes' test: for segments, journals and indexes."""
CONFIG = BrokerConfig(first_block_bytes=8 << 20, block_bytes=8 << 20)
THINK_S = 0.3
RECORDS = 4
TIMEOUT_S = 400.0
REFUSED_S = 1.0
SETTLED_S = 15.0


class TimedFs:
    """File system that passes every call on, and records how long each segment file took to be opened or refused."""

    def __init__(self, fs: FileSystem, took_s: list[float]) -> None:
        self._fs = fs
        self._took_s = took_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    async def create(self, path: str, options: CreateOptions) -> Any:
        began = time.monotonic()
        try:
            return await self._fs.create(path, options)
        finally:
            if "/.spare-" in path:
                self._took_s.append(time.monotonic() - began)


class Writer:
    """One partition's producer: a record, and the next one a moment after it was acknowledged."""

    def __init__(self, broker: Broker, topic_id: uuid.UUID, number: int) -> None:
        self._broker = broker
        self._path, self._key = partition_of(topic_id, number)
        self.acknowledged = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        writer = await self._broker.open(self._path, self._key)
        while True:
            began = time.monotonic()
            batch = build_batch([Record(value=b"%d" % self.acknowledged)])
            assert await writer.append(memoryview(batch)) == self.acknowledged
            self.acknowledged += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(THINK_S)


@pytest.fixture
def crowded_hdfs(hdfs_new: HdfsFactory) -> HdfsCluster:
    threads = FILES + THREADS_BESIDE  # Hadoop 3.5 counts receivers of blocks, and not their responders
    return hdfs_new(datanodes=3, properties={"dfs.datanode.max.transfer.threads": str(threads)})


@pytest.mark.parametrize("partitions", [132])
def test_every_broker_has_its_share(
    partitions: int, crowded_hdfs: HdfsCluster, etcd_new: EtcdFactory, request: pytest.FixtureRequest
) -> None:
    """The first two brokers' partitions have almost all of the files open, and nobody waits there."""
    uvloop.run(_crowd(f"{crowded_hdfs.root}/crowd", etcd_new().url, partitions, request))


def test_the_share_reaches_the_brokers_processes(hdfs_new: HdfsFactory, etcd_new: EtcdFactory, tmp_path: Path) -> None:
    """Each broker that `bmq serve` runs has a part of the room as its bound, and every record is in the log once."""
    hdfs = hdfs_new(datanodes=3, properties={"dfs.datanode.max.transfer.threads": str(ROOM)})
    members = {"proxies": 1, "brokers": BROKERS, "controllers": 1, "coordinators": 1}
    with BmqCluster(f"{hdfs.root}/shares", etcd_new(), folder=tmp_path, **members) as cluster:  # type: ignore[arg-type]
        create_topic(cluster.bootstrap, "crowd", 2 * ROOM)
        sent, acknowledged = 0, 0
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            nonlocal acknowledged
            acknowledged += error is None
            if error is not None:
                errors.append(error)

        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})

        def is_divided() -> bool:
            nonlocal sent
            for partition in range(2 * ROOM):
                producer.produce("crowd", b"%d" % sent, partition=partition, on_delivery=on_delivery)
                sent += 1
            producer.poll(THINK_S)
            limits = [limit_of(cluster[name]) for name in cluster.names("broker")]
            return max(limits) < CONFIG.open_pipelines_max and sum(limits) <= ROOM

        wait_for(is_divided, "shares of the room on every broker", timeout_s=TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0
        assert (errors, acknowledged) == ([], sent)
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
        ends = [consumer.get_watermark_offsets(TopicPartition("crowd", each), 30)[1] for each in range(2 * ROOM)]
        consumer.close()
        assert sum(ends) == sent, "each record once"


def limit_of(broker: BmqServer) -> int:
    """Return a broker's bound on its open files."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as response:
        metrics = response.read().decode()
    return int(float(re.search(r"^bmq_open_pipelines_limit(?:{[^}]*})? (\S+)$", metrics, re.MULTILINE)[1]))  # type: ignore[index]


async def _crowd(root: str, etcd: str, partitions: int, request: pytest.FixtureRequest) -> None:
    topic_id = uuid.uuid4()
    took_s: list[float] = []
    async with AsyncExitStack() as stack:
        brokers = []
        for _ in range(BROKERS):
            kv = await open_keyvalue(etcd)
            stack.push_async_callback(kv.close)
            watched = broker_on(root, kv, config=CONFIG, watch=lambda fs: TimedFs(fs, took_s))  # type: ignore[arg-type,return-value]
            brokers.append(await stack.enter_async_context(watched))
        writers = [Writer(brokers[number % BROKERS], topic_id, number) for number in range(partitions)]
        early = [each for number, each in enumerate(writers) if number % BROKERS < BROKERS - 1]
        late = [each for each in writers if each not in early]
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_share(brokers))]
            running += [tasks.create_task(each.run()) for each in early]
            await _until_more(early)
            running += [tasks.create_task(each.run()) for each in late]
            await _until_more(writers)
            limits = [broker.open_pipelines_limit for broker in brokers]
            open_files = sum(broker.open_pipelines for broker in brokers)
            for task in running:
                task.cancel()
    opening_s = max(took_s) + FILES * sum(took_s) / len(took_s) / (BROKERS * CONFIG.open_parallel)
    switch_s = REFUSED_S + opening_s
    bound_s = math.ceil(partitions / (0.75 * FILES)) * (CONFIG.crowded_turn_ms / 1000 + switch_s) + SETTLED_S
    longest = [max(each.longest_s for each in some) for some in (early, late)]
    records, mean_s = sum(each.acknowledged for each in writers), sum(took_s) / len(took_s)
    report(
        request,
        f"{partitions} partitions, {records} records; {len(took_s)} files asked for, {mean_s:.2f} s each, at most"
        f" {max(took_s):.2f} s; {open_files} open, limits {limits}; longest wait early {longest[0]:.1f} s, late"
        f" {longest[1]:.1f} s; bound {bound_s:.1f} s",
    )
    assert max(longest) <= bound_s


async def _until_more(writers: Sequence[Writer]) -> None:
    """Wait until each has some records acknowledged that were not before."""
    goals = [each.acknowledged + RECORDS for each in writers]
    while any(  # noqa: ASYNC110 - what is waited for is a state of many writers
        each.acknowledged < goal for each, goal in zip(writers, goals, strict=True)
    ):
        await asyncio.sleep(0.1)


async def _share(brokers: Sequence[Broker]) -> None:
    """Share open files among the brokers as the leader does, without the network between."""
    shares = FileShares()
    while True:
        for broker in brokers:
            name, places = broker.context.incarnation, broker.context.open_files
            if (share := shares.share(name)) is not None:
                places.share(share, SHARE_S)
            reported = OpenFileReport(
                held=places.held,
                closing=places.closing,
                waiting=places.waiting + places.opening,
                refused=places.refusals,
                limit_max=places.limit_max,
            )
            shares.update(name, reported, time.monotonic())
        shares.divide(time.monotonic())
        await asyncio.sleep(SHARE_ROUND_S if shares.is_divided else ROOMY_ROUND_S)
