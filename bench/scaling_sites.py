"""BMQ as any number of processes over one HDFS and one etcd, each time a cluster of its own name and folder.

A **shape** is a number of processes with all roles: started one by one, or by one command with ``--workers``.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.deployments import (
    DATANODES,
    ETCD,
    ETCD_ARGUMENTS,
    HDFS,
    NODES,
    OWN,
    REPLICATED_ENVIRONMENT,
    Deployment,
    start_servers,
)
from bench.roots import JAVA_OPTIONS
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.processes import ServiceProcess

REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of processes, and whether one command starts them."""

    count: int
    is_workers: bool = False

    @property
    def name(self) -> str:
        """The name in the results."""
        if self.is_workers:
            return f"--workers {self.count}"
        return f"{self.count} process{'es' * (self.count != 1)}"


@dataclass(frozen=True, slots=True)
class Storage:
    """The HDFS and the etcd that all shapes use, one after another."""

    hdfs: HdfsCluster
    etcd: EtcdCluster


@contextlib.contextmanager
def storage(folder: Path) -> Iterator[Storage]:
    """Start an HDFS of three datanodes and an etcd of three members, their data in ``folder``."""
    with (
        HdfsCluster(datanodes=DATANODES, java_options=JAVA_OPTIONS, folder=folder / "hdfs") as hdfs,
        EtcdCluster(members=NODES, folder=folder / "etcd", arguments=ETCD_ARGUMENTS) as etcd,
    ):
        yield Storage(hdfs, etcd)


@contextlib.contextmanager
def running(store: Storage, shape: Shape, folder: Path) -> Iterator[Deployment]:
    """Start a new cluster of this shape; in the end kill it and delete what it has stored."""
    cluster = f"scaling-{uuid.uuid4().hex[:8]}"
    environment = REPLICATED_ENVIRONMENT | {"BMQ_CLUSTER": cluster}
    workers = shape.count if shape.is_workers else 1
    with contextlib.ExitStack() as stack:
        stack.callback(hdfs_tool, store.hdfs, "dfs", "-rm", "-r", "-f", "-skipTrash", f"/{cluster}")
        servers = []
        for number in range(1 if shape.is_workers else shape.count):
            home = folder / f"{cluster}-{number}"
            home.mkdir()
            server = BmqServer(
                f"{store.hdfs.root}/{cluster}", store.etcd.url, environment=environment,
                arguments=("--node-id", str(number)), folder=home, workers=workers,
            )  # fmt: skip
            stack.callback(server.kill)
            servers.append(server)
        start_servers(servers, members=shape.count)
        processes = [process for server in servers for process in with_workers(server.process)]
        yield Deployment(
            shape.name,
            ",".join(server.bootstrap for server in servers),
            REPLICAS,
            {OWN: processes, HDFS: store.hdfs.processes, ETCD: store.etcd.members},
            folder=folder,
        )


def with_workers(process: ServiceProcess) -> list[ServiceProcess]:
    """Return the process and those that it has started."""
    found = [process]
    for child in psutil.Process(process.pid).children(recursive=True):
        name = f"{process.name}-worker"
        worker = ServiceProcess(name, child.cmdline(), log=process.log, environment=process.environment)
        found.append(worker.adopt({"pid": child.pid, "created": child.create_time()}))
    return found
