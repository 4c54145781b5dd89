"""`bmq serve` that may have few file descriptors: partitions take turns, clients past the bound are refused, and health
is answered all the while."""

from __future__ import annotations

import http.client
import json
import os
import resource
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

LIMIT = 256
PARTITIONS = 400


def is_healthy(server: BmqServer) -> bool:
    with urllib.request.urlopen(f"{server.http}/healthz", timeout=10) as response:
        return bool(response.status == 200)


@pytest.mark.smoke
def test_few_descriptors_slow_down_and_stop_nothing(tmp_path: Path) -> None:
    failed: list[KafkaError] = []
    acked = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acked
        if error is not None:
            failed.append(error)
        else:
            acked += 1

    prefix = ("bash", "-c", f'ulimit -n {LIMIT}; exec "$@"', "bash")
    with BmqServer(
        f"file://{tmp_path}/root", environment={"BMQ_NUM_PARTITIONS": str(PARTITIONS)}, prefix=prefix
    ) as server, ExitStack() as idle:  # fmt: skip
        assert f"may open {LIMIT} file descriptors" in server.log.read_text()
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 50})
        for round_number in range(2):
            for partition in range(PARTITIONS):
                producer.produce("orders", b"%d" % round_number, partition=partition, on_delivery=delivered)
            assert producer.flush(120) == 0
        assert (acked, failed) == (2 * PARTITIONS, [])
        for _ in range(LIMIT):
            client = idle.enter_context(socket.socket())
            client.connect((server.host, server.port))
        assert is_healthy(server)
        producer.produce("orders", b"again", partition=0, on_delivery=delivered)
        assert producer.flush(60) == 0
        assert failed == []
        assert "max.connections" in server.log.read_text()


class KeptConnection:
    """An HTTP connection that was there before the shortage."""

    def __init__(self, server: BmqServer) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.http_port, timeout=10)
        self._connection.connect()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> tuple[int, str]:
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        return response.status, response.read().decode()

    def ready(self) -> tuple[int, str]:
        status, body = self.get("/readyz")
        return status, json.loads(body)["message"]

    def failures(self) -> float:
        _, text = self.get("/metrics")
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(FAILURES))


FAILURES = "bmq_descriptor_failures_total "


def test_a_process_that_runs_out_of_descriptors_says_so_and_says_when_it_is_over(tmp_path: Path) -> None:
    with BmqServer(f"file://{tmp_path}/root") as server, ExitStack() as idle:
        kept = KeptConnection(server)
        assert (kept.ready(), kept.failures()) == ((200, ""), 0)
        assert server.process.pid is not None
        last = max(map(int, os.listdir(f"/proc/{server.process.pid}/fd")))
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (last + 8, hard))

        def take_one_more() -> None:
            """Open one more connection: also descriptors that the process used for a moment must be taken."""
            idle.enter_context(socket.create_connection((server.host, server.port), timeout=10))

        def is_out() -> bool:
            take_one_more()
            return kept.ready() == (503, "no file descriptor is left: new connections are closed as they come")

        def is_closed_as_it_comes() -> bool:
            take_one_more()
            try:
                return not is_healthy(server)
            except OSError as error:
                return "reset" in str(error) or "closed" in str(error)

        for _ in range(last + 8):
            take_one_more()
        wait_for(is_out, "a process that is not ready", timeout_s=60)
        assert f"no file descriptor is left of {last + 8}" in text_of(server)
        before = kept.failures()
        assert before >= 1
        wait_for(is_closed_as_it_comes, "a connection that is closed", timeout_s=60)
        wait_for(lambda: kept.failures() > before, "the counter that rises", timeout_s=60)
        idle.close()
        wait_for(lambda: "file descriptors are left again" in text_of(server), "its end", timeout_s=60)
        assert kept.ready() == (200, "")
        assert is_healthy(server)
        kept.close()


def text_of(server: BmqServer) -> str:
    return server.log.read_text()
