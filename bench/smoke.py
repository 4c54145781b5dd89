"""A guard against regressions of cost, in a minute: one ``bmq serve`` beside a fixed reference loop.

    python -m bench.smoke [--rounds 5] [--keep] [--quick]

Both are measured in turn on this machine, and each figure is told as its ratio to the reference's: a machine that is
slow today is slow for both.  Ends with 1 if a ratio is worse than the one that bench/smoke_baseline.json keeps, beyond
the spreads of both.  ``--keep`` writes that file instead.

    produce_cpu_s_gb     processor seconds of the server a GB, batches of 64 KB from librdkafka; reference: appends
    consume_cpu_s_gb     the same, read again; reference: reads
    paced_cpu_us_record  processor microseconds a record of 1 KB at a fixed rate, each in a request of its own
    lone_p50_us          median microseconds of a request with one record of 1 KB, none other in flight
    tiny_requests_s      requests a second of one record of 100 B each, sixteen in flight

It does not measure HDFS, etcd, the network or a second process: bench.pairs and bench.against do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import client_load, raw_client, reference_loop
from bench.servers import BMQ_ENVIRONMENT
from bench.smoke_verdict import BASELINE, Figure, Kept, table, verdicts
from tests.services.bmq import BmqServer
from tests.services.processes import ServiceProcess, wait_for

GB = 1000**3
RECORD_BYTES = 1000
TINY_BYTES = 100
CHUNK_BYTES = 64 << 10
PARTITIONS = 4
WINDOW = 16
"""Requests in flight at tiny batches."""
BULK_WINDOW = 8
"""The reference's requests of ``CHUNK_BYTES`` in flight."""
START_TIMEOUT_S = 60.0
RESPONSE_TIMEOUT_S = 60.0
"""Seconds for a response, on a machine however busy: its slowness is a figure and no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The load of one measurement."""

    megabytes: int = 300
    paced_records_s: int = 1000
    paced_s: float = 3.0
    lone: int = 1000
    tiny: int = 8000


FULL = Amounts()
QUICK = Amounts(megabytes=5, paced_s=0.2, lone=20, tiny=200)
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference loop's process, and a connection to it."""

    process: ServiceProcess
    connection: socket.socket


# ------------------------------------------------------------------------------------------------------ measurements


def measure_bmq(server: BmqServer, amounts: Amounts) -> Metrics:
    """Measure ``bmq serve`` on a new topic, which is deleted afterwards."""
    topic, admin = (
        f"smoke-{uuid.uuid4().hex[:12]}",
        AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0}),
    )
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=60)[topic].result(90)
    count = amounts.megabytes * 1000**2 // RECORD_BYTES
    try:
        cpu = [server.cpu_seconds]
        client_load.produce(server.bootstrap, topic, count=count, record_bytes=RECORD_BYTES, partitions=PARTITIONS)
        cpu.append(server.cpu_seconds)
        client_load.consume(server.bootstrap, topic, count=count, partitions=PARTITIONS)
        cpu.append(server.cpu_seconds)
        with raw_client.connect(
            raw_client.addresses_of(server.bootstrap)[0], timeout_s=RESPONSE_TIMEOUT_S
        ) as connection:
            record, tiny = (raw_client.produce_frame(topic, os.urandom(size)) for size in (RECORD_BYTES, TINY_BYTES))
            for frame in (record, tiny):  # a refused request would look like a quick one
                raw_client.produce(connection, frame)
            return _bulk_costs(cpu, count * RECORD_BYTES) | _small(server.process, connection, record, tiny, amounts)
    finally:
        admin.delete_topics([topic], operation_timeout=60)[topic].result(90)


