"""Spark sessions of the benchmark: two local cores, or a standalone cluster of worker processes on this machine."""

from __future__ import annotations

import contextlib
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from pyspark.sql import SparkSession

from bench.spark_cpu import SparkMeter
from tests.services.processes import ServiceProcess, free_ports, wait_for
from tests.services.spark import kafka_source_jars, start_spark

LOCAL = "local[2]"
DRIVER_MEMORY = "2g"
WORKER_CORES = 1
WORKER_MEMORY_MB = 1536
EXECUTOR_MEMORY = "1g"
DAEMON_MEMORY = "256m"
HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
SPARK_HOME = Path(pyspark.__file__).parent
_SETTINGS = {
    "spark_driver_memory": DRIVER_MEMORY,
    "spark_sql_streaming_numRecentProgressUpdates": "100000",  # the commits of a whole query are read from them
}


@contextlib.contextmanager
def local_session() -> Iterator[tuple[SparkSession, SparkMeter]]:
    """Start a session in two threads of this process's JVM, with Spark's Kafka source, and stop it at the end."""
    spark = start_spark(spark_jars=_jars(), **_SETTINGS)
    try:
        yield spark, SparkMeter(spark)
    finally:
        spark.stop()


@contextlib.contextmanager
def cluster_session(cluster: Cluster) -> Iterator[tuple[SparkSession, SparkMeter]]:
    """Start a session whose tasks run in the cluster's executors, one a worker, and stop it at the end.

    Executors run the interpreter of this environment, in which the package is installed: the first way that
    docs/spark.md names.  Spark sends them the jars of its Kafka source.
    """
    spark = start_spark(
        spark_master=cluster.url,
        spark_jars=_jars(),
        spark_executor_memory=EXECUTOR_MEMORY,
        spark_executor_cores=str(WORKER_CORES),
        **_SETTINGS,
    )
    try:
        yield spark, SparkMeter(spark, [pid for worker in cluster.workers if (pid := worker.pid)])
    finally:
        spark.stop()


def _jars() -> str:
    return ",".join(map(str, kafka_source_jars()))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A standalone cluster: one master and its workers, each a process with a log."""

    url: str
    master: ServiceProcess
    workers: list[ServiceProcess]

    @property
    def processes(self) -> list[ServiceProcess]:
        """The master and the workers."""
        return [self.master, *self.workers]


@contextlib.contextmanager
def standalone_cluster(workers: int, parent: Path | None = None) -> Iterator[Cluster]:
    """Start a cluster of so many workers on free ports, its work in a folder of ``parent``, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="bmq-bench-cluster-", dir=parent) as name:
        folder = Path(name)
        port, web_port, *ports = free_ports(2 + 2 * workers)
        url = f"spark://{HOST}:{port}"
        master = _process(folder, "master", "master.Master", port, web_port)
        cluster = Cluster(
            url,
            master,
            [
                _process(
                    folder, f"worker-{number + 1}", "worker.Worker", ports[2 * number], ports[2 * number + 1],
                    "--cores", str(WORKER_CORES), "--memory", f"{WORKER_MEMORY_MB}m",
                    "--work-dir", str(folder / f"work-{number + 1}"), url,
                )
                for number in range(workers)
            ],
        )  # fmt: skip
        try:
            for process in cluster.processes:
                process.start()
            wait_for(lambda: _alive(cluster, web_port) == workers, f"{workers} workers", timeout_s=START_TIMEOUT_S)
            yield cluster
        finally:
            _stop(cluster)


def _process(folder: Path, name: str, class_name: str, port: int, web_port: int, *arguments: str) -> ServiceProcess:
    command = [
        str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_name}",
        "--host", HOST, "--port", str(port), "--webui-port", str(web_port), *arguments,
    ]  # fmt: skip
    environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": DAEMON_MEMORY}
    return ServiceProcess(name, command, log=folder / f"{name}.log", environment=environment)


def _alive(cluster: Cluster, web_port: int) -> int:
    """Return how many workers the master knows; 0 while it does not listen."""
    for process in cluster.processes:
        process.require_running()
    try:
        with urllib.request.urlopen(f"http://{HOST}:{web_port}/json/", timeout=10) as response:
            return int(json.load(response)["aliveworkers"])
    except OSError:
        return 0


def _stop(cluster: Cluster) -> None:
    """Stop workers before the master; an executor that its worker leaves behind is killed by its pid."""
    running = [process for process in reversed(cluster.processes) if process.is_running]
    below = [child for process in running for child in psutil.Process(process.pid).children(recursive=True)]
    for process in running:
        process.terminate(timeout_s=STOP_TIMEOUT_S)
    for child in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
