"""Faults under real clients: ``kill -9`` of the server, and datanodes that die, stop and crawl.

An idempotent librdkafka producer on default retries writes numbered records without pause; no produce may fail.  In the
end every record stands in the log once, in its producer's order.  How long a partition gave no answer is reported.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.seeds import amount
from tests.integration.history import report
from tests.integration.load import Writer, check_log, create_topic, describe
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster

KILLS = amount(2, 50)
ROUNDS = amount(4, 12)
TOPIC = "faults"
PARTITIONS = 4
SLOW_PERIOD_S = 4.0


def kill_again_and_again(server: BmqServer, kills: int, request: pytest.FixtureRequest) -> None:
    create_topic(server.bootstrap, TOPIC, PARTITIONS)
    writer = Writer(server.bootstrap, TOPIC, PARTITIONS)
    writer.start()
    rng, pauses = random.Random(7), []
    for _ in range(kills):
        writer.wait_acked(rng.randint(500, 8000))
        writer.take_pause()
        server.restart()
        writer.wait_acked(500)
        pauses.append(writer.take_pause())
    writer.finish()
    check_log(server.bootstrap, writer)
    report(request, f"{kills} x kill -9 and restart: {writer.sent} records, {describe(pauses)}")


@pytest.mark.smoke
def test_kill_9_on_a_local_folder(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with BmqServer((tmp_path / "root").as_uri(), folder=tmp_path) as server:
        kill_again_and_again(server, KILLS, request)


def test_kill_9_on_hdfs(hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        kill_again_and_again(server, KILLS, request)


def break_datanode(cluster: HdfsCluster, index: int, fault: str) -> Callable[[], None]:
    """Break it; the call undoes that."""
    if fault == "killed":
        cluster.kill_datanode(index)
        return lambda: cluster.restart_datanode(index)
    if fault == "stopped":
        cluster.stop_datanode(index)
    else:
        cluster.slow_datanode(index, stopped=0.9, period_s=SLOW_PERIOD_S)
    return lambda: cluster.resume_datanode(index)


@pytest.mark.parametrize("fault", ["killed", "stopped", "slowed"])
def test_datanode(
    fault: str, hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """One datanode of the open pipelines fails under load; it comes back before the next round."""
    with BmqServer(hdfs_root, folder=tmp_path) as server:
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        writer = Writer(server.bootstrap, TOPIC, PARTITIONS)
        writer.start()
        pauses = []
        for number in range(ROUNDS):
            writer.wait_acked(4000)
            writer.take_pause()
            undo = break_datanode(hdfs, number % len(hdfs.datanodes), fault)
            end = time.monotonic() + (2 * SLOW_PERIOD_S if fault == "slowed" else 0)  # meets it running and stopped
            writer.wait_acked(6000)
            while time.monotonic() < end:
                writer.wait_acked(1000)
            pauses.append(writer.take_pause())
            undo()
        writer.finish()
        check_log(server.bootstrap, writer)
        report(request, f"{len(pauses)} x datanode {fault}: {writer.sent} records, {describe(pauses)}")
