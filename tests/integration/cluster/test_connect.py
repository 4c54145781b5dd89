"""Kafka Connect with `exactly.once.source.support`, while its workers and processes of BMQ die.

Two workers run the tasks of a source connector, whose offsets Connect writes in the records' transactions, and of a
sink connector.  A worker that dies leaves transactions open; the tasks' next worker fences its producers and goes on
from the stored offsets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.integration import cleaning
from tests.integration.cluster.conftest import SETTINGS
from tests.integration.history import report
from tests.integration.load import create_topic
from tests.integration.transformer import read_pairs
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.connect import TOPICS, Worker, internal_topic
from tests.services.processes import wait_for

CLUSTER = "connect"
PARTITIONS = 3
TASKS = 2
STEP = 200
"""Records of each task that are committed between two faults: one second of its pace."""
LIMIT_S = 180.0
CALL_S = 30.0
WORKER = {
    "exactly.once.source.support": "enabled",
    "consumer.isolation.level": "read_committed",  # of sink tasks
    "consumer.auto.offset.reset": "earliest",
    "offset.storage.partitions": "4",
    "status.storage.partitions": "2",
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",  # a dead worker's tasks go to the other one as soon as it is missed
    "session.timeout.ms": "8000",
    "heartbeat.interval.ms": "1000",
}
SOURCE = {
    "connector.class": "NumbersSource",
    "tasks.max": str(TASKS),
    "topic": "numbers",
    "count": str(1 << 30),
    "exactly.once.support": "required",
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "500",
    "producer.override.transaction.timeout.ms": "10000",
}
"""Configuration of the source: transactions of half a second, so that a killed worker leaves one open."""


class Connecting:
    """Two workers with a source and a sink connector."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.lines = folder / "lines"
        create_topic(bootstrap, "numbers", PARTITIONS)
        self.workers = [Worker(bootstrap, CLUSTER, f"worker-{number}", folder, WORKER) for number in range(2)]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()
        self._wait_ready(*self.workers)
        sink = {"connector.class": "LinesSink", "tasks.max": "1", "topics": "numbers", "file": str(self.lines)}
        self._put("numbers-source", SOURCE)
        self._put("numbers-sink", sink)
        self.progress()

    def _put(self, name: str, config: dict[str, str]) -> None:
        wait_for(lambda: self.workers[0].put_connector(name, config), f"connector {name}", timeout_s=LIMIT_S)

    def _wait_ready(self, *workers: Worker) -> None:
        for worker in workers:
            wait_for(worker.is_ready, f"{worker!r}; log: {worker.log}", timeout_s=LIMIT_S, interval_s=0.5)

    def progress(self) -> None:
        """Wait until at least STEP more records of each task are committed."""
        goal = self._fewest() + STEP
        logs = [str(worker.log) for worker in self.workers]

        def is_done() -> bool:
            self._require_no_failure()
            return self._fewest() >= goal

        wait_for(is_done, f"{goal} committed records of each task; logs: {logs}", timeout_s=LIMIT_S, interval_s=0.5)

    def _require_no_failure(self) -> None:
        for worker in self.workers:
            worker.require_running()
            for name in ("numbers-source", "numbers-sink"):
                worker.running_tasks(name)

    def numbers(self) -> dict[str, list[int]]:
        """Return the numbers of each task as committed readers see them; a task must be in one partition."""
        found: dict[str, list[int]] = {str(task): [] for task in range(TASKS)}
        places: dict[str, int] = {}
        for place, pairs in enumerate(read_pairs(self.bootstrap, "numbers", PARTITIONS, "read_committed")):
            for key, value in pairs:
                assert places.setdefault(key.decode(), place) == place
                found[key.decode()].append(int(value))
        return found

    def _fewest(self) -> int:
        return min(map(len, self.numbers().values()))

    def kill_a_worker(self) -> None:
        """Send SIGKILL to the worker of task 0 of the source, once that task runs, and start it again."""
        owners: dict[int, str] = {}

        def is_running() -> bool:
            owners.update(self.workers[0].running_tasks("numbers-source"))
            return 0 in owners

        wait_for(is_running, "task 0 of the source", timeout_s=LIMIT_S)
        (worker,) = [worker for worker in self.workers if worker.address == owners[0]]
        worker.kill()
        worker.start()
        self._wait_ready(worker)

    def finish(self) -> dict[str, int]:
        """Lower the source's count, wait for its end, and check topic, stored offsets and the sink's file.

        Return the count of each task.  A task that has passed the new count ends where it is.
        """
        count = self._fewest() + STEP
        self._put("numbers-source", SOURCE | {"count": str(count)})
        seen: dict[str, int] = {}

        def has_ended() -> bool:
            self._require_no_failure()
            before, now = dict(seen), {task: len(values) for task, values in self.numbers().items()}
            seen.update(now)
            return min(now.values()) >= count and now == before == self._stored_offsets()

        wait_for(has_ended, f"{count} of each task, and an end", timeout_s=LIMIT_S, interval_s=2.0)
        numbers = self.numbers()
        for task, values in numbers.items():
            assert values == list(range(len(values))), f"task {task}: {_first_gap(values)}"
        counts = {task: len(values) for task, values in numbers.items()}
        assert self._stored_offsets() == counts
        model = {(task, str(number)) for task, values in numbers.items() for number in values}
        wait_for(lambda: self._lines() >= model, f"all numbers in {self.lines}", timeout_s=LIMIT_S, interval_s=1.0)
        assert self._lines() == model
        return counts

    def _lines(self) -> set[tuple[str, ...]]:
        """Return keys and values of the sink's whole lines."""
        text = self.lines.read_text() if self.lines.exists() else ""
        return {tuple(line.split()) for line in text.splitlines(keepends=True) if line.endswith("\n")}

    def _stored_offsets(self) -> dict[str, int]:
        """Return the source's offset of each task, as committed readers of Connect's topic find it."""
        topic = internal_topic(CLUSTER, "offset")
        found = {}
        for key, value in chain(*read_pairs(self.bootstrap, topic, 4, "read_committed")):
            connector, place = json.loads(key)
            if connector == "numbers-source":
                found[place["task"]] = json.loads(value)["next"]
        return found

    def cleanup_policies(self) -> dict[str, str]:
        """Return `cleanup.policy` of each internal topic, by kind."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        resources = {kind: ConfigResource(ResourceType.TOPIC, internal_topic(CLUSTER, kind)) for kind in TOPICS}
        futures = admin.describe_configs(list(resources.values()))
        found = {kind: futures[resource].result(CALL_S) for kind, resource in resources.items()}
        return {kind: str(configs["cleanup.policy"].value) for kind, configs in found.items()}

    def abandon(self) -> None:
        for worker in self.workers:
            worker.kill()


def _first_gap(values: Sequence[int]) -> str:
    """Return the values around the first that is not the number of its place."""
    at = next(at for at, value in enumerate(values) if at != value)
    return f"{len(values)} values, at {at}: {values[max(0, at - 3) : at + 3]}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BmqServer]:
    """Yield one process with all roles."""
    with BmqServer((tmp_path / "root").as_uri(), environment=SETTINGS, folder=tmp_path) as server:
        yield server


def test_a_source_writes_each_record_once_while_workers_die(
    server: BmqServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A worker is killed, then `bmq serve`, then a worker again."""
    connecting = Connecting(server.bootstrap, tmp_path)
    try:
        connecting.start()
        assert connecting.cleanup_policies() == dict.fromkeys(TOPICS, "compact")
        for victim in ("worker", "bmq", "worker"):
            began = time.monotonic()
            if victim == "bmq":
                server.restart()
            else:
                connecting.kill_a_worker()
            connecting.progress()
            report(request, f"kill -9 of a {victim}: {time.monotonic() - began:.1f} s to {STEP} more of each task")
        report(request, f"numbers once by task: {connecting.finish()}")
    finally:
        connecting.abandon()


