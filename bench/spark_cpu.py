"""Processor time of a measurement: of Spark's processes on this machine, and of the servers that it reads or writes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from pyspark.sql import SparkSession

from bench.deployments import ETCD, HDFS, OWN, Deployment

READS_MAX = 20
JAVA = "java"
SERVERS = {OWN: "own", HDFS: "storage", ETCD: "etcd"}
"""The first part of the metrics of each group of a deployment's processes."""


class SparkMeter:
    """A meter of one session: of its JVM and, on a cluster, of the processes below its workers.

    Python is the driver, the processes that plan, and the workers of tasks, ended ones too.
    """

    def __init__(self, spark: SparkSession, workers: Sequence[int] = ()) -> None:
        """``workers`` are the pids of a cluster's worker processes, whose executors come and go."""
        gateway: Any = spark.sparkContext._gateway
        self._driver = psutil.Process()
        self._roots = [psutil.Process(pid) for pid in (gateway.proc.pid, *workers)]

    def read(self) -> tuple[float, float]:
        """Return the seconds of Java and of Python, since they began.

        A process that ends during the reading has moved into the account of its parent: then all are read again.
        """
        for _ in range(READS_MAX):
            try:
                return self._read()
            except psutil.NoSuchProcess:
                continue
        raise TimeoutError(f"processes ended during each of {READS_MAX} reads of their times")

    def _read(self) -> tuple[float, float]:
        driver = self._driver.cpu_times()
        java, python = 0.0, driver.user + driver.system
        for process in (each for root in self._roots for each in (root, *root.children(recursive=True))):
            times = process.cpu_times()
            if process.name() == JAVA:
                java += times.user + times.system
            else:
                python += times.user + times.system
            python += times.children_user + times.children_system
        return java, python


@dataclass(slots=True)
class Spent:
    """The time of one measurement, and the processor seconds of each part: ``jvm``, ``python``, and of the servers
    ``own``, ``storage`` and ``etcd``."""

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)

    def all_cpu_s(self, left_out: Sequence[str] = ()) -> float:
        """Return the processor seconds of all parts but those."""
        return sum(seconds for part, seconds in self.cpu_s.items() if part not in left_out)


@contextlib.contextmanager
def spending(meter: SparkMeter | None, deployment: Deployment) -> Iterator[Spent]:
    """Measure what is done meanwhile, by Spark's session (None: there is none) and by the servers; filled in at the
    end."""
    spent = Spent()
    before, begun = _cpu_s(meter, deployment), time.perf_counter()
    yield spent
    spent.seconds = time.perf_counter() - begun
    spent.cpu_s = {part: seconds - before[part] for part, seconds in _cpu_s(meter, deployment).items()}


def _cpu_s(meter: SparkMeter | None, deployment: Deployment) -> dict[str, float]:
    found = {SERVERS[group]: seconds for group, seconds in deployment.cpu_s().items()}
    if meter is not None:
        found["jvm"], found["python"] = meter.read()
    return found


def costs(cpu_s: Mapping[str, float], amount: float, unit: str) -> dict[str, float]:
    """Return each part's processor time by ``amount``, and that of all as ``all_cpu_…``; names end in ``unit``."""
    found = {f"{part}_cpu_{unit}": seconds / amount for part, seconds in cpu_s.items()}
    return found | {f"all_cpu_{unit}": sum(cpu_s.values()) / amount}
