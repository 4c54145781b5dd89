"""Several faults at a time, drawn by lot: what no single test thought of.

In each round up to one member of each role breaks, one of etcd's and a datanode with them at times; all are healed
before the next round.  The lots are drawn from a seed, which the report names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.integration.cluster.conftest import Site
from tests.integration.cluster.test_faults import ROLES
from tests.integration.cluster.workload import describe_pauses, workload
from tests.integration.history import report
from tests.services.bmq_cluster import BROKER, BmqCluster

IS_SOAK = bool(os.environ.get("BMQ_SOAK"))
ROUNDS = 30 if IS_SOAK else 3
REBALANCE_EVERY = 3  # rounds: each time the groups grow by a member
OTHERS_SHARE = 0.3  # of the rounds in which etcd, and HDFS, suffer too
SEED = int(os.environ.get("BMQ_STORM_SEED", "7"))


def faults_of(role: str, cluster: BmqCluster, site: Site) -> dict[str, Callable[[str], None]]:
    """Return the faults that can befall a member of this role, by name."""
    faults: dict[str, Callable[[str], None]] = {
        "kill": cluster.kill,
        "stop": cluster.stop_politely,
        "pause": cluster.pause,
    }
    if site.network is not None:
        faults["cut from etcd"] = lambda name: cluster.cut(name, site.etcd_host)
    if site.network is not None and role == BROKER:
        faults["cut from hdfs"] = lambda name: cluster.cut(name, site.hdfs_host)
    return faults


def draw(rng: random.Random, cluster: BmqCluster, site: Site) -> list[tuple[str, Callable[[], None]]]:
    """Draw the faults of a round, in random order: the name of each, and the call that causes it."""
    drawn: list[tuple[str, Callable[[], None]]] = []
    for role in rng.sample(ROLES, rng.randint(1, len(ROLES))):
        name = rng.choice(cluster.names(role))
        fault, break_it = rng.choice(list(faults_of(role, cluster, site).items()))
        drawn.append((f"{fault} {name}", partial(break_it, name)))
    if rng.random() < OTHERS_SHARE:
        member = rng.randrange(len(site.etcd.members))
        drawn.append((f"kill etcd-{member}", partial(site.etcd.kill, member)))
    if rng.random() < OTHERS_SHARE:
        datanode = rng.randrange(len(site.hdfs.datanodes))
        drawn.append((f"kill datanode-{datanode}", partial(site.hdfs.kill_datanode, datanode)))
    rng.shuffle(drawn)
    return drawn


def test_storm(cluster: BmqCluster, site: Site, request: pytest.FixtureRequest) -> None:
    rng = random.Random(SEED)
    with workload(cluster) as load:
        for number in range(ROUNDS):
            cluster.wait_stable()
            load.take_pauses()
            drawn = draw(rng, cluster, site)
            report(request, f"seed {SEED}, round {number}: {', '.join(what for what, _ in drawn)}")
            for _, break_it in drawn:
                break_it()
            if number % REBALANCE_EVERY == 0:
                load.rebalance()
            load.progress()
            pauses = load.take_pauses()
            site.etcd.heal()
            site.hdfs.heal()
            cluster.heal()
            load.progress()
            report(request, f"{describe_pauses(pauses)}; healing at most {max(load.take_pauses()):.2f} s")
    report(request, load.summary())
