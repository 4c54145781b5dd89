"""Consume-transform-produce loops of four libraries over one source, each an application in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tests.integration.load import create_topic
from tests.integration.source import Source
from tests.integration.transformer import Transformer, Work, check_sink, committed, read
from tests.services.bmq_cluster import BmqCluster
from tests.services.processes import NotReady, wait_for

PARTITIONS = 4
LIMIT_S = 180.0
STEP = 200
"""Records that each loop commits between two faults."""
MEMBERS = {"confluent": ("one", "two"), "franz": ("one", "two"), "java": ("one", "two"), "aiokafka": ("only",)}
"""Applications of each library's loop.  aiokafka's loop is one application without a group's generation."""


class Loops:
    """Loops over one source, one of each library: the library's applications are members of one group."""

    def __init__(self, cluster: BmqCluster, libraries: Sequence[str] = tuple(MEMBERS)) -> None:
        self.bootstrap = cluster.bootstrap
        self.source = Source(self.bootstrap, "source", PARTITIONS)
        works = {library: [self._work(library, member) for member in MEMBERS[library]] for library in libraries}
        self.loops = [members[0] for members in works.values()]
        for topic in ("source", *(loop.sink for loop in self.loops)):
            create_topic(self.bootstrap, topic, PARTITIONS)
        applications = [[Transformer(work, cluster.folder) for work in members] for members in works.values()]
        self.applications = [application for members in applications for application in members]
        self.first_of_two = [members[0] for members in applications if len(members) > 1]
        """The first application of each loop with several."""

    def _work(self, library: str, member: str) -> Work:
        name = f"by-{library}"
        return Work(library, self.bootstrap, "source", f"sink-{library}", name, f"{name}-{member}", PARTITIONS)

    def start(self) -> None:
        self.source.start()
        for application in self.applications:
            application.start()
        self.progress()

    def done(self, *, require_stable: bool = False) -> list[int]:
        """Return how many records of the source each loop has committed, beside its open transactions.

        With ``require_stable`` a partition with an open transaction counts as 0.  Busy loops nearly always have an open
        transaction: moments at which the offsets of all loops are stable are rare.
        """
        return [sum(self._committed(loop, require_stable)) for loop in self.loops]

    def _committed(self, loop: Work, require_stable: bool) -> list[int]:
        return committed(self.bootstrap, loop.group, "source", PARTITIONS, require_stable=require_stable)

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
        wait_for(lambda: self.done(require_stable=True) == goal, f"{goal} committed", timeout_s=LIMIT_S, interval_s=0.5)
        for application in self.applications:
            application.kill()
        hidden = {loop.sink: check_sink(loop, values) for loop in self.loops}
        loops = f"{self.source.sent} records transformed by each of {len(self.loops)} loops"
        return f"{loops}; records of aborted transactions: {hidden}"

    def abandon(self) -> None:
        self.source.abandon()
        for application in self.applications:
            application.kill()
