"""One cluster for all tests of this folder: ten processes over an etcd of three and an HDFS of four datanodes.

Where the machine allows it each process is a machine of its own on a bridge, so that links can be cut.  A test takes
`cluster`, breaks what it wants, and finds everything healed afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cluster.application import Fault, Place
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.netns import Network, why_not

SETTINGS = {
    "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",  # the only default that is shortened: tests wait for each group
    "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "8",
    "BMQ_AUTO_CREATE_TOPICS_ENABLE": "false",
    "BMQ_CACHE_BYTES": str(64 << 20),
}
LOCALHOST = "127.0.0.1"
NODES = 3
"""Processes of ``nodes``, with all roles each."""
SINGLE_KILLS = 2
"""How often the process of ``single`` is killed."""
IS_SOAK = bool(os.environ.get("BMQ_SOAK"))


@dataclass(frozen=True, slots=True)
class Site:
    """Services and network under a cluster.  Without a network all of it is on localhost."""

    etcd: EtcdCluster
    hdfs: HdfsCluster
    network: Network | None
    no_network: str | None
    """Reason why there is no network."""

    @property
    def etcd_host(self) -> str:
        return self.etcd.host

    @property
    def hdfs_host(self) -> str:
        return self.hdfs.topology.host


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    no_network = why_not()

    def stop(service: EtcdCluster | HdfsCluster) -> None:
        service.stop(keep_logs=request.session.testsfailed > 0)

    with contextlib.ExitStack() as stack:
        network = None if no_network else stack.enter_context(Network())
        _, etcd_host, hdfs_host = network.hosts if network is not None else [LOCALHOST] * 3
        etcd, hdfs = EtcdCluster(members=3, host=etcd_host), HdfsCluster(host=hdfs_host)
        for service in (etcd, hdfs):
            service.start()
            stack.callback(stop, service)
        yield Site(etcd, hdfs, network, no_network)


@pytest.fixture(scope="session")
def shared_cluster(site: Site, request: pytest.FixtureRequest) -> Iterator[BmqCluster]:
    cluster = BmqCluster(f"{site.hdfs.root}/cluster", site.etcd, environment=SETTINGS, network=site.network)
    cluster.start()
    yield cluster
    cluster.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture
def cluster(shared_cluster: BmqCluster, site: Site) -> Iterator[BmqCluster]:
    """Three proxies, three brokers, two controllers and two coordinators: to be broken at will."""
    yield shared_cluster
    site.etcd.heal()
    site.hdfs.heal()
    shared_cluster.heal()


@pytest.fixture
def links(site: Site) -> Network:
    """Return the network, for tests that cut links; skip the test if there is none."""
    if site.network is None:
        pytest.skip(site.no_network or "there is no network")
    return site.network


@pytest.fixture
def etcd_of_three() -> Iterator[EtcdCluster]:
    with EtcdCluster(members=3) as etcd:
        yield etcd


ON_HDFS = pytest.param("hdfs", marks=pytest.mark.hdfs)


@pytest.fixture(params=["local", *([ON_HDFS] if IS_SOAK else [])])
def nodes(request: pytest.FixtureRequest, tmp_path: Path, etcd_of_three: EtcdCluster) -> Iterator[BmqCluster]:
    """Yield three processes with all roles over an etcd of three, with a local root, in a soak on HDFS too."""
    is_local = request.param == "local"
    root = (tmp_path / "root").as_uri() if is_local else str(request.getfixturevalue("hdfs_root"))
    cluster = BmqCluster(
        root,
        etcd_of_three,
        proxies=0,
        brokers=0,
        controllers=0,
        coordinators=0,
        nodes=NODES,
        environment=SETTINGS | {"BMQ_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4"},
    )
    cluster.start()
    yield cluster
    cluster.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Place]:
    """Yield one process with all roles, which is killed and started again."""
    with BmqServer((tmp_path / "root").as_uri(), environment=SETTINGS, folder=tmp_path) as server:
        yield Place(server.bootstrap, tmp_path, [Fault("bmq", server.restart, server.wait_ready)] * SINGLE_KILLS)


@pytest.fixture
def three(nodes: BmqCluster) -> Place:
    """Return three processes with all roles over etcd, of which each is killed and stays away for a while."""
    faults = [
        Fault(name, lambda name=name: nodes.kill(name), lambda name=name: nodes.start_again(name))  # type: ignore[misc]
        for name in nodes.names(NODE)
    ]
    return Place(nodes.bootstrap, nodes.folder, faults)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "site" in names:
            item.add_marker("hdfs")
        if {"site", "small", "etcd_of_three"}.intersection(names):
            item.add_marker("etcd")
