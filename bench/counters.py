"""The counters of a deployment's processes while something is measured: bytes read at each level, and shares of them.

| level             | counted by                                                          |
|-------------------|---------------------------------------------------------------------|
| tails, storage    | BMQ's ``/metrics``: bytes of fetches from the tail cache, and others |
| blocks            | BMQ's ``/metrics``: bytes of blocks found in its cache, or read      |
| HDFS              | the datanodes' JMX: bytes sent to readers, whoever they are          |
| disk              | the kernel: bytes that all server processes caused to be read        |
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping

import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.deployments import Deployment
from tests.services.hdfs_nodes import jmx

TAIL, STORED, HIT, MISSED, HDFS, DISK = "tail", "stored", "hit", "missed", "hdfs", "disk"
OF_BMQ = {
    "bmq_fetch_tail_bytes_total": TAIL,
    "bmq_fetch_storage_bytes_total": STORED,
    "bmq_block_cache_hit_bytes_total": HIT,
    "bmq_storage_read_bytes_total": MISSED,
}
TIMEOUT_S = 30.0
# Calls stay on this machine, whatever proxy the environment names.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def take(deployment: Deployment) -> dict[str, float]:
    """Return the bytes that all processes have read so far, by level; levels that a deployment lacks are left out.

    Raises OSError if a process does not respond.
    """
    found = {DISK: sum(float(psutil.Process(process.pid).io_counters().read_bytes) for process in deployment.processes)}
    for url in deployment.metrics_urls:
        with _HTTP.open(url, timeout=TIMEOUT_S) as response:
            for name, value in of_bmq(response.read().decode()).items():
                found[name] = found.get(name, 0.0) + value
    for datanode in deployment.datanodes:
        bean = jmx(datanode.host, datanode.http_port, "Hadoop:service=DataNode,name=DataNodeActivity-*")
        if bean is None:
            raise OSError(f"{datanode!r} does not tell its bytes")
        found[HDFS] = found.get(HDFS, 0.0) + float(bean["BytesRead"])
    return found


def of_bmq(text: str) -> dict[str, float]:
    """Return the counters of ``OF_BMQ`` in a response of ``/metrics``."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (name := OF_BMQ.get(sample.name)) is not None:
                found[name] = found.get(name, 0.0) + sample.value
    return found


@contextlib.contextmanager
def counted(deployment: Deployment) -> Iterator[dict[str, float]]:
    """Count from here to the end of the context; filled in at its end."""
    before = take(deployment)
    found: dict[str, float] = {}
    yield found
    found |= {name: value - before[name] for name, value in take(deployment).items()}


def shares(read: Mapping[str, float], delivered: float) -> dict[str, float]:
    """Return the bytes read from HDFS and from disk for each byte delivered, and the caches' hit rates by bytes."""
    found = {f"{name}_bytes_byte": read[name] / delivered for name in (HDFS, DISK) if name in read}
    for rate, hits, misses in (("tail_share", TAIL, STORED), ("block_share", HIT, MISSED)):
        asked = read.get(hits, 0.0) + read.get(misses, 0.0)
        if asked:
            found[rate] = read[hits] / asked
    return found
