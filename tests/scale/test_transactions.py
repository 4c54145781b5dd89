"""Many transactional ids and 50 producers at once in one process: none of its turns of the loop is long."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench import raw_client
from bench.transactions_ids import listed, make
from tests.harness.loop_stops import is_short
from tests.integration.load import create_topic
from tests.scale import watched_server
from tests.scale.world import WITHIN_S
from tests.services.processes import free_ports, wait_for

pytestmark = pytest.mark.soak

IDS = 20_000
CONNECTIONS = 16
PRODUCERS = 50
COMMIT_S = 20.0
PARTITIONS = 8
STOP_MAX_S = 0.020
"""The longest turn of the loop, as processor time of its thread at the pace of an idle core."""
TOPIC = "orders"


class Watched:
    """`bmq serve` with every role on a folder, which notes its long turns."""

    def __init__(self, folder: Path, ports: tuple[int, int, int]) -> None:
        kafka, http, internal = ports
        self.bootstrap = f"127.0.0.1:{kafka}"
        self._turns = folder / "turns"
        self._log = folder / "log"
        settings = {
            "roles": "proxy,broker,controller,coordinator", "root": f"file://{folder}/data",
            "meta": f"sqlite:///{folder}/meta.db", "listen": self.bootstrap, "http": f"127.0.0.1:{http}",
            "internal": f"127.0.0.1:{internal}",
        }  # fmt: skip
        self.process = watched_server.start(self._turns, self._log, settings)

    def is_ready(self) -> bool:
        """Return whether it serves; fail if it has ended."""
        text = self._log.read_text()
        assert self.process.poll() is None, text[-3000:]
        return "ready " in text

    def check(self) -> None:
        """Check the turns of its life, which is over."""
        turns = [json.loads(line) for line in self._turns.read_text().splitlines()]
        longest = max((each["ms"] for each in turns), default=0.0)
        assert is_short(longest / 1000, STOP_MAX_S), turns


@contextmanager
def watched(folder: Path, ports: tuple[int, int, int]) -> Iterator[Watched]:
    """Yield a process that serves; at the end drain it, and check its turns."""
    server = Watched(folder, ports)
    try:
        wait_for(server.is_ready, "the process serves", timeout_s=WITHIN_S)
        yield server
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(WITHIN_S) == 0
    finally:
        server.process.kill()
        server.process.wait()
    server.check()


def commit(bootstrap: str, number: int) -> int:
    """Commit transactions of a record for a while; return how many there were."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"busy-{number}", "linger.ms": 0})
    producer.init_transactions(WITHIN_S)
    count, end = 0, time.monotonic() + COMMIT_S
    while time.monotonic() < end:
        producer.begin_transaction()
        producer.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
        producer.commit_transaction(WITHIN_S)
        count += 1
    return count


def test_transactions_stop_no_loop(tmp_path: Path) -> None:
    """Make ids, load them in a new process, have producers commit, and drain with what is in the tails."""
    kafka, http, internal = free_ports(3)
    ports = kafka, http, internal
    with watched(tmp_path, ports) as server:
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        (address,) = raw_client.addresses_of(server.bootstrap)
        make([address] * CONNECTIONS, TOPIC, [f"idle-{number:08}" for number in range(IDS)])
    with watched(tmp_path, ports) as server:
        (address,) = raw_client.addresses_of(server.bootstrap)
        wait_for(lambda: listed(address) == IDS, f"{IDS} ids loaded", timeout_s=WITHIN_S)
        with ThreadPoolExecutor(PRODUCERS) as pool:
            counts = list(pool.map(commit, [server.bootstrap] * PRODUCERS, range(PRODUCERS)))
        assert min(counts) > 0
    print(f"\n{IDS:,} ids loaded, {sum(counts) / COMMIT_S:,.0f} transactions a second of {PRODUCERS} producers")
