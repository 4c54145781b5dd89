"""Every role killed, stopped, paused and cut off, under producers and groups that must see nothing of it but time.

After each fault, and while it lasts, acknowledgements and reading go on by themselves, and groups rebalance.  In the
end every acknowledged record stands in the log once and in order, and each member of each group went on from what the
group had committed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from bmq.meta.cluster.membership import TTL_S
from tests.integration.cluster.conftest import Site
from tests.integration.cluster.stored import pipeline
from tests.integration.cluster.workload import BURST_S, Workload, describe_pauses, workload
from tests.integration.history import report
from tests.services.bmq_cluster import BROKER, CONTROLLER, COORDINATOR, PROXY, BmqCluster
from tests.services.netns import Network

IS_SOAK = bool(os.environ.get("BMQ_SOAK"))
ROUNDS = 5 if IS_SOAK else 1
OUTAGE_S = 300.0 if IS_SOAK else 30.0
ROLES = (PROXY, BROKER, CONTROLLER, COORDINATOR)
# A pause of 1 s may go unnoticed; after 5 s a probe has declared a broker dead, though its lease has not ended.
BLINKS_S = (1.0, 5.0)


def victim(cluster: BmqCluster, role: str) -> str:
    """Return the member whose loss hurts most: the busiest broker or coordinator, the leader, or the first proxy."""
    if role in (BROKER, COORDINATOR):
        return cluster.busiest(role)
    if role == CONTROLLER:
        leader = cluster.leader()
        assert leader is not None
        return leader
    return cluster.names(PROXY)[0]


def go_on_for(load: Workload, seconds: float) -> None:
    """Require progress again and again for so many seconds, while the fault lasts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load.progress()


def wait_forgotten(cluster: BmqCluster, incarnation: str) -> None:
    """Wait until the member's lease has ended, or it was declared dead."""
    cluster.wait(lambda: incarnation not in cluster.registered(), f"{incarnation} no member any more")


def incarnation_of(cluster: BmqCluster, name: str) -> str:
    return next(each for each, named in cluster.registered().items() if named == name)


Fault = Callable[[Workload, str], None]


def ride(
    cluster: BmqCluster,
    request: pytest.FixtureRequest,
    role: str,
    fault: Fault,
    heal: Callable[[str], None],
    *,
    rounds: int = ROUNDS,
    burst_s: float = BURST_S,
) -> None:
    """Cause the fault under load, require progress in spite of it, undo it, and require progress again."""
    with workload(cluster, burst_s=burst_s) as load:
        for _ in range(rounds):
            cluster.wait_stable()
            name = victim(cluster, role)
            load.take_pauses()
            fault(load, name)
            load.rebalance()
            load.progress()
            during = load.take_pauses()
            heal(name)
            load.progress()
            after = load.take_pauses()
            report(request, f"{describe_pauses(during)}; while it came back at most {max(after):.2f} s")
    report(request, load.summary())


