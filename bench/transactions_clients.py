"""The clients of bench.transactions: Kafka's Java client and librdkafka, in processes that serve a whole run."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer

from bench import client_load
from bench.load_process import LoadProcess, Parent
from bench.mover import Mover
from bench.perf_tools import CLIENT_JAVA, HEAP_MB
from tests.services import clients
from tests.services.kafka import KAFKA_VERSION, class_path, java_command

JAVA_SOURCE = Path(__file__).with_name("java_kafka")
TIMEOUT_S = 120.0
CONSUMER = {"fetch.wait.max.ms": "10"}
"""Settings of the consumer, as bench.security has them: a fetch of partitions without more waits half a second else."""


class Load(NamedTuple):
    """A load of bundles: of a number of producers, each bundle of ``records``, for a time."""

    bootstrap: str
    topic: str
    partitions: int
    producers: int
    records: int
    record_bytes: int
    warm_s: float
    seconds: float
    kind: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The bundles of a load that count, and the microseconds of their ends: commits, or flushes."""

    count: float
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of a sample."""
        rate = self.count / self.seconds
        return {"transactions_s": rate, "p50_us": self.p50_us, "p99_us": self.p99_us, "n": self.count}


class JavaLoad(Mover):
    """``TransactionLoad.java``: one process for all loads, so that its code is compiled as a server's is."""

    def run(self, load: Load) -> Ended:
        """Run a load to its end.  Raises NotReady if the program fails."""
        return Ended(*self._ask("run", *load))


class LibrdkafkaLoad:
    """A process with one producer of librdkafka a load, and consumers."""

    def __init__(self, process: LoadProcess) -> None:
        self._process = process
        process.expect()

    def run(self, load: Load) -> Ended:
        """Run a load of transactions to its end.  Raises LoadFailed or TimeoutError."""
        return Ended(*self._ask("transactions", load=load))

    def write(
        self, bootstrap: str, topic: str, *, count: int, records: int, partitions: int, record_bytes: int
    ) -> None:
        """Write ``count`` transactions to a topic.  Raises LoadFailed or TimeoutError."""
        arguments = {"bootstrap": bootstrap, "topic": topic, "count": count, "records": records}
        self._ask("write", partitions=partitions, record_bytes=record_bytes, **arguments)

    def consume(self, bootstrap: str, topic: str, *, count: int, partitions: int, isolation: str) -> float:
        """Consume all of a topic; return the records a second.  Raises LoadFailed or TimeoutError."""
        properties = CONSUMER | {"isolation.level": isolation}
        arguments = {"bootstrap": bootstrap, "topic": topic, "count": count, "partitions": partitions}
        return float(self._ask("consume", properties=properties, **arguments))

    def _ask(self, act: str, **arguments: Any) -> Any:
        self._process.send((act, arguments))
        return self._process.expect(TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Clients:
    """The client processes of a run."""

    java: JavaLoad
    librdkafka: LibrdkafkaLoad


@contextlib.contextmanager
def start(folder: Path) -> Iterator[Clients]:
    """Start both processes, whose logs are in ``folder``, and end them with the context."""
    libraries = class_path()
    compiled = clients.java_classes(f"transaction-load-{KAFKA_VERSION}", JAVA_SOURCE, libraries)
    path = f"{compiled}:{libraries}"
    command = java_command(heap_mb=HEAP_MB, options=CLIENT_JAVA, log_level="WARN", libraries=path)
    java = JavaLoad("transaction-load", [*command, "TransactionLoad"], folder=folder)
    with java, LoadProcess(serve) as process:
        yield Clients(java, LibrdkafkaLoad(process))


def serve(parent: Parent) -> None:
    """Do what comes, one act after another, and tell the result of each."""
    parent.tell("ready")
    while True:
        act, arguments = parent.wait()
        parent.tell(ACTS[act](**arguments))


class Bundles:
    """One transactional producer of librdkafka, whose records go to the partitions in turn."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, records: int, record_bytes: int) -> None:
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": f"bench-{uuid.uuid4()}", "log_level": 3,
        })  # fmt: skip
        self._topic = topic
        self._partitions = partitions
        self._records = records
        self._value = os.urandom(record_bytes)
        self._deliveries = client_load.Deliveries()
        self._sent = 0
        self._producer.init_transactions(TIMEOUT_S)

    def commit_one(self) -> float:
        """Commit a transaction; return the seconds of the commit.  Raises KafkaException."""
        self._producer.begin_transaction()
        for _ in range(self._records):
            self._producer.produce(
                self._topic, self._value, partition=self._sent % self._partitions, on_delivery=self._deliveries
            )
            self._sent += 1
        ending = time.monotonic()
        self._producer.commit_transaction(TIMEOUT_S)
        return time.monotonic() - ending

    def check(self) -> None:
        """Raise RuntimeError if a record was not acknowledged."""
        self._producer.flush(TIMEOUT_S)
        self._deliveries.check(self._sent)


def transactions(load: Load) -> tuple[float, float, float, float]:
    """Commit transactions of one producer for a time; return the fields of ``Ended``.

    Raises RuntimeError if a record is not acknowledged.
    """
    bundles = Bundles(load.bootstrap, load.topic, load.partitions, load.records, load.record_bytes)
    bundles.commit_one()
    begin, times, ended = time.monotonic() + load.warm_s, array("d"), 0.0
    while (begun := time.monotonic()) < begin + load.seconds or not times:
        took = bundles.commit_one()
        if begun >= begin:
            ended = time.monotonic()
            times.append(took)
    bundles.check()
    p50, p99 = (float(each) * 1e6 for each in np.percentile(times, (50, 99)))
    return float(len(times)), ended - begin, p50, p99


def write(*, count: int, **arguments: Any) -> None:
    """Commit ``count`` transactions.  Raises RuntimeError if a record is not acknowledged."""
    bundles = Bundles(**arguments)
    for _ in range(count):
        bundles.commit_one()
    bundles.check()


ACTS: Mapping[str, Callable[..., Any]] = {
    "transactions": transactions, "write": write, "consume": client_load.consume,
}  # fmt: skip


def described() -> Mapping[str, str]:
    """Return the clients' settings, by what they measure."""
    consumer = " ".join(f"{name}={value}" for name, value in CONSUMER.items())
    return {
        "Java": f"TransactionLoad.java: Kafka's Java client {KAFKA_VERSION}, acks=all, its other defaults",
        "librdkafka": "bench.transactions_clients: librdkafka, transactional.id, its other defaults",
        "reads": f"bench.transactions_clients: librdkafka, no group, {consumer}",
        "ids": "bench.transactions_ids: a bare client, 64 connections in step",
    }
