"""Two checkouts of BMQ beside each other: is the later one slower?

    python -m bench.pairs BEFORE [AFTER] [--pairs 10] [--sites local,cluster] [--json FILE]

BEFORE and AFTER are folders of checkouts with an environment in ``.venv``; AFTER is this one by default.  Both builds
run all the time, on the same storage, and are measured in turn, first the one and then the other.  What counts is the
ratio of the two in one pair: the machine's other load changes less between two measurements than within a run.
The same checkout given twice shows which ratio is noise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import client_load
from bench.comparison import compare_all
from bench.results import latency_metrics
from bench.roots import JAVA_OPTIONS
from bench.servers import BMQ_ENVIRONMENT
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster

GB = 1000**3
MB = 1000**2
RECORD_BYTES = 1000
PARTITIONS = 6
PROCESSES = 3
"""Processes of a build in a cluster, each with all roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The load of one measurement."""

    megabytes: int
    paced_records_s: int = 1000
    paced_s: float = 5.0


SITES = {"local": Amounts(megabytes=1000), "cluster": Amounts(megabytes=300)}


@dataclass(slots=True)
class Build:
    """The running processes of one checkout."""

    name: str
    servers: list[BmqServer]
    replicas: int

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of every process."""
        return ",".join(server.bootstrap for server in self.servers)

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all processes together."""
        return sum(server.cpu_seconds for server in self.servers)

    def create_topic(self) -> str:
        """Create a topic and return its name."""
        name = f"pairs-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(name, PARTITIONS, self.replicas)], operation_timeout=60)[name].result(90)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.delete_topics([name], operation_timeout=60)[name].result(90)


# ------------------------------------------------------------------------------------------------------------- the load


def measure(build: Build, amounts: Amounts) -> dict[str, float]:
    """Produce, consume what was produced, and produce slowly; return rates, latencies and processor seconds."""
    topic = build.create_topic()
    try:
        count = amounts.megabytes * MB // RECORD_BYTES
        gigabytes = count * RECORD_BYTES / GB
        metrics: dict[str, float] = {}
        produce = partial(client_load.produce, record_bytes=RECORD_BYTES)
        steps: dict[str, Callable[..., object]] = {"produce": produce, "consume": client_load.consume}
        for name, run in steps.items():
            before, begun = build.cpu_s, time.monotonic()
            run(build.bootstrap, topic, count=count, partitions=PARTITIONS)
            seconds = time.monotonic() - begun
            metrics[f"{name}_mb_s"] = gigabytes * GB / MB / seconds
            metrics[f"{name}_cpu_s_gb"] = (build.cpu_s - before) / gigabytes
        before = build.cpu_s
        latencies = client_load.paced(
            build.bootstrap, topic, records_s=amounts.paced_records_s, seconds=amounts.paced_s,
            record_bytes=RECORD_BYTES, partitions=PARTITIONS,
        )  # fmt: skip
        metrics["paced_cpu_us_record"] = (build.cpu_s - before) / len(latencies) * 1e6
        found = latency_metrics(latencies, "us")
        metrics |= {f"paced_{name}": found[name] for name in ("p50_us", "p99_us")}
        return metrics
    finally:
        build.delete_topic(topic)


# ---------------------------------------------------------------------------------------------------------- the builds


@contextlib.contextmanager
def start(site: str, checkouts: Mapping[str, Path], parent: Path | None) -> Iterator[list[Build]]:
    """Start both builds on storage of their own, and stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-pairs-{site}-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        hdfs = etcd = None
        if site == "cluster":
            hdfs = stack.enter_context(HdfsCluster(datanodes=3, java_options=JAVA_OPTIONS, folder=folder / "hdfs"))
        builds = []
        for name, checkout in checkouts.items():
            if hdfs is not None:
                etcd = stack.enter_context(EtcdCluster(folder=folder / f"etcd-{name}"))
            servers = []
            for number in range(PROCESSES if hdfs is not None else 1):
                home = folder / f"{name}-{number}"
                home.mkdir()
                server = BmqServer(
                    f"{hdfs.root}/{name}" if hdfs is not None else (home / "root").as_uri(),
                    etcd.url if etcd is not None else None,
                    environment=BMQ_ENVIRONMENT,
                    arguments=("--node-id", str(number)),
                    folder=home,
                    program=_program(checkout),
                )
                servers.append(stack.enter_context(server))
            builds.append(Build(name, servers, 3 if hdfs is not None else 1))
        yield builds


# --------------------------------------------------------------------------------------------------------------- a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print each metric's ratio with its spread, and return the exit status."""
    options = _parse(arguments)
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    pairs: dict[str, list[dict[str, dict[str, float]]]] = {}
    for site in options.sites.split(","):
        pairs[site] = []
        with start(site, checkouts, options.folder) as builds:
            for number in range(options.pairs + 1):
                ordered = builds if number % 2 else builds[::-1]
                pair = {build.name: measure(build, SITES[site]) for build in ordered}
                both = compare_all([(pair["before"], pair["after"])])
                shown = "  ".join(f"{found.metric} {found.ratio:.3f}" for found in both)
                print(f"{site} pair {number} (load {os.getloadavg()[0]:.1f}):  {shown}", flush=True)
                if number:  # the first warms both up
                    pairs[site].append(pair)
        _print(site, pairs[site])
    if options.json is not None:
        options.json.write_text(json.dumps(pairs, indent=1) + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pairs", description="Compare two checkouts of BMQ.")
    parser.add_argument("before", type=Path, help="folder of the earlier checkout, with its environment in .venv")
    parser.add_argument("after", type=Path, nargs="?", default=Path(), help="folder of the later one (this one)")
    parser.add_argument("--pairs", type=int, default=10, help="measurements of each that count, two or more")
    parser.add_argument("--sites", default=",".join(SITES), help="comma-separated")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--json", type=Path, default=None, help="file for every pair's figures")
    options = parser.parse_args(arguments)
    if options.pairs < 2:
        parser.error("--pairs is less than 2: one ratio has no spread")
    if unknown := set(options.sites.split(",")) - set(SITES):
        parser.error(f"unknown site {', '.join(sorted(unknown))}; there are {', '.join(SITES)}")
    for checkout in (options.before, options.after):
        if not _program(checkout).exists():
            parser.error(f"{checkout} has no {_program(Path())}: run make setup there")
    return options


def _program(checkout: Path) -> Path:
    return checkout / ".venv" / "bin" / "bmq"


def _print(site: str, pairs: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    print(f"\n{site}: {len(pairs)} pairs")
    print(f"{'':22}{'before':>10}{'after':>10}{'ratio':>8}{'quartiles':>16}{'itself':>16}")
    for row in compare_all([(pair["before"], pair["after"]) for pair in pairs]):
        print(
            f"{row.metric:22}{row.before:10.3f}{row.after:10.3f}{row.ratio:8.3f}{row.low:8.3f}{row.high:8.3f}"
            f"{row.own_low:8.3f}{row.own_high:8.3f}  {row.verdict}"
        )
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