@pytest.mark.parametrize("role", ROLES)
def test_killed(role: str, cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    ride(cluster, request, role, lambda _, name: cluster.kill(name), cluster.start_again)


@pytest.mark.parametrize("role", ROLES)
def test_stopped_politely(role: str, cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    ride(cluster, request, role, lambda _, name: cluster.stop_politely(name), cluster.start_again)


@pytest.mark.parametrize("seconds", BLINKS_S)
@pytest.mark.parametrize("role", ROLES)
def test_paused_within_its_lease_and_resumed(
    role: str, seconds: float, cluster: BmqCluster, request: pytest.FixtureRequest
) -> None:
    """Pause a member briefly: its connections stay open, and requests are served when it resumes, or by others."""

    def fault(_: Workload, name: str) -> None:
        cluster.pause(name)
        time.sleep(seconds)
        cluster.resume(name)

    ride(cluster, request, role, fault, lambda name: cluster.wait_ready([name]))


@pytest.mark.parametrize("role", ROLES)
def test_paused_beyond_its_lease_and_resumed(role: str, cluster: BmqCluster, request: pytest.FixtureRequest) -> None:
    """Resume a member after its lease has ended: it must notice that it is no longer a member, and register again."""

    def fault(load: Workload, name: str) -> None:
        incarnation = incarnation_of(cluster, name)
        cluster.pause(name)
        paused_at = time.monotonic()
        wait_forgotten(cluster, incarnation)
        go_on_for(load, TTL_S + 1 - (time.monotonic() - paused_at))

    def heal(name: str) -> None:
        cluster.resume(name)
        cluster.wait_ready([name])

    ride(cluster, request, role, fault, heal)


@pytest.mark.parametrize("role", ROLES)
def test_cut_off_from_etcd(
    role: str, cluster: BmqCluster, site: Site, links: Network, request: pytest.FixtureRequest
) -> None:
    """Cut the link to etcd until the lease has ended: others take the member's work, though it still runs."""

    def fault(load: Workload, name: str) -> None:
        incarnation = incarnation_of(cluster, name)
        cluster.cut(name, site.etcd_host)
        load.progress()
        wait_forgotten(cluster, incarnation)

    def heal(name: str) -> None:
        cluster.restore()
        cluster.wait_ready([name])

    ride(cluster, request, role, fault, heal)


def test_broker_cut_off_from_hdfs(
    cluster: BmqCluster, site: Site, links: Network, request: pytest.FixtureRequest
) -> None:
    """Cut a broker off from HDFS, so that it lives and cannot flush: brokers that can take its partitions."""

    def fault(load: Workload, name: str) -> None:
        cluster.cut(name, site.hdfs_host)
        cluster.wait(lambda: name not in cluster.owners().values(), f"nothing owned by {name} any more")

    ride(cluster, request, BROKER, fault, lambda _: cluster.restore())


def test_broker_killed_with_a_datanode_of_its_pipelines(
    cluster: BmqCluster, site: Site, request: pytest.FixtureRequest
) -> None:
    """Kill both, as a machine that dies does: the next owner recovers the segments from the replicas that are left."""
    killed: list[int] = []

    def fault(load: Workload, name: str) -> None:
        killed[:] = [site.hdfs.datanode_of(address) for address in pipeline(cluster, site, load, name)[:1]]
        site.hdfs.kill_datanode(killed[0])
        cluster.kill(name)

    def heal(name: str) -> None:
        site.hdfs.restart_datanode(killed[0])
        cluster.start_again(name)

    ride(cluster, request, BROKER, fault, heal)


def test_proxy_cut_off_from_a_broker(cluster: BmqCluster, links: Network, request: pytest.FixtureRequest) -> None:
    """Cut the link between a proxy and a broker that both live, and that all other members reach."""
    proxy = cluster.names(PROXY)[0]
    ride(cluster, request, BROKER, lambda _, broker: cluster.cut(proxy, broker), lambda _: cluster.restore())


def test_leader_of_etcd_killed(cluster: BmqCluster, site: Site, request: pytest.FixtureRequest) -> None:
    leader = site.etcd.leader()
    ride(cluster, request, BROKER, lambda *_: site.etcd.kill(leader), lambda _: site.etcd.restart(leader))


def test_all_of_etcd_stopped(cluster: BmqCluster, site: Site, request: pytest.FixtureRequest) -> None:
    """Stop etcd: traffic goes on all the time; afterwards no member was declared dead, and no partition has moved.

    Nobody can open a segment meanwhile (rule 7), so each round has a topic of its own, whose first segments of 16 MB
    take what it writes: 15 MB in 300 s over six partitions.
    """
    members, before = cluster.registered(), cluster.records()

    def fault(load: Workload, _: str) -> None:
        before.update(cluster.records())
        site.etcd.kill_all()
        go_on_for(load, OUTAGE_S)

    def heal(_: str) -> None:
        site.etcd.heal()
        cluster.wait(lambda: cluster.leader() is not None, "a leader")
        after = cluster.records()
        assert cluster.registered() == members
        moved = [key for key, record in before.items() if after[key].epoch != record.epoch]
        assert not moved, f"{moved} changed owners, though nobody died"

    for _ in range(ROUNDS):
        before.clear()
        ride(cluster, request, BROKER, fault, heal, rounds=1, burst_s=2.0)
