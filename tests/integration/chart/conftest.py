"""Site of the rendered commands: a network of pods' machines, with an etcd and an HDFS on it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chart.render import NAMESPACE
from tests.services.etcd import EtcdCluster
from tests.services.etcd_binary import binary as etcd_binary
from tests.services.hdfs import HdfsCluster
from tests.services.image import DOCKERFILE, parse
from tests.services.netns import Network, why_not
from tests.services.pods import Node
from tests.services.workloads import Workloads

ZONE = "rack-1"


@dataclass(frozen=True, slots=True)
class Site:
    """One for all tests of this folder."""

    network: Network
    etcd: EtcdCluster
    hdfs: HdfsCluster

    def workloads(self) -> Workloads:
        """Return pods of a release, none yet, on one node."""
        return Workloads(
            self.network, namespace=NAMESPACE, image=image_environment(), programs=[etcd_binary().parent],
            node=Node("node-1", self.network.hosts[0], ZONE),
        )  # fmt: skip


def image_environment() -> dict[str, str]:
    """Return what `deploy/Dockerfile` has in every container's environment."""
    lines = [each.text for each in parse(DOCKERFILE.read_text()) if each.keyword == "ENV"]
    assert lines
    return dict(setting.split("=", 1) for line in lines for setting in shlex.split(line))


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
