"""The benchmark of ``bmq serve`` beside Apache Kafka; it writes docs/benchmarks-kafka.md.

    python -m bench.against [--quick] [--pairs local,hdfs] [--only produce,...] [--out docs]
    python -m bench.against --add ...       keep what earlier runs measured and this one does not
    python -m bench.against --render        draw again from the results that are there

Both servers of a pair run all the time; rounds alternate between them, and the first is dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench import against_report, provenance
from bench.perf_tools import PRODUCER, PRODUCER_PROMPT, consume, produce
from bench.results import Results, Sample
from bench.servers import PAIRS, Server, start

GB = 1000**3
PARTITIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 3
    records: tuple[tuple[int, int], ...] = ((100, 3_000_000), (1000, 600_000), (10_000, 60_000))
    """Bytes of a record, and how many: 300 to 600 MB a measurement."""
    warm_share: float = 0.15
    """Share of the records that is sent first and not counted: the client's compiler needs them."""
    latency_records_s: int = 5000
    latency_s: int = 15
    partitions: tuple[int, ...] = (1000, 10_000)
    connections: int = 1000
    stored_gb: tuple[int, ...] = (1, 10)


FULL = Plan()
QUICK = Plan(
    rounds=1,
    records=((100, 500_000), (1000, 100_000), (10_000, 10_000)),
    latency_s=4,
    partitions=(200,),
    connections=200,
    stored_gb=(),
)


# --------------------------------------------------------------------------------------------------- measurements


