"""Processes that stand still for 1 to 20 s, drawn by lot, under clients that give a process up sooner than that.

A client whose request lies unread in a stopped process goes on through another process.  When the first one runs again
it must not do what the client has done elsewhere in the meantime.  Some processes are killed while they stand still.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.cluster.conftest import SETTINGS
from tests.integration.cluster.test_faults import ROLES
from tests.integration.cluster.workload import Cluster, describe_pauses, workload
from tests.integration.history import report
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster

RUN_S = float(os.environ.get("BMQ_STANDSTILL_S", "1200" if os.environ.get("BMQ_SOAK") else "60"))
SEED = int(os.environ.get("BMQ_STANDSTILL_SEED", "11"))
STOP_S = (1.0, 20.0)
KILLED_SHARE = 0.2  # of the processes that stand still
GIVEN_UP_MS = 3_000
"""Time-out of the clients' requests.  It is shorter than most standstills, and than a produce's own two minutes."""
BURST_S = 0.1
REBALANCE_EVERY = 20  # rounds: each time the groups grow by a member


class Lone:
    """One process with all roles over SQLite, as a cluster of itself."""

    def __init__(self, server: BmqServer) -> None:
        self._server = server
        self.bootstrap = server.bootstrap

    def names(self, _role: str) -> list[str]:
        return [NODE]

    def __getitem__(self, _name: str) -> BmqServer:
        return self._server


def draw(rng: random.Random, groups: Sequence[Sequence[str]]) -> list[tuple[float, str, bool]]:
    """Draw at most one process of each group: how long it stands still, its name, and whether it is killed then."""
    chosen = rng.sample(groups, rng.randint(1, len(groups)))
    return sorted((rng.uniform(*STOP_S), rng.choice(names), rng.random() < KILLED_SHARE) for names in chosen)


def stand_still(cluster: Cluster, drawn: Sequence[tuple[float, str, bool]]) -> None:
    """Stop the processes at once; let each go on, or kill and start it, when its time is over."""
    began = time.monotonic()
    for _, name, _ in drawn:
        cluster[name].process.pause()
    for seconds, name, is_killed in drawn:
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        if is_killed:
            cluster[name].restart()
        else:
            cluster[name].process.resume()


def ride(cluster: Cluster, groups: Sequence[Sequence[str]], request: pytest.FixtureRequest) -> None:
    """Let processes of the groups stand still until the time is over; the workload checks what its clients saw."""
    rng = random.Random(SEED)
    end, rounds, standstills = time.monotonic() + RUN_S, 0, 0
    with workload(cluster, burst_s=BURST_S, request_timeout_ms=GIVEN_UP_MS) as load:
        while time.monotonic() < end:
            load.take_pauses()
            drawn = draw(rng, groups)
            text = ", ".join(f"{name} {seconds:.1f} s{' and killed' * is_killed}" for seconds, name, is_killed in drawn)
            report(request, f"seed {SEED}, round {rounds}: {text}")
            stand_still(cluster, drawn)
            if rounds % REBALANCE_EVERY == 0:
                load.rebalance()
            load.progress()
            report(request, describe_pauses(load.take_pauses()))
            rounds, standstills = rounds + 1, standstills + len(drawn)
    report(request, f"{rounds} rounds, {standstills} standstills, {load.summary()}")


def test_one_process(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with BmqServer((tmp_path / "root").as_uri(), environment=SETTINGS) as server:
        ride(Lone(server), [[NODE]], request)


def test_three_processes_with_all_roles(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Let at most two of the three stand still together."""
    with (
        EtcdCluster() as etcd,
        BmqCluster(
            (tmp_path / "root").as_uri(),
            etcd,
            proxies=0,
            brokers=0,
            controllers=0,
            coordinators=0,
            nodes=3,
            environment=SETTINGS,
        ) as cluster,
    ):
        names = cluster.names(NODE)
        ride(cluster, [names[:2], names[2:]], request)


def test_roles_apart_over_hdfs(cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    ride(cluster, [cluster.names(role) for role in ROLES], request)
