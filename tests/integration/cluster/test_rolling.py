"""Every process restarted under load: one after the other, half of them at once, all of them at once.

One by one no client may see an error.  Of half at once neither; only when nobody is left to be asked do clients wait.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.integration.cluster.workload import Workload, describe_pauses, workload
from tests.integration.history import report
from tests.services.bmq_cluster import BROKER, CONTROLLER, COORDINATOR, PROXY, BmqCluster

ROUNDS = 5 if os.environ.get("BMQ_SOAK") else 1


def restart(cluster: BmqCluster, load: Workload, names: list[str]) -> tuple[float, list[float]]:
    """Restart all of these at once, in order; return the seconds they took, and the pauses until traffic ran again."""
    load.take_pauses()
    began = time.monotonic()
    cluster.restart(*names)
    took = time.monotonic() - began
    cluster.wait_stable()
    load.progress()
    return took, load.take_pauses()


def test_one_by_one(cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    """Restart each member as in an upgrade: controllers first, then brokers and coordinators, proxies last."""
    with workload(cluster) as load:
        pauses: dict[str, float] = {}
        for role in (CONTROLLER, BROKER, COORDINATOR, PROXY) * ROUNDS:
            for name in cluster.names(role):
                _, found = restart(cluster, load, [name])
                pauses[role] = max(*found, pauses.get(role, 0.0))
    longest = ", ".join(f"{role} {pause:.2f} s" for role, pause in pauses.items())
    report(request, f"longest time without an acknowledgement: {longest}; {load.summary()}")


def test_half_of_brokers_and_proxies_at_once_then_all(cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    with workload(cluster) as load:
        for share, count in (("half", 2), ("all", 3)) * ROUNDS:
            names = [*cluster.names(BROKER)[:count], *cluster.names(PROXY)[:count]]
            took, pauses = restart(cluster, load, names)
            report(request, f"{share} of brokers and proxies ({took:.1f} s): {describe_pauses(pauses)}")
    report(request, load.summary())