def throughput(server: Server, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing and then consuming the same records, each size on a fresh topic."""
    for size, count in plan.records:
        topic = server.create_topic(PARTITIONS)
        warm = int(count * plan.warm_share)
        total_gb = size * (count + warm) / GB
        with _cpu(server, total_gb) as cost:
            figures = produce(
                server.bootstrap, topic, count=count, record_bytes=size, properties=PRODUCER, warm_count=warm
            )
        yield Sample(adapter=server.name, bench="produce", case=f"{size} B", round=number, metrics=figures | cost)
        with _cpu(server, total_gb) as cost:
            figures = consume(server.bootstrap, topic, count=count + warm)
        yield Sample(adapter=server.name, bench="consume", case=f"{size} B", round=number, metrics=figures | cost)
        server.delete_topic(topic)


@contextlib.contextmanager
def _cpu(server: Server, gb: float) -> Iterator[dict[str, float]]:
    """Measure processor seconds a GB, of the server and of its storage; they are filled in at the end."""
    own, storage = server.cpu_s, server.storage_cpu_s
    cost: dict[str, float] = {}
    yield cost
    cost["cpu_s_gb"] = (server.cpu_s - own) / gb
    cost["storage_cpu_s_gb"] = (server.storage_cpu_s - storage) / gb
    cost["all_cpu_s_gb"] = cost["cpu_s_gb"] + cost["storage_cpu_s_gb"]


def latency(server: Server, plan: Plan, number: int) -> Iterator[Sample]:
    """Measure producing at a moderate, steady rate."""
    topic = server.create_topic(PARTITIONS)
    count = plan.latency_records_s * plan.latency_s
    figures = produce(
        server.bootstrap, topic, count=count, record_bytes=1000, properties=PRODUCER_PROMPT,
        warm_count=count // 3, records_s=plan.latency_records_s,
    )  # fmt: skip
    yield Sample(adapter=server.name, bench="latency", case="1000 B", round=number, metrics=figures)
    server.delete_topic(topic)


def memory(server: Server, plan: Plan) -> Iterator[Sample]:
    """Measure resident memory of a fresh server with idle partitions, then with idle connections too."""
    yield _rss(server, "fresh")
    made = 0
    for count in plan.partitions:
        while made < count:
            server.create_topics([f"idle-{made}"], 100)
            made += 100
        yield _rss(server, f"{count:,} idle partitions")
    host, port = server.bootstrap.split(",")[0].split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(plan.connections):
            stack.enter_context(socket.create_connection((host, int(port))))
        yield _rss(server, f"and {plan.connections:,} idle connections")


def _rss(server: Server, case: str) -> Sample:
    time.sleep(3)  # let the new partitions settle
    metrics = {"rss_mb": server.rss_bytes / 1e6}
    return Sample(adapter=server.name, bench="memory", case=case, round=1, metrics=metrics)


def restart(server: Server, plan: Plan) -> Iterator[Sample]:
    """Measure the time from ``kill -9`` to the first acknowledgement, with so much stored."""
    topic, stored = server.create_topic(PARTITIONS), 0
    for gigabytes in plan.stored_gb:
        while stored < gigabytes:
            produce(server.bootstrap, topic, count=100_000, record_bytes=10_000, properties=PRODUCER)
            stored += 1
        for _ in range(3):
            produce(server.bootstrap, topic, count=2000, record_bytes=10_000, properties=PRODUCER)
            seconds = _time_to_first_ack(server, topic)
            yield Sample(
                adapter=server.name, bench="restart", case=f"{gigabytes} GB", round=1, metrics={"seconds": seconds}
            )
    server.delete_topic(topic)


def _time_to_first_ack(server: Server, topic: str) -> float:
    acked: list[float] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acked.append(time.monotonic())

    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 50,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"before", partition=0, on_delivery=delivered)
    producer.flush(30)
    leader = server.leader(topic)
    begun = time.monotonic()
    server.kill_and_start(leader)
    acked.clear()
    producer.produce(topic, b"after", partition=0, on_delivery=delivered)
    while not acked:
        producer.poll(0.005)
        if time.monotonic() - begun > 300:
            raise TimeoutError(f"{server.name} acknowledged nothing for 300 s after kill -9")
    return acked[0] - begun


ROUNDS: dict[str, Callable[[Server, Plan, int], Iterator[Sample]]] = {"throughput": throughput, "latency": latency}
ONCE: dict[str, Callable[[Server, Plan], Iterator[Sample]]] = {"restart": restart, "memory": memory}


# ----------------------------------------------------------------------------------------------------------- a run


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    options = _parse(arguments)
    path = options.out / "benchmarks" / "kafka.json"
    if not options.render:
        plan = QUICK if options.quick else FULL
        _allow_connections(plan.connections)
        results = provenance.begin(
            "bench.against", sys.argv[1:] if arguments is None else arguments, asdict(plan), options.folder
        )
        begun = time.monotonic()
        for pair in options.pairs.split(",") if options.pairs else PAIRS:
            _measure(PAIRS[pair], options, plan, results)
        results.took_s = time.monotonic() - begun
        if options.add:
            results.add_earlier(Results.load_from(path), lambda sample: (sample.bench, sample.adapter))
        results.save(path)
    results = Results.load_from(path)
    against_report.write(results, options.out)
    for failure in results.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if results.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.against", description="Measure bmq serve beside Kafka.")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--pairs", default="", help=f"comma-separated, of {','.join(PAIRS)}")
    parser.add_argument("--only", default=",".join((*ROUNDS, *ONCE)), help="comma-separated measurements")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the page and its figures")
    parser.add_argument("--folder", type=Path, default=None, help="where servers put their data")
    parser.add_argument("--add", action="store_true", help="keep earlier figures of what is not measured now")
    parser.add_argument("--render", action="store_true", help="only write the page again")
    return parser.parse_args(arguments)


def _allow_connections(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 + count  # Kafka keeps files open for every partition
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))


def _measure(names: Sequence[str], options: argparse.Namespace, plan: Plan, results: Results) -> None:
    wanted = options.only.split(",")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(start(name, options.folder)) for name in names]
        for number in range(plan.rounds + 1):
            results.load.append(round(os.getloadavg()[0], 2))
            for server in servers if number % 2 else reversed(servers):
                for bench, measure in ROUNDS.items():
                    if bench in wanted:
                        _note(results, server, bench, measure(server, plan if number else QUICK, number))
    for bench, once in ONCE.items():
        for name in names if bench in wanted else ():
            if bench == "memory" and name == "kafka-3":
                continue  # three nodes with 10,000 partitions each are more than this machine can take
            with start(name, options.folder) as server:
                _note(results, server, bench, once(server, plan))


def _note(results: Results, server: Server, bench: str, samples: Iterator[Sample]) -> None:
    """Print and keep the samples.  A failure is a result too, and costs no other figure."""
    try:
        for sample in samples:
            shown = "  ".join(f"{name}={value:.4g}" for name, value in sample.metrics.items())
            print(f"round {sample.round}  {sample.adapter:9}  {sample.bench}, {sample.case}:  {shown}", flush=True)
            if sample.round:
                results.samples.append(sample)
    except Exception as error:  # noqa: BLE001
        results.failures.append(f"{bench} on {server.name}: {error!r}")
        print(results.failures[-1], file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
