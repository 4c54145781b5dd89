"""Workload of a cluster that is broken: two idempotent producers, and two groups of two members each.

A fault must leave no trace in what they see, but time: ``workload`` ends with every acknowledged record in the log once
and in order, and both groups at its end, each member having gone on from where the group was.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Protocol

from tests.integration.load import REQUEST_TIMEOUT_MS, Group, Writer, check_log, create_topic, delete_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import PROXY

PARTITIONS = 6
STEADY = 300
BURST_S = 0.05  # one megabyte a second of each producer: two cores carry fifteen processes besides


class Cluster(Protocol):
    """Processes that a workload uses: a `BmqCluster`, or one process."""

    @property
    def bootstrap(self) -> str: ...

    def names(self, role: str) -> list[str]: ...

    def __getitem__(self, name: str) -> BmqServer: ...


class Workload:
    """Producers and groups on a topic of their own; see ``workload``."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: int = PARTITIONS,
        *,
        burst_s: float = BURST_S,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.topic = f"load-{uuid.uuid4().hex[:8]}"
        self.bootstrap = cluster.bootstrap
        create_topic(self.bootstrap, self.topic, partitions)
        self.writers = [
            Writer(
                self.bootstrap,
                self.topic,
                partitions,
                number=number,
                burst_s=burst_s,
                request_timeout_ms=request_timeout_ms,
            )
            for number in range(2)
        ]
        self._proxies = proxies = [cluster[name].bootstrap for name in cluster.names(PROXY)]
        self.groups = [
            Group(
                f"{self.topic}-{number}",
                self.topic,
                partitions,
                _two_orders(proxies),
                request_timeout_ms=request_timeout_ms,
            )
            for number in range(2)
        ]

    def start(self) -> None:
        for writer in self.writers:
            writer.start()
        for group in self.groups:
            group.start()
        self.progress()
        self.take_pauses()

    def progress(self, records: int = STEADY) -> None:
        """Wait until each writer has so many more acknowledged, and each group has read and committed as many."""
        for writer in self.writers:
            writer.wait_acked(records)
        for group in self.groups:
            group.wait_more(records)

    def rebalance(self) -> None:
        """Add a member to each group, so that every partition is continued from its committed offset."""
        for group, proxy in zip(self.groups, reversed(self._proxies), strict=False):
            group.join(proxy)

    def take_pauses(self) -> list[float]:
        """Return each partition's longest time, in seconds, without an acknowledgement since the last call."""
        return [max(both) for both in zip(*(writer.take_pauses() for writer in self.writers), strict=True)]

    def finish(self) -> None:
        for writer in self.writers:
            writer.finish()
        ends = check_log(self.bootstrap, *self.writers)
        for group in self.groups:
            group.finish(ends)

    def abandon(self) -> None:
        for writer in self.writers:
            writer.abandon()
        for group in self.groups:
            group.abandon()

    def summary(self) -> str:
        """Return what the load did so far, for a report."""
        records = sum(writer.sent for writer in self.writers)
        assigned = "+".join(str(group.assignments) for group in self.groups)
        refused = sum(group.commits_refused for group in self.groups)
        lost = sum(group.losses for group in self.groups)
        return f"{records} records, assignments {assigned}, assignments lost {lost}, commits refused {refused}"


@contextlib.contextmanager
def workload(
    cluster: Cluster,
    partitions: int = PARTITIONS,
    *,
    burst_s: float = BURST_S,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
) -> Iterator[Workload]:
    """Yield a load that makes progress, and check it at the end.  Each producer sends 50 KB every ``burst_s``."""
    cluster_load = Workload(cluster, partitions, burst_s=burst_s, request_timeout_ms=request_timeout_ms)
    try:
        cluster_load.start()
        yield cluster_load
        cluster_load.finish()
        delete_topic(cluster_load.bootstrap, cluster_load.topic)  # for the disk's sake
    finally:
        cluster_load.abandon()


def describe_pauses(pauses: Sequence[float]) -> str:
    return (
        f"without an acknowledgement min/median/max of the partitions {min(pauses):.2f}/{median(pauses):.2f}"
        f"/{max(pauses):.2f} s"
    )


def _two_orders(proxies: Sequence[str]) -> list[str]:
    """Return the proxies in two orders: the two members of a group begin with different ones, and have the others."""
    return [",".join(proxies), ",".join(reversed(proxies))]
