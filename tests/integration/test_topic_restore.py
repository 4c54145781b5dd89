"""A deleted topic comes back from an HDFS snapshot into the running cluster, by the lines of docs/operations/backup.md.

The lines are run by a shell as they are printed, but for addresses and folders.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native

from tests.integration.conftest import EtcdFactory
from tests.integration.load import Writer, check_log, create_topic
from tests.integration.test_backup import PARTITIONS, TOLD_S, TOPIC, held, new_cluster, snapshottable
from tests.integration.test_rebuild import SETTINGS
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_program, hdfs_tool
from tests.services.processes import ServiceProcess, free_ports, wait_for

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "backup.md").read_text()
OTHER = "payments"
EACH = 50
SHELL_S = 300.0
READY_S = 120.0


def shell_blocks(section: str) -> list[str]:
    """Return the shell lines that the page has in this section."""
    text = PAGE.split(f"\n### {section}\n")[1].split("\n### ")[0]
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


class Shell:
    """A shell with `hdfs` and `bmq` on its path, and a cluster's address in its environment."""

    def __init__(self, hdfs: HdfsCluster, bootstrap: str, folder: Path, replaced: dict[str, str]) -> None:
        hdfs_program(hdfs, folder)
        path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, **SETTINGS, "PATH": path, "BMQ_BOOTSTRAP": bootstrap, "BMQ_PROFILE": ""}
        self._replaced = replaced
        self._pattern = re.compile("|".join(map(re.escape, sorted(replaced, key=len, reverse=True))))

    def here(self, script: str) -> str:
        """Return printed lines with the addresses and folders of this machine."""
        return self._pattern.sub(lambda found: self._replaced[found[0]], script)

    def run(self, script: str, data: str = "") -> str:
        done = subprocess.run(
            ["sh", "-ec", self.here(script)], env=self.environment, input=data, capture_output=True, text=True,
            timeout=SHELL_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def records(self, *flags: str) -> list[dict[str, object]]:
        """Return all records of the topic, by partition and offset."""
        lines = self.run(" ".join(["bmq consume", TOPIC, "--to latest --json", *flags])).splitlines()
        return sorted(map(json.loads, lines), key=lambda each: (each["partition"], each["offset"]))


def some_records() -> str:
    """Return JSON lines with all that a record has; `bmq produce` sends none without both key and value."""
    now_ms = int(time.time() * 1000)
    records = [
        {
            "key": None if number % 5 == 1 else f"k{number}",
            "value": None if number % 5 == 0 else f"value {number}",
            "headers": [{"key": "n", "value": str(number)}],
            "partition": number % PARTITIONS,
            "timestamp": now_ms - 1_000 + number,
        }
        for number in range(EACH * PARTITIONS)
    ]
    return "".join(f"{json.dumps(each)}\n" for each in records)


def test_a_deleted_topic_comes_back_into_the_running_cluster(
    hdfs: HdfsCluster, hdfs_root: str, etcd_new: EtcdFactory, tmp_path: Path
) -> None:
    """Another topic is written all the while, and no process of the cluster ends."""
    etcd, folder = etcd_new(), urlsplit(hdfs_root).path
    files, copy = shell_blocks("A single topic")
    before_serving, serving = files.split("bmq serve", 1)
    kafka, internal, http = free_ports(3)
    restored = f"{folder}-restored"
    replaced = {
        "hdfs://namenode:8020/restored": hdfs.root + restored,
        "/restored": restored,
        "/bmq/.snapshot/daily-2026-11-22": f"{folder}/.snapshot/s1",
        "/var/tmp/restored.db": str(tmp_path / "restored.db"),
        "127.0.0.1:19092": f"127.0.0.1:{kafka}",
        "127.0.0.1:19093": f"127.0.0.1:{internal}",
        "127.0.0.1:19080": f"127.0.0.1:{http}",
    }
    with new_cluster(hdfs_root, etcd) as cluster, snapshottable(hdfs, folder):
        shell = Shell(hdfs, cluster.bootstrap, tmp_path, replaced)
        create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        create_topic(cluster.bootstrap, OTHER, PARTITIONS)
        shell.run(f"bmq produce {TOPIC} --format json", some_records())
        written = shell.records()
        assert len(written) == EACH * PARTITIONS
        pids = {name: member.process.pid for name, member in cluster.members.items()}
        writer = Writer(cluster.bootstrap, OTHER, PARTITIONS, burst_s=0.05)
        writer.start()
        command = ["sh", "-ec", shell.here(f"exec bmq serve{serving}")]
        server = ServiceProcess("restored", command, log=tmp_path / "restored.log", environment=shell.environment)
        try:
            hdfs_tool(hdfs, "dfs", "-createSnapshot", folder, "s1")
            wait_for(
                lambda: held(f"{hdfs_root}/.snapshot/s1", TOPIC) == [EACH] * PARTITIONS,
                "a snapshot with all records",
                timeout_s=TOLD_S,
                interval_s=2,
            )
            shell.run(f"bmq topic delete {TOPIC}")
            shell.run(before_serving)
            server.start()
            wait_for(lambda: "\nready" in f"\n{server.log.read_text()}", "the restored root", timeout_s=READY_S)
            shell.run(copy)
            assert shell.records() == written
            assert server.terminate(timeout_s=READY_S) == 0
            writer.wait_acked(EACH)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        finally:
            server.kill()
            hdfs_native.Client(hdfs.root).delete(restored, recursive=True)
        check_log(cluster.bootstrap, writer)
        assert {name: member.process.pid for name, member in cluster.members.items()} == pids
