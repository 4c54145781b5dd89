"""Real services for integration tests: one HDFS for the whole run, and others made to order.

A test that asks for one of these fixtures carries the marker `hdfs` or `etcd`. Logs of a run with failures stay, and
the failing test's report says where.
"""

import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import hdfs_native
import pytest

from tests.harness.by_service import HDFS, ByService, scope_of
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_security import AUTHENTICATED, HdfsSecurity
from tests.services.hdfs_tools import open_root
from tests.services.kdc import missing

HDFS_FIXTURES = {"hdfs", "hdfs_root", "hdfs_new", "hdfs_ha", "shared_hdfs", "secure_hdfs", "secure_ha_hdfs"}
HAS_FAILED = pytest.StashKey[bool]()
CLUSTERS = pytest.StashKey[list[HdfsCluster]]()

HdfsFactory = Callable[..., HdfsCluster]
EtcdFactory = Callable[..., EtcdCluster]


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByService | None:
    """Give all tests with HDFS to one worker if tests are dealt by files."""
    return ByService(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # the worker with most to do begins with it
        items.sort(key=lambda item: scope_of(item.nodeid) != HDFS)
    for item in items:
        if HDFS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("hdfs")
        if "etcd_new" in getattr(item, "fixturenames", ()):
            item.add_marker("etcd")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
        clusters = [*item.stash.get(CLUSTERS, []), *item.session.stash.get(CLUSTERS, [])]
        if clusters and HDFS_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            text = "\n".join(f"{cluster!r}\nlogs in {cluster.log_folder}" for cluster in clusters)
            report.sections.append(("HDFS", text))
    return report


@pytest.fixture(scope="session")
def shared_hdfs(request: pytest.FixtureRequest) -> Iterator[HdfsCluster]:
    """One NameNode and four datanodes, started once; tests take `hdfs`, which heals it after them."""
    cluster = HdfsCluster()
    request.session.stash.setdefault(CLUSTERS, []).append(cluster)
    cluster.start()
    yield cluster
    cluster.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture(scope="session")
def secure_hdfs(request: pytest.FixtureRequest) -> Iterator[HdfsCluster]:
    """Start a NameNode and three datanodes with Kerberos and block tokens of a minute, once; they stay whole.

    The fixture's parameter, if a test gives it one, is ``hadoop.rpc.protection``.
    """
    yield from secure_cluster(request, AUTHENTICATED, rpc_protection=getattr(request, "param", "authentication"))


@pytest.fixture(scope="session")
def secure_ha_hdfs(request: pytest.FixtureRequest) -> Iterator[HdfsCluster]:
    """Start a secure HA pair that ZooKeeper fails over, with an observer and three datanodes, once.

    A test that breaks it heals it.  A silent NameNode is given up after 6 s; Hadoop's defaults are 45, 20 and 5 s.
    """
    properties = {
        "ha.health-monitor.rpc-timeout.ms": "4000",
        "dfs.ha.zkfc.nn.http.timeout.ms": "1000",
        "ha.failover-controller.graceful-fence.rpc-timeout.ms": "1000",
    }
    yield from secure_cluster(request, AUTHENTICATED, properties=properties, is_ha=True, is_automatic=True, observers=1)


def secure_cluster(
    request: pytest.FixtureRequest,
    transfer: Mapping[str, str],
    *,
    rpc_protection: str = "authentication",
    properties: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[HdfsCluster]:
    """Give a cluster with Kerberos, whose connections to datanodes have the protection ``transfer``."""
    if packages := missing():
        pytest.skip(f"no Kerberos on this machine: install {packages}")
    folder = Path(tempfile.mkdtemp(prefix="bmq-hdfs-"))
    cluster = HdfsCluster(
        datanodes=3,
        folder=folder,
        properties={  # minutes: tokens expire while files are open
            "dfs.block.access.token.lifetime": "1",
            "dfs.block.access.key.update.interval": "1",
            "dfs.namenode.delegation.token.renew-interval": "60000",
            **(properties or {}),
        },
        security=HdfsSecurity(folder / "security", rpc_protection=rpc_protection, transfer=transfer),
        namenode_heap_mb=192,
        datanode_heap_mb=128,
        **options,
    )
    request.session.stash.setdefault(CLUSTERS, []).append(cluster)
    cluster.start()
    try:
        open_root(cluster)
        yield cluster
    finally:
        cluster.stop(keep_logs=request.session.testsfailed > 0)


@pytest.fixture
def hdfs(shared_hdfs: HdfsCluster) -> Iterator[HdfsCluster]:
    """Yield the shared cluster, to be broken at will: afterwards every node runs again and has reached the others."""
    yield shared_hdfs
    shared_hdfs.heal()


@pytest.fixture
def hdfs_root(hdfs: HdfsCluster) -> Iterator[str]:
    """Yield the `hdfs://` address of a new folder on the shared cluster; remove it afterwards, for the disk's sake."""
    path = f"/test-{uuid.uuid4().hex[:12]}"
    hdfs_native.Client(hdfs.root).mkdirs(path)
    yield hdfs.root + path
    hdfs.heal()  # a test may leave the NameNode dead
    hdfs_native.Client(hdfs.root).delete(path, recursive=True)


@pytest.fixture
def hdfs_new(request: pytest.FixtureRequest) -> Iterator[HdfsFactory]:
    """Yield a function that starts clusters of the test's own: `hdfs_new(datanodes=2)`, arguments of HdfsCluster."""
    clusters = request.node.stash.setdefault(CLUSTERS, [])

    def start(**options: Any) -> HdfsCluster:
        cluster = HdfsCluster(**options)
        clusters.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop(keep_logs=request.node.stash.get(HAS_FAILED, False))


@pytest.fixture
def hdfs_ha(hdfs_new: HdfsFactory) -> HdfsFactory:
    """Return a function that starts clusters with two NameNodes, the first active: `hdfs_ha(datanodes=3)`."""
    return lambda **options: hdfs_new(is_ha=True, **options)


@pytest.fixture
def etcd_new(request: pytest.FixtureRequest) -> Iterator[EtcdFactory]:
    """Yield a function that starts clusters of the test's own, within a second: `etcd_new(members=3)`."""
    clusters: list[EtcdCluster] = []

    def start(**options: Any) -> EtcdCluster:
        cluster = EtcdCluster(**options)
        clusters.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop(keep_logs=request.node.stash.get(HAS_FAILED, False))


@pytest.fixture
def etcd(etcd_new: EtcdFactory) -> EtcdCluster:
    """Return a new etcd of one member, at revision 1."""
    return etcd_new()