def measure_reference(reference: Reference, amounts: Amounts) -> Metrics:
    """Measure the reference loop on an empty file."""
    connection, process = reference.connection, reference.process
    count = max(1, amounts.megabytes * 1000**2 // CHUNK_BYTES)
    reference_loop.pipelined(connection, reference_loop.truncate_frame(), count=1, window=1)
    cpu = [process.cpu_seconds]
    chunk = reference_loop.append_frame(os.urandom(CHUNK_BYTES))
    reference_loop.pipelined(connection, chunk, count=count, window=BULK_WINDOW)
    cpu.append(process.cpu_seconds)
    for number in range(count):
        frame = reference_loop.read_frame(number * CHUNK_BYTES, CHUNK_BYTES)
        reference_loop.pipelined(connection, frame, count=1, window=1)
    cpu.append(process.cpu_seconds)
    record, tiny = (reference_loop.append_frame(os.urandom(size)) for size in (RECORD_BYTES, TINY_BYTES))
    return _bulk_costs(cpu, count * CHUNK_BYTES) | _small(process, connection, record, tiny, amounts)


def _bulk_costs(cpu: Sequence[float], size: int) -> Metrics:
    """Return the costs of producing and consuming, from the processor seconds before, between and after them."""
    before, between, after = cpu
    return {"produce_cpu_s_gb": (between - before) / size * GB, "consume_cpu_s_gb": (after - between) / size * GB}


def _small(process: ServiceProcess, connection: socket.socket, record: bytes, tiny: bytes, amounts: Amounts) -> Metrics:
    """Measure small requests, the same way for both servers."""
    count = max(1, int(amounts.paced_records_s * amounts.paced_s))
    before = process.cpu_seconds
    reference_loop.paced(connection, record, count=count, requests_s=amounts.paced_records_s)
    paced = process.cpu_seconds - before
    times = reference_loop.lone(connection, record, count=amounts.lone)
    seconds = reference_loop.pipelined(connection, tiny, count=amounts.tiny, window=WINDOW)
    return {
        "paced_cpu_us_record": paced / count * 1e6,
        "lone_p50_us": median(times) * 1e6,
        "tiny_requests_s": amounts.tiny / seconds,
    }


def alternate(server: BmqServer, reference: Reference, amounts: Amounts, rounds: int) -> list[Figure]:
    """Measure both in turn, and once more at first, which is not counted; return each figure over the rounds."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            ours = measure_bmq(server, amounts)
            fixed = measure_reference(reference, amounts)
        else:
            fixed = measure_reference(reference, amounts)
            ours = measure_bmq(server, amounts)
        shown = "  ".join(f"{name} {ours[name] / fixed[name]:.2f}" for name in ours)
        print(f"round {number} (load {os.getloadavg()[0]:.1f}):  {shown}", flush=True)
        if number:
            pairs.append((ours, fixed))
    return [Figure.of(name, [(ours[name], fixed[name]) for ours, fixed in pairs]) for name in pairs[0][0]]


# ------------------------------------------------------------------------------------------------------------- a run


@contextlib.contextmanager
def start(parent: Path | None) -> Iterator[tuple[BmqServer, Reference]]:
    """Start both servers, with their data in a folder of ``parent``, and stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bmq-smoke-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "bmq").mkdir()
        server = BmqServer((folder / "root").as_uri(), folder=folder / "bmq", environment=BMQ_ENVIRONMENT)
        stack.enter_context(server)
        command = [sys.executable, "-m", "bench.reference_loop", str(folder / "reference.log")]
        environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        process = ServiceProcess("reference", command, log=folder / "reference.out", environment=environment)
        process.start()
        stack.callback(process.kill)
        connection = stack.enter_context(
            raw_client.connect((reference_loop.HOST, _port_of(process)), timeout_s=RESPONSE_TIMEOUT_S)
        )
        yield server, Reference(process, connection)


def _port_of(process: ServiceProcess) -> int:
    """Wait for the line with the port on the reference's output."""
    found: list[int] = []

    def is_ready() -> bool:
        process.require_running()
        words = process.log.read_text().split()
        found[:] = [int(words[1])] if words[:1] == ["ready"] and len(words) > 1 else []
        return bool(found)

    wait_for(is_ready, "the reference loop", timeout_s=START_TIMEOUT_S, interval_s=0.02)
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return 1 if a ratio is worse than the kept one."""
    options = _parse(arguments)
    kept = Kept.load(options.baseline)
    with start(options.folder) as (server, reference):
        figures = alternate(server, reference, QUICK if options.quick else FULL, options.rounds)
    if options.keep:
        kept = Kept.of(figures)
        kept.save(options.baseline)
    print(table(figures, kept))
    return 1 if any(verdict == "SLOWER" for verdict in verdicts(figures, kept).values()) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.smoke",
        description="Measure one bmq serve beside a fixed reference loop, and compare the ratios with the kept ones.",
    )
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each that count, five or more")
    parser.add_argument("--keep", action="store_true", help="write the ratios into the baseline")
    parser.add_argument(
        "--quick", action="store_true", help="tiny amounts: shows that it works, the figures say little"
    )
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="file of the kept ratios")
    parser.add_argument("--folder", type=Path, default=None, help="where the servers put their data")
    options = parser.parse_args(arguments)
    if options.rounds < 5 and not options.quick:
        parser.error("--rounds is less than 5: the spread of so few says nothing")
    if options.rounds < 1:
        parser.error("--rounds is less than 1")
    if options.keep and options.quick and options.baseline == BASELINE:
        parser.error("--keep with --quick: ratios of tiny amounts are no baseline")
    return options


if __name__ == "__main__":
    sys.exit(main())
