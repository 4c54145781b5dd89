"""Datanodes with room for three files of a whole block: sixty partitions share it, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig
from bmq.core.records.batch import Record, build_batch
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.storage.open import open_filesystem
from tests.integration.conftest import HdfsFactory
from tests.integration.driver import partition_of
from tests.integration.history import broker_on, report
from tests.simulation.world import read_log

PARTITIONS = 60
ROUNDS = 3
ROUND_S = 120.0
# A datanode keeps this free beside the block, and the NameNode knows nothing of it (1 GB by default).
PROPERTIES = {"dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": "0"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=480m", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system of its own for the test: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize("first_block_mb", [128, 16])
def test_many_partitions_share_a_small_disk(
    first_block_mb: int, small_disk: Path, hdfs_new: HdfsFactory, request: pytest.FixtureRequest
) -> None:
    """Each gets its turn at a segment file, also where every file reserves a whole block; small blocks are many."""
    cluster = hdfs_new(datanodes=3, folder=small_disk, properties=PROPERTIES)
    root = f"{cluster.root}/small"

    async def test() -> None:
        topic_id = uuid.uuid4()
        config = BrokerConfig(first_block_bytes=first_block_mb << 20)
        async with broker_on(root, MemoryKeyValue(MemoryStore()), config=config) as broker:
            took = [await write_round(broker, topic_id, number) for number in range(ROUNDS)]
            seconds = ", ".join(f"{each:.1f}" for each in took)
            report(request, f"{PARTITIONS} partitions, {broker.open_pipelines} open: rounds of {seconds} s")
            reports = [text for text in broker.reports if "no room for another file" in text]
            assert len(reports) == 1
        fs = await open_filesystem(root, holder="reader")
        try:
            for partition in range(PARTITIONS):
                batches = await read_log(fs, ROUNDS, partition_of(topic_id, partition)[0])
                assert [batch.base_offset for batch in batches] == list(range(ROUNDS))
        finally:
            await fs.close()  # uvloop does not close a loop with an open connection

    uvloop.run(test())


async def write_round(broker: Broker, topic_id: uuid.UUID, number: int) -> float:
    """Write a batch to each partition at once; return the seconds until all are acknowledged."""
    began = time.monotonic()
    futures = []
    for partition in range(PARTITIONS):
        path, key = partition_of(topic_id, partition)
        writer = broker.get(key) or await broker.open(path, key)
        # Of now: records of 1970 expire, and retention removes them if a round takes long.
        batch = build_batch([Record(value=b"%d" % number)], base_timestamp=time.time_ns() // 1_000_000)
        futures.append(writer.append(memoryview(batch)))
    async with asyncio.timeout(ROUND_S):
        assert await asyncio.gather(*futures) == [number] * PARTITIONS
    return time.monotonic() - began
