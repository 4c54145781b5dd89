"""Consume-transform-produce loops of four libraries, while processes of the cluster and applications die and pause.

Each record of the source must appear once in each sink for committed readers, in order; the committed offsets are the
source's ends; and each loop makes progress soon after the last fault.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest

from bmq.meta.shard_kinds import TRANSACTIONS
from tests.integration.clients.levels import set_level
from tests.integration.cluster.conftest import Site
from tests.integration.history import report
from tests.integration.loops import STEP, Loops
from tests.integration.transformer import SESSION_TIMEOUT_MS
from tests.services.bmq_cluster import BROKER, HTTP_TIMEOUT_S, PROXY, BmqCluster
from tests.services.etcd import EtcdCluster

pytestmark = [pytest.mark.etcd, pytest.mark.clients]

PROGRESS_S = 60.0
"""Time to as many more records as STEP in each loop, once a fault is over."""
DARK_S = 15.0
"""Time without any datanode: half of a transaction's time-out."""
PAUSES_S = (5.0, 20.0)
"""Pauses of a node: one within its lease, one beyond."""
ADDED_OFFSETS = r'^kafka_network_requestmetrics_requests_total\{[^}]*request="AddOffsetsToTxn"[^}]*\} (\d+)'
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def leader(cluster: BmqCluster) -> str:
    cluster.wait(lambda: cluster.leader() is not None, "a leader")
    found = cluster.leader()
    assert found is not None
    return found


def coordinator(cluster: BmqCluster) -> str:
    """Return the process with most shards of transactions."""
    return Counter(cluster.shards(TRANSACTIONS).values()).most_common(1)[0][0]


VICTIMS: dict[str, Callable[[BmqCluster], str]] = {
    "broker": lambda cluster: cluster.busiest(BROKER),
    "coordinator": coordinator,
    "proxy": lambda cluster: cluster.names(PROXY)[0],
    "controller": leader,
}


def kill_roles(nodes: BmqCluster, loops: Loops, request: pytest.FixtureRequest) -> int:
    """Kill a process for each role; return how many kills there were, as the other helpers do."""
    for role, find in VICTIMS.items():
        name = find(nodes)
        nodes.kill(name)
        began = time.monotonic()
        loops.progress()
        report(request, f"kill -9 of the {role}, {name}: {time.monotonic() - began:.1f} s to {STEP} more records")
        nodes.start_again(name)
        loops.progress(timeout_s=PROGRESS_S)
    return len(VICTIMS)


def pause_coordinators(nodes: BmqCluster, loops: Loops, request: pytest.FixtureRequest) -> int:
    for seconds in PAUSES_S:
        name = coordinator(nodes)
        nodes.pause(name)
        time.sleep(seconds)
        nodes.resume(name)
        began = time.monotonic()
        loops.progress(timeout_s=PROGRESS_S)
        report(request, f"{name} paused for {seconds:.0f} s: then {time.monotonic() - began:.1f} s to {STEP} more")
        nodes.heal()
    return len(PAUSES_S)


def kill_applications(loops: Loops, request: pytest.FixtureRequest) -> int:
    for application in loops.applications:
        application.kill()
        application.start()
        began = time.monotonic()
        loops.progress(timeout_s=PROGRESS_S)
        report(request, f"kill -9 of {application.name}: {time.monotonic() - began:.1f} s to {STEP} more records")
    return len(loops.applications)


def pause_members(loops: Loops, request: pytest.FixtureRequest) -> int:
    """Pause one of two members: the group goes on without it, and refuses what it had in hand."""
    for application in loops.first_of_two:
        application.pause()
    time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
    for application in loops.first_of_two:
        application.resume()
    began = time.monotonic()
    loops.progress(timeout_s=PROGRESS_S)
    report(request, f"members of groups paused: then {time.monotonic() - began:.1f} s to {STEP} more records")
    return len(loops.first_of_two)


def added_offsets(nodes: BmqCluster) -> int:
    """Return how many AddOffsetsToTxn the processes have answered: version 2 of transactions has no such request."""
    total = 0
    for member in nodes.members.values():
        with _HTTP.open(f"{member.http}/metrics", timeout=HTTP_TIMEOUT_S) as response:
            text = response.read().decode()
        total += sum(int(value) for value in re.findall(ADDED_OFFSETS, text, re.MULTILINE))
    return total


def test_exactly_once_while_processes_die(
    nodes: BmqCluster, etcd_of_three: EtcdCluster, request: pytest.FixtureRequest
) -> None:
    loops = Loops(nodes)
    try:
        loops.start()
        kills = kill_roles(nodes, loops, request)
        pauses = pause_coordinators(nodes, loops, request)
        member = etcd_of_three.leader()
        etcd_of_three.kill(member)
        loops.progress()
        etcd_of_three.restart(member)
        loops.progress(timeout_s=PROGRESS_S)
        kills += 1 + kill_applications(loops, request)
        pauses += pause_members(loops, request)
        figures = loops.finish()
    finally:
        loops.abandon()
    report(request, f"{kills} kills, {pauses} pauses; {figures}")


@pytest.mark.parametrize("library", ["java", "franz"])
def test_exactly_once_at_level_1_while_processes_die(
    library: str, nodes: BmqCluster, request: pytest.FixtureRequest
) -> None:
    """Clients of level 2 have a code path of their own at level 1: partitions and groups are added by requests."""
    set_level(nodes.bootstrap, 1)
    loops = Loops(nodes, (library,))
    try:
        loops.start()
        kills = kill_roles(nodes, loops, request)
        pauses = pause_coordinators(nodes, loops, request)
        kills += kill_applications(loops, request)
        pauses += pause_members(loops, request)
        added = added_offsets(nodes)
        loops.progress(timeout_s=PROGRESS_S)
        assert added_offsets(nodes) > added  # after each fault the processes still show clients level 1
        figures = loops.finish()
    finally:
        loops.abandon()
    report(request, f"{kills} kills, {pauses} pauses; {figures}")


def test_exactly_once_while_datanodes_die(cluster: BmqCluster, site: Site, request: pytest.FixtureRequest) -> None:
    """Logs of partitions, of groups and of transactions all go on with the datanodes that are left."""
    loops = Loops(cluster)
    datanodes = range(len(site.hdfs.datanodes))
    try:
        loops.start()
        for index in datanodes:
            site.hdfs.kill_datanode(index)
            began = time.monotonic()
            loops.progress()
            report(request, f"datanode {index} killed: {time.monotonic() - began:.1f} s to {STEP} more records")
            site.hdfs.restart_datanode(index)
            loops.progress(timeout_s=PROGRESS_S)
        index = datanodes[0]
        site.hdfs.stop_datanode(index)
        began = time.monotonic()
        loops.progress()
        report(request, f"datanode {index} paused: {time.monotonic() - began:.1f} s to {STEP} more records")
        site.hdfs.resume_datanode(index)
        loops.progress(timeout_s=PROGRESS_S)
        for index in datanodes:
            site.hdfs.kill_datanode(index)
        time.sleep(DARK_S)
        for index in datanodes:
            site.hdfs.restart_datanode(index, wait=False)
        site.hdfs.wait_live()
        began = time.monotonic()
        loops.progress()
        report(request, f"no datanode for {DARK_S:.0f} s: then {time.monotonic() - began:.1f} s to {STEP} more records")
        figures = loops.finish()
    finally:
        loops.abandon()
    report(request, f"{2 * len(datanodes)} datanodes killed; {figures}")
