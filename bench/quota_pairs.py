"""A client at its quota beside another: does the other's latency change?

    python -m bench.quota_pairs [--pairs 10] [--seconds 8] [--folder DIR]

One process, and two topics.  The measured client produces at a fixed rate.  The greedy one is a process of its own that
produces all that it can, and has a quota of ``LIMIT`` bytes a second.  Each pair measures the first without and with
the second, in alternating order, as the machine's other load changes less within a pair than within a run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import client_load
from bench.comparison import compare_all
from bench.results import Sample, latency_metrics
from bench.servers import BMQ_ENVIRONMENT
from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool

LIMIT = 1_000_000
RECORDS_S = 300
RECORD_BYTES = 1_000
MEASURED, GREEDY = "measured", "greedy"
NEIGHBOUR, ALONE, BESIDE = "neighbour", "alone", "beside a client at its quota"
"""The samples' bench and cases."""
ADAPTER = "bmq-local"
THROTTLED_S = 30.0
"""Time within which the greedy client must have been throttled."""
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def take_all(bootstrap: str) -> None:
    """Produce as fast as acknowledgements come, until the process is ended."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": GREEDY, "log_level": 0})
    while True:
        try:
            producer.produce(GREEDY, bytes(10_000))
            producer.poll(0)
        except BufferError:
            producer.poll(0.1)


def throttled(server: BmqServer) -> float:
    """Return how often producers were throttled."""
    with _HTTP.open(f"{server.http}/metrics", timeout=THROTTLED_S) as response:
        text = response.read().decode()
    found = re.search(r'^bmq_quota_throttled_total\{[^}]*"producer_byte_rate"[^}]*\} (\S+)', text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def measure(server: BmqServer, seconds: float, *, has_greedy: bool) -> dict[str, float]:
    """Return the latencies of the measured client.  Raises RuntimeError if the greedy one is not throttled."""
    greedy = multiprocessing.get_context("spawn").Process(target=take_all, args=(server.bootstrap,), daemon=True)
    if has_greedy:
        before, end = throttled(server), time.monotonic() + THROTTLED_S
        greedy.start()
        while throttled(server) < before + 2:
            if time.monotonic() > end:
                raise RuntimeError(f"the greedy client was not throttled within {THROTTLED_S:.0f} s")
            time.sleep(0.2)
    try:
        latencies = client_load.paced(
            server.bootstrap, MEASURED, records_s=RECORDS_S, seconds=seconds, record_bytes=RECORD_BYTES, partitions=1
        )
    finally:
        if has_greedy:
            greedy.kill()
            greedy.join()
    found = latency_metrics(latencies, "us")
    return {name: found[name] for name in ("p50_us", "p99_us")}


def measure_pairs(pairs: int, seconds: float, folder: Path | None) -> Iterator[Sample]:
    """Yield the two samples of each pair, numbered from 1; pair 0 warms up and is left out."""
    place = Path(tempfile.mkdtemp(prefix="bmq-quota-", dir=folder))
    try:
        with BmqServer((place / "root").as_uri(), folder=place, environment=BMQ_ENVIRONMENT) as server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
            for future in admin.create_topics([NewTopic(MEASURED, 1, 1), NewTopic(GREEDY, 6, 1)]).values():
                future.result(60)
            run_tool(
                "ConfigCommand", "--bootstrap-server", server.bootstrap, "--alter", "--entity-type", "clients",
                "--entity-name", GREEDY, "--add-config", f"producer_byte_rate={LIMIT}",
            )  # fmt: skip
            for number in range(pairs + 1):
                for case in (ALONE, BESIDE) if number % 2 else (BESIDE, ALONE):
                    metrics = measure(server, seconds, has_greedy=case == BESIDE)
                    if number:
                        yield Sample(adapter=ADAPTER, bench=NEIGHBOUR, case=case, round=number, metrics=metrics)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print each metric's ratio with its spread; return 1 if the greedy client makes one worse."""
    parser = argparse.ArgumentParser(prog="python -m bench.quota_pairs", description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10, help="pairs that count")
    parser.add_argument("--seconds", type=float, default=8.0, help="time of each measurement")
    parser.add_argument("--folder", type=Path, default=None, help="where the server puts its data")
    options = parser.parse_args(arguments)
    found: dict[int, dict[str, dict[str, float]]] = {}
    for sample in measure_pairs(options.pairs, options.seconds, options.folder):
        found.setdefault(sample.round, {})[sample.case] = sample.metrics
        print(f"pair {sample.round}, {sample.case}: {sample.metrics}", flush=True)
    verdicts = set()
    for each in compare_all([(pair[ALONE], pair[BESIDE]) for pair in found.values()]):
        verdicts.add(each.verdict)
        spread = f"{each.low:.3f} to {each.high:.3f}; each side beside itself {each.own_low:.3f} to {each.own_high:.3f}"
        medians = f"{each.before:.0f} alone, {each.after:.0f} beside it"
        print(f"{each.metric}: {medians}, ratio {each.ratio:.3f} ({spread}): {each.verdict}")
    return int("WORSE" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
