"""The queue of upkeep: the order of jobs, and which jobs it forgets."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker.cleanup.upkeep_queue import Job, UpkeepQueue, UpkeepState
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.model import PartitionKey
from bmq.storage.layout import PartitionPath

RETRY_MS = 60_000


class Queue(UpkeepQueue[UpkeepState]):
    """A queue whose clock stands at ``now``, with open partitions."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(lambda: self.now, retry_ms=RETRY_MS)
        self.now = 0
        self.opened = [opened(number) for number in range(partitions)]
        self.keep({state.driver.machine.key: state for state in self.opened})

    def all_due(self) -> list[tuple[UpkeepState, Job]]:
        found: list[tuple[UpkeepState, Job]] = []
        while (due := self.take()) is not None:
            found.append(due)
        return found


def opened(number: int) -> UpkeepState:
    key = PartitionKey(uuid.UUID(int=1), number)
    machine = SimpleNamespace(key=key, config=LogConfig(), log_start=0, state=PartitionState.WRITE)
    path = PartitionPath("t", str(key.topic_id), number)
    return UpkeepState(cast(PartitionDriver, SimpleNamespace(machine=machine, path=path)))


def test_jobs_are_done_in_the_order_of_their_times_and_not_before() -> None:
    queue = Queue()
    (state,) = queue.opened
    queue.schedule(state, Job.SWEEP, 20)
    queue.schedule(state, Job.MERGE, 10)
    queue.schedule(state, Job.CLEAN, 10)
    assert queue.all_due() == []
    queue.now = 10
    assert queue.all_due() == [(state, Job.MERGE), (state, Job.CLEAN)]
    queue.now = 30
    assert queue.all_due() == [(state, Job.SWEEP)]


def test_a_job_is_in_the_queue_once_at_its_earliest_time() -> None:
    queue = Queue()
    (state,) = queue.opened
    for due_ms in (20, 10, 30):
        queue.schedule(state, Job.MERGE, due_ms)
    queue.now = 10
    assert queue.all_due() == [(state, Job.MERGE)]
    queue.now = 100
    assert queue.all_due() == []


def test_jobs_of_a_partition_that_is_closed_or_owned_again_are_not_done() -> None:
    queue = Queue(3)
    for state in queue.opened:
        queue.schedule(state, Job.MERGE, 0)
    cast(Any, queue.opened[0].driver.machine).state = PartitionState.OFFLINE
    queue.keep(queue.states | {queue.opened[1].driver.machine.key: opened(1)})
    assert queue.all_due() == [(queue.opened[2], Job.MERGE)]


def test_forgotten_entries_do_not_pile_up() -> None:
    """Each job that gets an earlier time leaves an entry."""
    queue = Queue()
    (state,) = queue.opened
    for due_ms in range(10_000, 0, -1):
        queue.schedule(state, Job.MERGE, due_ms)
        queue.keep(queue.states)
        assert len(queue._heap) <= 80
    queue.now = 1
    assert queue.all_due() == [(state, Job.MERGE)]


def test_a_failure_is_counted_and_logged_and_its_job_done_again(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue()
    (state,) = queue.opened
    queue.retry(state, Job.MERGE, OSError("no"))
    queue.report("an index is damaged, and not used", "/t/0.idx", OSError("no"))
    assert queue.failures == 2
    assert [line.getMessage() for line in caplog.records] == [
        "cannot merge small segments of a partition, trying again later",
        "an index is damaged, and not used",
    ]
    queue.now = RETRY_MS - 1
    assert queue.all_due() == []
    queue.now = RETRY_MS
    assert queue.all_due() == [(state, Job.MERGE)]
