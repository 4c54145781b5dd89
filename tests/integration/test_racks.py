"""Each segment has copies on two racks, and a copy on its broker's own host, with a topology: docs/operations/hdfs.md.

HDFS knows racks by address, so each datanode is a machine of its own on a network.  The broker runs on the first one's.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.clients import kcat
from tests.services.compose import HOSTS, Container, services, why_not, write_hosts
from tests.services.netns import Network
from tests.services.processes import wait_for

RACKS = ("/east", "/east", "/west", "/west")
PARTITIONS = 6
COPIES = 3
TIMEOUT_S = 300.0
TOPOLOGY = {
    "CORE-SITE.XML_net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
    "CORE-SITE.XML_net.topology.table.file.name": "/tmp/racks",
}
SETTINGS = {
    "BMQ_META": "sqlite:///tmp/meta.db",
    "BMQ_ROOT": "hdfs://namenode:8020/bmq",
    "HADOOP_USER_NAME": "hadoop",
    "BMQ_BLOCK_BYTES": str(16 << 20),
    "BMQ_ZONE": "east",
    "BMQ_INSECURE": "true",
}
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Site:
    """A NameNode, datanodes on two racks, and one BMQ on the first datanode's machine."""

    def __init__(self, network: Network, folder: Path) -> None:
        file = services()
        name = file["namenode"]
        name = {**name, "environment": {**name["environment"], **TOPOLOGY}}
        self.namenode = Container("namenode", name, network.machine("namenode"), folder)
        self.datanodes = [
            Container("datanode", file["datanode"], network.machine(f"datanode{number}"), folder)
            for number in range(len(RACKS))
        ]
        server = {**file["proxy-0"], "environment": SETTINGS}
        self.bmq = Container("bmq", server, self.datanodes[0].machine, folder)
        self.containers = [self.namenode, *self.datanodes, self.bmq]
        write_hosts(self.containers)

    def start(self) -> None:
        table = "".join(f"{each.machine.host} {rack}\n" for each, rack in zip(self.datanodes, RACKS, strict=True))
        self.namenode.put("racks", table)
        self.namenode.start()
        self.namenode.wait_healthy()
        for each in self.datanodes:
            each.start()
        live = f"Live datanodes ({len(RACKS)})"
        wait_for(lambda: live in self.namenode.hdfs("dfsadmin", "-report"), live, timeout_s=TIMEOUT_S, interval_s=1)
        self.bmq.start()
        self.bmq.wait_healthy()

    def stop(self) -> None:
        for each in self.containers:
            each.kill()
            shutil.rmtree(HOSTS / each.machine.namespace, ignore_errors=True)

    def done(self, *words: str) -> str:
        """Run a command where BMQ runs."""
        done = self.bmq.run(words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def copies(self, topic: str, partition: int) -> list[int]:
        """Return the numbers of the datanodes that have the partition's last block."""
        url = f"http://{self.bmq.machine.host}:9080/api/v1/topics/{topic}/partitions/{partition}/segments"
        with _HTTP.open(url, timeout=TIMEOUT_S) as response:
            found: dict[str, Any] = json.load(response)
        nodes = [str(node).partition(":")[0] for node in found["segments"][-1]["blocks"][-1]["nodes"]]
        return [
            number for number, each in enumerate(self.datanodes) if each.machine.host in nodes or each.name in nodes
        ]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Network() as network:
        site = Site(network, tmp_path)
        try:
            site.start()
            yield site
        finally:
            site.stop()


def test_copies_lie_on_two_racks_and_on_the_brokers_own_host(site: Site) -> None:
    topology = site.namenode.hdfs("dfsadmin", "-printTopology")
    assert [topology.count(f"Rack: {rack}\n") for rack in ("/east", "/west")] == [1, 1]
    site.done("bmq", "topic", "create", "orders", "--partitions", str(PARTITIONS))
    for partition in range(PARTITIONS):
        line = f"echo hello | {kcat()} -b 127.0.0.1:9092 -t orders -p {partition} -P"
        site.done("sh", "-ec", line)
    for partition in range(PARTITIONS):
        copies = site.copies("orders", partition)
        assert len(copies) == COPIES
        assert {RACKS[number] for number in copies} == {"/east", "/west"}
        assert 0 in copies, "the first copy is written where the broker is"
