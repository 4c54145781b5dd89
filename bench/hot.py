"""One partition of every four takes ten times the load: how evenly brokers and disks carry it, beside Kafka.

    python -m bench.hot [--quick] [--sites bmq,kafka]
    python -m bench.hot --render       write the page again from the results that are there

Writes docs/benchmarks-hot.md.  Topics of four partitions, the first of which gets ten times the load of each of the
others.  Load begins on partitions that were placed by numbers alone; the cluster balances itself for a while, and is
then measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer

from bench import hot_report, provenance
from bench.hot_sites import NAMES, Site, open_site
from bench.results import Results, Sample

PARTITIONS = 4
HOT = 10
VALUE = os.urandom(1000)
SEGMENT_BYTES = 16 << 20
"""Bytes of a segment: so few that a partition has many files within minutes, as it has within days by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and durations of a run."""

    topics: int = 9
    records_s: int = 6000
    settle_s: float = 420.0
    measure_s: float = 120.0


FULL = Plan()
QUICK = Plan(topics=3, settle_s=20.0, measure_s=20.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "hot.json"
    if options.render:
        hot_report.write(Results.load_from(path), options.out)
        return 0
    plan = QUICK if options.quick else FULL
    results = provenance.begin(
        "bench.hot", sys.argv[1:] if arguments is None else arguments, asdict(plan), options.folder
    )
    began = time.monotonic()
    for name in options.sites.split(","):
        with open_site(name, options.folder) as site:
            provenance.note_servers(results, site.processes, name)
            sample = measure(name, site, plan)
        shown = "  ".join(f"{metric}={value:.4g}" for metric, value in sample.metrics.items())
        print(f"{name}:  {shown}", flush=True)
        results.samples.append(sample)
    results.took_s = time.monotonic() - began
    results.save(path)
    hot_report.write(Results.load_from(path), options.out)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hot", description="One partition of four is hot.")
    parser.add_argument("--quick", action="store_true", help="three topics, shorter times")
    parser.add_argument("--sites", default=",".join(NAMES), help="comma-separated")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--render", action="store_true", help="only write again from benchmarks/hot.json")
    return parser.parse_args(arguments)


def measure(name: str, site: Site, plan: Plan) -> Sample:
    """Load one cluster, let it balance, and return its sample."""
    topics = [f"hot-{number}" for number in range(plan.topics)]
    for topic in topics:
        site.create_topic(topic, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
    with _load(site.bootstrap, topics, plan.records_s) as load:
        time.sleep(plan.settle_s)
        leaders = site.leaders(topics)
        moved_before = site.stored_bytes()
        cpu, sent, began = site.broker_cpu_s(), load.acked, time.monotonic()
        time.sleep(plan.measure_s)
        took_s = time.monotonic() - began
        used = _difference(site.broker_cpu_s(), cpu)
        acked = load.acked - sent
        stored = _difference(site.stored_bytes(), moved_before)
        changed = sum(leader != leaders[key] for key, leader in site.leaders(topics).items())
    carried = _carried(leaders, used)
    metrics = {
        "records_s": acked / took_s,
        "written_per_byte": sum(stored.values()) / (acked * len(VALUE)),
        "moved": float(changed),
        "machine_load": os.getloadavg()[0],
    }
    for what, values in (("load", carried), ("cpu", used), ("bytes", stored)):
        metrics[f"{what}_off"] = _furthest(list(values.values()))
    series = {"load": list(carried.values()), "cpu_s": list(used.values()), "bytes": list(stored.values())}
    return Sample(adapter=name, bench="hot", case="one in four", round=1, metrics=metrics, series=series)


def _carried(leaders: Mapping[tuple[str, int], str], brokers: Mapping[str, float]) -> dict[str, float]:
    """Return each broker's share of the load, by the partitions that it leads."""
    carried = dict.fromkeys(brokers, 0.0)
    for (_, partition), leader in leaders.items():
        carried[leader] += HOT if partition == 0 else 1
    return carried


def _furthest(values: Sequence[float]) -> float:
    """Return the largest distance of a value from the mean, as a share of the mean."""
    mean = sum(values) / len(values)
    return max(abs(value - mean) for value in values) / mean


def _difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in now.items()}


class _Load:
    """A steady rate of records from one idempotent producer, in a thread."""

    def __init__(self, bootstrap: str, topics: Sequence[str], records_s: int) -> None:
        self.acked = 0
        self.errors: list[str] = []
        self._bootstrap = bootstrap
        self._records_s = records_s
        weights = [(topic, n) for topic in topics for n in range(PARTITIONS) for _ in range(HOT if n == 0 else 1)]
        self._order = [weights[place * 7919 % len(weights)] for place in range(len(weights))]  # hot ones apart
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """Stop without waiting: the measurement has failed already.  The thread is a daemon, and ends with its
        flush."""
        self._ending.set()

    def finish(self) -> None:
        self._ending.set()
        self._thread.join(180)
        if self.errors or self._thread.is_alive():
            raise AssertionError(f"not every record was acknowledged: {self.errors[:3]}")

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )
        began, sent = time.monotonic(), 0
        while not self._ending.is_set():
            due = (time.monotonic() - began) * self._records_s
            while sent < due and len(producer) < 50_000:
                topic, partition = self._order[sent % len(self._order)]
                producer.produce(topic, VALUE, partition=partition, on_delivery=self._delivered)
                sent += 1
            producer.poll(0.01)
        if producer.flush(120):
            self.errors.append("some were never acknowledged")

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        self.acked += 1


@contextmanager
def _load(bootstrap: str, topics: Sequence[str], records_s: int) -> Iterator[_Load]:
    load = _Load(bootstrap, topics, records_s)
    load.start()
    try:
        yield load
    except BaseException:
        load.abandon()
        raise
    load.finish()


if __name__ == "__main__":
    sys.exit(main())
