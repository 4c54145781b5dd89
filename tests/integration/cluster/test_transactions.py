"""Consume-transform-produce loops of two libraries, while processes of the cluster and applications die and pause.

Each record of the source must appear once in each sink for committed readers, in order; the committed offsets are the
source's ends; and each loop makes progress soon after the last fault.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from bmq.meta.shard_kinds import TRANSACTIONS
from tests.integration.history import report
from tests.integration.load import create_topic
from tests.integration.source import Source
from tests.integration.transformer import SESSION_TIMEOUT_MS, Transformer, Work, check_sink, committed, read
from tests.services.bmq_cluster import BROKER, PROXY, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.processes import NotReady, wait_for

pytestmark = pytest.mark.etcd

PARTITIONS = 4
PROGRESS_S = 60.0
"""Time to as many more records as STEP in each loop, once a fault is over."""
LIMIT_S = 180.0
PAUSES_S = (5.0, 20.0)
"""Pauses of a node: one within its lease, one beyond."""
STEP = 200
"""Records that each loop commits between two faults."""


class Loops:
    """Two loops over one source: a group of two members with librdkafka, and one application with aiokafka."""

    def __init__(self, cluster: BmqCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.source = Source(self.bootstrap, "source", PARTITIONS)
        self.works = [self._work("confluent", "one"), self._work("confluent", "two"), self._work("aiokafka", "only")]
        for topic in ("source", *sorted({work.sink for work in self.works})):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.applications = [Transformer(work, cluster.folder) for work in self.works]
        self.loops = [self.works[0], self.works[2]]

    def _work(self, library: str, member: str) -> Work:
        name = f"by-{library}"
        return Work(library, self.bootstrap, "source", f"sink-{library}", name, f"{name}-{member}", PARTITIONS)

    def start(self) -> None:
        self.source.start()
        for application in self.applications:
            application.start()
        self.progress()

    def done(self) -> list[int]:
        """Return how many records of the source each loop has committed."""
        return [sum(committed(self.bootstrap, loop.group, "source", PARTITIONS)) for loop in self.loops]

    def progress(self, records: int = STEP, *, timeout_s: float = LIMIT_S) -> None:
        goals = [each + records for each in self.done()]
        found: list[int] = []

        def is_done() -> bool:
            found[:] = self.done()
            return all(each >= goal for each, goal in zip(found, goals, strict=True))

        try:
            wait_for(is_done, "more records", timeout_s=timeout_s, interval_s=0.5)
        except NotReady as error:
            groups = [loop.group for loop in self.loops]
            raise NotReady(f"{error}: {groups} committed {found} of {goals}") from None

    def finish(self) -> str:
        """Stop the source, wait for its end, and check the sinks; return the figures."""
        self.source.finish()
        values = read(self.bootstrap, "source", PARTITIONS, "read_uncommitted")
        assert sum(map(len, values)) == self.source.sent
        goal = [self.source.sent] * len(self.loops)
        wait_for(lambda: self.done() == goal, f"{goal} committed", timeout_s=LIMIT_S, interval_s=0.5)
        for application in self.applications:
            application.kill()
        hidden = {loop.sink: check_sink(loop, values) for loop in self.loops}
        return f"{self.source.sent} records transformed by each of 2 loops; records of aborted transactions: {hidden}"

    def abandon(self) -> None:
        self.source.abandon()
        for application in self.applications:
            application.kill()


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


def test_exactly_once_while_processes_die(
    nodes: BmqCluster, etcd_of_three: EtcdCluster, request: pytest.FixtureRequest
) -> None:
    loops = Loops(nodes)
    kills = pauses = 0
    try:
        loops.start()
        for role, find in VICTIMS.items():
            name = find(nodes)
            nodes.kill(name)
            began = time.monotonic()
            loops.progress()
            report(request, f"kill -9 of the {role}, {name}: {time.monotonic() - began:.1f} s to {STEP} more records")
            nodes.start_again(name)
            loops.progress(timeout_s=PROGRESS_S)
            kills += 1
        for seconds in PAUSES_S:
            name = coordinator(nodes)
            nodes.pause(name)
            time.sleep(seconds)
            nodes.resume(name)
            began = time.monotonic()
            loops.progress(timeout_s=PROGRESS_S)
            report(request, f"{name} paused for {seconds:.0f} s: then {time.monotonic() - began:.1f} s to {STEP} more")
            nodes.heal()
            pauses += 1
        member = etcd_of_three.leader()
        etcd_of_three.kill(member)
        loops.progress()
        etcd_of_three.restart(member)
        loops.progress(timeout_s=PROGRESS_S)
        for application in loops.applications:
            application.kill()
            application.start()
            began = time.monotonic()
            loops.progress(timeout_s=PROGRESS_S)
            name = application.name
            report(request, f"kill -9 of {name}: {time.monotonic() - began:.1f} s to {STEP} more records")
        kills += 1 + len(loops.applications)
        member_of_two = loops.applications[0]
        member_of_two.pause()  # the group goes on without it, and refuses what it had in hand
        time.sleep(1.5 * SESSION_TIMEOUT_MS / 1000)
        member_of_two.resume()
        pauses += 1
        began = time.monotonic()
        loops.progress(timeout_s=PROGRESS_S)
        report(request, f"an application paused: then {time.monotonic() - began:.1f} s to {STEP} more records")
        figures = loops.finish()
    finally:
        loops.abandon()
    report(request, f"{kills} kills, {pauses} pauses; {figures}")
