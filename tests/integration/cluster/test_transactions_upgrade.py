"""An upgrade to transactions, and a step back, one process after another, while applications use transactions.

The older processes support a lower `transaction.version` (``tests.integration.older_bmq``).  Shown: clients with a
transactional id wait while the level is 0, go on by themselves once the last process is of the new version, and work
through a safe downgrade and the return of the older version.  Each record is in each sink once, in order.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.core.features import TRANSACTION_VERSION
from tests.integration.clients.levels import set_level
from tests.integration.cluster.conftest import NODES, SETTINGS
from tests.integration.history import report
from tests.integration.loops import STEP, Loops
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster

pytestmark = [pytest.mark.etcd, pytest.mark.clients]

PROGRESS_S = 60.0


class Versions:
    """Processes of two versions of one cluster, exchanged one by one."""

    def __init__(self, cluster: BmqCluster) -> None:
        self.cluster = cluster
        self._commands = {name: tuple(cluster[name].process.command) for name in cluster.names(NODE)}

    def choose(self, name: str, level: int | None) -> None:
        """Let the member's next life support the level at most; None stands for this version."""
        older = () if level is None else (sys.executable, "-m", "tests.integration.older_bmq", str(level))
        self.cluster[name].process.command = [*older, *self._commands[name]]

    def roll(self, level: int | None, loops: Loops | None = None) -> None:
        """Exchange all processes, one after another, each with SIGTERM; ``loops`` must go on after each."""
        for name in self._commands:
            self.choose(name, level)
            self.cluster.restart(name)
            if loops is not None:
                loops.progress(timeout_s=PROGRESS_S)


@pytest.fixture
def versions(tmp_path: Path, etcd_of_three: EtcdCluster, request: pytest.FixtureRequest) -> Iterator[Versions]:
    """Yield three processes without transactions, with all roles each."""
    cluster = BmqCluster(
        (tmp_path / "root").as_uri(),
        etcd_of_three,
        proxies=0,
        brokers=0,
        controllers=0,
        coordinators=0,
        nodes=NODES,
        environment=SETTINGS | {"BMQ_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4"},
    )
    versions = Versions(cluster)
    for name in cluster.names(NODE):
        versions.choose(name, 0)
    cluster.start()
    yield versions
    cluster.stop(keep_logs=request.session.testsfailed > 0)


def test_upgrade_and_downgrade_while_applications_commit(versions: Versions, request: pytest.FixtureRequest) -> None:
    cluster = versions.cluster
    loops = Loops(cluster)
    try:
        loops.source.start()
        for application in loops.applications:
            application.start()
        cluster.wait(lambda: loops.source.sent > STEP, "records in the source")
        versions.roll(None)
        began = time.monotonic()
        cluster.wait(lambda: cluster.feature_level(TRANSACTION_VERSION) == 2, "transaction.version 2")
        loops.progress()
        report(request, f"to {STEP} more records after the last process of level 0: {time.monotonic() - began:.1f} s")
        set_level(cluster.bootstrap, 1)
        loops.progress(timeout_s=PROGRESS_S)
        versions.roll(1, loops)
        assert cluster.feature_level(TRANSACTION_VERSION) == 1
        versions.roll(None, loops)
        assert cluster.feature_level(TRANSACTION_VERSION) == 1  # an operator lowered it: only an operator raises it
        set_level(cluster.bootstrap, 2)
        loops.progress(timeout_s=PROGRESS_S)
        figures = loops.finish()
    finally:
        loops.abandon()
    report(request, f"3 times {NODES} processes exchanged, 2 changes of the level; {figures}")
