"""The counters of a deployment's processes while something is measured: bytes read at each level, and shares of them.

| level           | counted by                                                                           |
|-----------------|--------------------------------------------------------------------------------------|
| tails, storage  | BMQ's ``/metrics``: bytes of fetches from the tail cache, and of others              |
| blocks          | BMQ's ``/metrics``: bytes of blocks found in its cache, and bytes read from storage  |
| disk            | the kernel: bytes that all server processes, datanodes too, caused to be read        |

Datanodes count what they send as well, but show it in JMX up to ten seconds late: as long as a measurement takes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.deployments import Deployment
from bench.metrics import read_metrics

TAIL, STORED, HIT, READ, DISK = "tail", "stored", "hit", "read", "disk"
OF_BMQ = {
    "bmq_fetch_tail_bytes_total": TAIL,
    "bmq_fetch_storage_bytes_total": STORED,
    "bmq_block_cache_hit_bytes_total": HIT,
    "bmq_storage_read_bytes_total": READ,
}


def take(deployment: Deployment) -> dict[str, float]:
    """Return the bytes that all processes have read so far, by level; levels that a deployment lacks are left out.

    Raises OSError if a process does not respond.
    """
    found = {DISK: sum(float(psutil.Process(process.pid).io_counters().read_bytes) for process in deployment.processes)}
    for url in deployment.metrics_urls:
        for name, value in of_bmq(read_metrics(url)).items():
            found[name] = found.get(name, 0.0) + value
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
    """Return the bytes read from storage and from disk for each byte delivered, and the caches' hit rates by bytes."""
    found = {f"{name}_bytes_byte": read[name] / delivered for name in (READ, DISK) if name in read}
    for rate, hits, misses in (("tail_share", TAIL, STORED), ("block_share", HIT, READ)):
        asked = read.get(hits, 0.0) + read.get(misses, 0.0)
        if asked:
            found[rate] = read[hits] / asked
    return found
