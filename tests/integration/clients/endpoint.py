"""Endpoint of the clients, chosen by BMQ_CLIENT_TARGET, so that the same tests show what Apache Kafka does.

`bmq-local` (default) and `bmq-hdfs` start a `bmq serve`, `kafka` starts a real Apache Kafka.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.services.bmq import BmqServer
from tests.services.kafka import KafkaCluster

TARGETS = ("bmq-local", "bmq-hdfs", "kafka")
# A group need not wait for more members, and few partitions of offsets are quick to load.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server, for as long as the test session."""

    target: str
    bootstrap: str


def target() -> str:
    """Return the target of this run.  Raises ValueError if BMQ_CLIENT_TARGET is not one of TARGETS."""
    chosen = os.environ.get("BMQ_CLIENT_TARGET", TARGETS[0])
    if chosen not in TARGETS:
        raise ValueError(f"BMQ_CLIENT_TARGET={chosen}: choose from {', '.join(TARGETS)}")
    return chosen


@contextmanager
def serve(chosen: str, hdfs_root: Callable[[], str], has_failed: Callable[[], bool]) -> Iterator[Endpoint]:
    """Start this target; afterwards it ends in order, and its logs stay if a test has failed."""
    if chosen == "kafka":
        cluster = KafkaCluster(properties=SETTINGS)
        cluster.start()
        try:
            yield Endpoint(chosen, cluster.bootstrap)
        finally:
            cluster.stop(keep_logs=has_failed())
        return
    folder = Path(tempfile.mkdtemp(prefix="bmq-clients-"))
    root = f"{hdfs_root()}/clients-{uuid.uuid4().hex[:12]}" if chosen == "bmq-hdfs" else (folder / "root").as_uri()
    environment = {"BMQ_" + name.replace(".", "_").upper(): value for name, value in SETTINGS.items()}
    server = BmqServer(root, environment=environment, folder=folder)
    try:
        with server:
            yield Endpoint(chosen, server.bootstrap)
    except BaseException:
        server.remove(keep_log=True)
        raise
    server.remove(keep_log=has_failed())
