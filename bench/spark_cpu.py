"""Processor time of a Spark session on this machine: its JVM, and all its Python processes."""

from __future__ import annotations

from typing import Any

import psutil
from pyspark.sql import SparkSession

READS_MAX = 20


class SparkMeter:
    """A meter of one session.  Python is the driver, the processes that plan, and the workers of tasks, ended ones
    too."""

    def __init__(self, spark: SparkSession) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._driver = psutil.Process()
        self._jvm = psutil.Process(gateway.proc.pid)

    def read(self) -> tuple[float, float]:
        """Return the seconds of the JVM and of Python, since they began.

        A process that ends during the reading has moved into the account of its parent: then all are read again.
        """
        for _ in range(READS_MAX):
            try:
                return self._read()
            except psutil.NoSuchProcess:
                continue
        raise TimeoutError(f"processes ended during each of {READS_MAX} reads of their times")

    def _read(self) -> tuple[float, float]:
        jvm, driver = self._jvm.cpu_times(), self._driver.cpu_times()
        python = driver.user + driver.system + jvm.children_user + jvm.children_system
        for process in self._jvm.children(recursive=True):
            times = process.cpu_times()
            python += times.user + times.system + times.children_user + times.children_system
        return jvm.user + jvm.system, python