@pytest.mark.etcd
def test_a_source_writes_each_record_once_while_processes_of_bmq_die(
    nodes: BmqCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each process of the cluster is killed and stays away until the connectors have gone on; a worker dies last."""
    connecting = Connecting(nodes.bootstrap, tmp_path)
    try:
        connecting.start()
        for name in nodes.names(NODE):
            began = time.monotonic()
            nodes.kill(name)
            connecting.progress()
            report(request, f"kill -9 of {name}: {time.monotonic() - began:.1f} s to {STEP} more of each task")
            nodes.start_again(name)
        connecting.kill_a_worker()
        report(request, f"numbers once by task: {connecting.finish()}")
    finally:
        connecting.abandon()


def test_offsets_and_configs_in_topics_that_are_cleaned_all_the_time(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A worker is killed, then `bmq serve`, then a worker again: what they read back is in cleaned segments."""
    settings = {**SETTINGS, **cleaning.SERVER}
    with BmqServer((tmp_path / "root").as_uri(), environment=settings, folder=tmp_path) as server:
        connecting = Connecting(server.bootstrap, tmp_path)
        try:
            connecting.start()
            cleaning.clean_often(server.bootstrap, *(internal_topic(CLUSTER, kind) for kind in TOPICS))
            for victim in ("worker", "bmq", "worker"):
                cleaning.wait_for_rounds(server.http, TASKS, LIMIT_S)
                if victim == "bmq":
                    server.restart()
                    server.wait_ready()
                else:
                    connecting.kill_a_worker()
                connecting.progress()
            cleaning.wait_for_rounds(server.http, TASKS, LIMIT_S)
            report(request, f"numbers once by task: {connecting.finish()}")
        finally:
            connecting.abandon()
