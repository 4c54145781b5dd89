"""``kill -9`` of the writer, again and again, on a local folder and on a real HDFS.

Each life of the process leaves a segment of another size, the largest many times the distance between checkpoints.
The next life reads only behind the last checkpoint; clients go on where their answers ended; nothing acknowledged is
lost and nothing is doubled.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import pytest
import uvloop

from bmq.broker.config import BrokerConfig
from bmq.meta.open import open_keyvalue
from bmq.storage.filesystem import FileSystem
from tests.integration.driver import WINDOW, DriverProcess, WatchedFs, partition_of, watched
from tests.integration.history import broker_on, check_partition, report, spread

ROUNDS = 50 if os.environ.get("BMQ_SOAK") else 5
TIMEOUT_S = 1800.0
BATCH_BYTES = 64 << 10
PRODUCERS = 4
SIZES_MB = (1, 40, 8, 24, 80)
"""Acknowledged in a life before it is killed; then from the front again."""
FLOW_BYTES = 2 * PRODUCERS * WINDOW * BATCH_BYTES
"""Written while a checkpoint is on its way to the journal: generously, everything in flight twice."""
BYTES_READ_MAX = 2 * (BrokerConfig().checkpoint_bytes + FLOW_BYTES)
"""Twice: a torn last batch is looked at again, for something good behind it."""


@pytest.mark.smoke
def test_kill_9_on_hdfs_once(hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One life of 24 MB, killed."""
    uvloop.run(kill_again_and_again(hdfs_root, tmp_path, 1, (24,), request))


def test_kill_9_on_hdfs(hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uvloop.run(kill_again_and_again(hdfs_root, tmp_path, ROUNDS, SIZES_MB, request))


def test_kill_9_on_a_local_folder(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uvloop.run(kill_again_and_again((tmp_path / "root").as_uri(), tmp_path, ROUNDS, SIZES_MB, request))


async def kill_again_and_again(
    root: str, folder: Path, rounds: int, sizes_mb: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    meta, topic_id = f"sqlite://{folder / 'meta.db'}", uuid.uuid4()
    driver = DriverProcess(folder, root, meta, topic_id, producers=PRODUCERS, size=BATCH_BYTES)
    seen = driver.transcript
    written: list[int] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for number in range(rounds):
                driver.start()
                await driver.until_ready()
                before = len(seen.acks)
                await driver.until_acks((sizes_mb[number % len(sizes_mb)] << 20) // BATCH_BYTES)
                driver.kill()
                written.append((len(seen.acks) - before) * BATCH_BYTES)
            path, key = partition_of(topic_id)
            kv = await open_keyvalue(meta)
            try:
                counters: list[WatchedFs] = []

                def count(fs: FileSystem) -> FileSystem:
                    passed, counter = watched(fs, lambda event: None)
                    counters.append(counter)
                    return passed

                async with broker_on(root, kv, watch=count) as broker:
                    writer = await broker.open(path, key)
                    reads = [
                        *(start["bytes_read"] for start in seen.of("ready")[1:]),
                        counters[0].log_bytes_read.total(),
                    ]
                    end = writer.machine.high_watermark
                    stored = await check_partition(root, path, end, seen.acks)
                    assert not broker.reports
            finally:
                await kv.close()
    finally:
        driver.kill()
    assert not seen.of("error")
    assert not seen.of("ended")
    assert len(stored) >= len(seen.acks)
    assert max(reads) <= BYTES_READ_MAX, f"MB written {written}, read {reads}"
    largest: dict[int, int] = {}  # read after a life of this nominal size
    for number, read in enumerate(reads):
        nominal = sizes_mb[number % len(sizes_mb)]
        largest[nominal] = max(largest.get(nominal, 0), read)
    lives = ", ".join(f"{read / 1e6:.1f} of {nominal}" for nominal, read in sorted(largest.items()))
    took = spread([start["took_ms"] for start in seen.of("ready")])
    report(request, f"{len(written)} kills; MB read by the next life, at most: {lives}; open min/median/max {took} ms")
