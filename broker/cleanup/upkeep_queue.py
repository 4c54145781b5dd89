"""The queue of a broker's upkeep: jobs of partitions by their times, and a count of failures.

A job of a partition is in the queue once, at its earliest time.  Times are on the monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from bmq.broker.cleanup.index_reads import IndexReads
from bmq.broker.cleanup.retention import RetentionState
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey, SegmentName

_log = logging.getLogger(__name__)


class Job(Enum):
    """The kinds of upkeep of one partition; the value completes the log line of a failure."""

    RETAIN = "move the log start"
    DELETE = "delete files below the log start"
    SWEEP = "remove orphaned files"
    MERGE = "merge small segments"
    SWAP = "complete the swap of a cleaned segment"
    CLEAN = "compact the log"
    HIDDEN = "delete segments that a cleaned segment replaced"


class UpkeepState(RetentionState):
    """The shared state of a partition's jobs under an owner, beside the state of its retention.

    ``due``: the times of its jobs, in milliseconds. ``merge_from``: the name at which the next pass of merging
    begins, None for the log's first name. ``unread_from``: the name at which a later pass begins to read unreadable
    indexes again, None without any. ``denied_folders``: the jobs' folders whose drafts may not be given back, as of
    the last look. ``drafts``: the reads of drafts of merges, None before the first. ``is_crowded``: the folder has
    too many temporary files, as of the last look. ``late_merges``: the drafts whose merges cannot be settled, as of
    the last look. ``locked_merges``: since when (monotonic) other calls hold the files of a merge, by drafts, as of
    the last look. ``settled_merges``: the settled drafts of former owners' merges, as of the last complete look.
    ``denied_pauses``: the pause and its beginning (wall time), by jobs' folders that may not be deleted, as of the
    last sweep.
    """

    __slots__ = (
        "denied_folders", "denied_pauses", "drafts", "due", "is_crowded", "late_merges", "locked_merges", "merge_from",
        "settled_merges", "unread_from",
    )  # fmt: skip

    def __init__(self, driver: PartitionDriver) -> None:
        super().__init__(driver)
        self.due: dict[Job, int] = {}
        self.merge_from: SegmentName | None = None
        self.unread_from: SegmentName | None = None
        self.denied_folders: frozenset[str] = frozenset()
        self.drafts: IndexReads | None = None
        self.is_crowded = False
        self.late_merges: frozenset[str] = frozenset()
        self.locked_merges: dict[str, int] = {}
        self.settled_merges: frozenset[str] = frozenset()
        self.denied_pauses: dict[str, tuple[int, int]] = {}

    def forget_files(self) -> None:
        """Forget names and sizes of closed files; merging begins at the log's first name again.

        From a hidden source on, a merge would put live records into a hidden file.
        """
        super().forget_files()
        self.merge_from = self.unread_from = None


S = TypeVar("S", bound=UpkeepState)


class UpkeepQueue(Generic[S]):
    """Jobs in the order of their times, and the partitions of these jobs.

    ``retry_ms``: the pause after a job that failed.
    """

    def __init__(self, now_ms: Callable[[], int], *, retry_ms: int) -> None:
        self._now_ms = now_ms
        self._retry_ms = retry_ms
        self._heap: list[tuple[int, int, S, Job]] = []
        self._serial = itertools.count()
        self.states: dict[PartitionKey, S] = {}
        """The partitions that are owned here, as of the janitor's last round."""
        self.failures = 0
        """Jobs, and parts of jobs, that failed."""

    def schedule(self, state: S, job: Job, due_ms: int) -> None:
        """Schedule ``job`` for ``due_ms`` on the monotonic clock, unless it is due before."""
        if state.due.get(job, due_ms + 1) > due_ms:
            state.due[job] = due_ms
            heapq.heappush(self._heap, (due_ms, next(self._serial), state, job))

    def take(self) -> tuple[S, Job] | None:
        """Remove and return the next job that is due now; None without any."""
        while self._heap and self._heap[0][0] <= self._now_ms():
            due_ms, _, state, job = heapq.heappop(self._heap)
            if state.due.get(job) != due_ms or not self.is_held(state):
                continue  # rescheduled, or the partition is not owned any more
            del state.due[job]
            return state, job
        return None

    def keep(self, states: dict[PartitionKey, S]) -> None:
        """Keep the jobs of these partitions; jobs of other partitions are not done any more."""
        self.states = states
        if len(self._heap) > 8 * len(states) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop entries of rescheduled jobs, and entries of partitions that this broker does not own any more."""
        self._heap = [
            (due_ms, next(self._serial), state, job)
            for state in self.states.values()
            for job, due_ms in state.due.items()
        ]
        heapq.heapify(self._heap)

    def is_held(self, state: S) -> bool:
        """Return whether the state is of the present ownership of its partition, which is open here."""
        machine = state.driver.machine
        return self.states.get(machine.key) is state and machine.state is PartitionState.WRITE

    def retry(self, state: S, job: Job, error: Exception, pause_ms: int | None = None) -> None:
        """Count and log the failure of a job, and schedule it again: after ``retry_ms`` if no pause is given."""
        self.failures += 1
        text = "cannot %s of a partition, trying again later"
        _log.warning(text, job.value, extra=fields(**state.driver.path.log_fields, error=repr(error)))
        self.schedule(state, job, self._now_ms() + (self._retry_ms if pause_ms is None else pause_ms))

    def report(self, text: str, path: str, error: Exception) -> None:
        """Count and log a failure at a file, after which its job goes on."""
        self.failures += 1
        _log.warning(text, extra=fields(path=path, error=repr(error)))
