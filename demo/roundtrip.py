"""The round trip: all flights in by a producer, out by a group of two, and a comparison of the two."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo import flights
from demo.ledger import Ledger, Sent
from demo.pauses import Pauses
from demo.progress import Progress
from demo.report import Half, Kill, print_verdict
from demo.stage import PARTITIONS, DemoFailed, say
from demo.work import Consuming, Producing, Worker, ends_and_commits, ends_of

STALL_S = 60.0
"""Seconds without a single record after which the demo gives up."""
TICK_S = 0.05

Blow = Callable[[Worker, Progress], Kill]
"""A function that kills something, and returns when work continues."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of both halves, and a text for each fault."""

    sent: Sent
    ledger: Ledger
    taken: Sequence[int]
    first: Half
    second: Half
    problems: list[str]


def _nothing() -> None: ...


class RoundTrip:
    """A round trip of the first ``records`` flights through ``topic``.  ``check`` raises if a server has failed."""

    def __init__(
        self, bootstrap: str, topic: str, archive: Path, records: int, *, check: Callable[[], None] = _nothing
    ) -> None:
        self.group = f"demo-{topic}"
        self.pauses = Pauses(PARTITIONS)
        self._bootstrap = bootstrap
        self._topic = topic
        self._archive = archive
        self._records = records
        self._check = check

    def run(self, *, while_producing: Sequence[Blow] = (), while_consuming: Sequence[Blow] = ()) -> Outcome:
        """Run both halves, with blows evenly over each.  Raises DemoFailed or KafkaException if one cannot be
        completed."""
        sent, topic, total = Sent(), self._topic, self._records
        rows = itertools.islice(flights.read_flights(self._archive), total)
        producing = Producing(self._bootstrap, topic, rows, sent, self.pauses)
        first = self._watch(producing, "producing", while_producing)
        ledger = Ledger(sent, PARTITIONS)
        ends = ends_of(self._bootstrap, topic, PARTITIONS)
        consuming = Consuming(self._bootstrap, topic, self.group, ledger, sum(ends))
        say("two members form a group: a new one waits 3 s for members, and once more when one comes")
        try:
            second = self._watch(consuming, "consuming", while_consuming)
        except DemoFailed:
            print_verdict(sent, ledger.problems(ends))
            raise
        ends, commits = ends_and_commits(self._bootstrap, topic, self.group, PARTITIONS)
        problems = problems_of(sent, ledger, consuming.taken, ends, commits)
        if len(sent) != total:
            problems.append(f"the data set has {len(sent):,} records, not {total:,}")
        return Outcome(sent, ledger, consuming.taken, first, second, problems)

    def _watch(self, worker: Worker, title: str, blows: Sequence[Blow]) -> Half:
        """Let the worker run to its end.  Raises DemoFailed if it stalls."""
        half, total = Half(), self._records
        due = [(total * (number + 1) // (len(blows) + 1), blow) for number, blow in enumerate(blows)]
        with Progress(title, total) as progress:
            started = moved = time.monotonic()
            done = 0
            worker.start()
            try:
                while worker.is_running:
                    time.sleep(TICK_S)
                    progress.at(worker.done)
                    if worker.done != done:
                        half.opening = half.opening or time.monotonic() - started
                        done, moved = worker.done, time.monotonic()
                    if time.monotonic() - moved > STALL_S:
                        raise DemoFailed(f"{title} made no progress at {done:,} of {total:,} records for {STALL_S:g} s")
                    self._check()
                    if due and done >= due[0][0]:
                        half.kills.append(due.pop(0)[1](worker, progress))
                        moved = time.monotonic()
            finally:
                worker.stop()
            worker.check()
            progress.at(worker.done)
            half.seconds = time.monotonic() - started - half.opening
        if due:
            raise DemoFailed(f"{title} was over before {len(blows)} kills were done")
        return half


def problems_of(
    sent: Sent, ledger: Ledger, taken: Sequence[int], ends: Sequence[int], commits: Sequence[int]
) -> list[str]:
    """Return the faults of the log, and those of the group."""
    problems = ledger.problems(ends)
    if commits != ends:
        problems.append(f"the group has committed {commits}, the partitions end at {ends}")
    if sum(ends) != len(sent):
        problems.append(f"the log holds {sum(ends):,} records, {len(sent):,} were sent")
    if not all(taken):
        problems.append(f"one member did all the work: {taken}")
    return problems
