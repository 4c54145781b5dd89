"""What the rendered commands run on: a network of pods' machines, an etcd and an HDFS on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.netns import Network, why_not


@dataclass(frozen=True, slots=True)
class Site:
    """One for all tests of this folder."""

    network: Network
    etcd: EtcdCluster
    hdfs: HdfsCluster


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    reason = why_not()
    if reason:
        pytest.skip(reason)

    def stop(service: EtcdCluster | HdfsCluster) -> None:
        service.stop(keep_logs=request.session.testsfailed > 0)

    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        _, etcd_host, hdfs_host = network.hosts
        etcd, hdfs = EtcdCluster(host=etcd_host), HdfsCluster(datanodes=3, host=hdfs_host)
        for service in (etcd, hdfs):
            service.start()
            stack.callback(stop, service)
        yield Site(network, etcd, hdfs)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker("hdfs")
            item.add_marker("etcd")
