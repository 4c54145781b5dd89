"""`bmq serve` that may have few file descriptors: partitions take turns, clients past the bound are refused, and health
is answered all the while."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.services.bmq import BmqServer

LIMIT = 256
PARTITIONS = 400


def is_healthy(server: BmqServer) -> bool:
    with urllib.request.urlopen(f"{server.http}/healthz", timeout=10) as answer:
        return bool(answer.status == 200)


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
        assert f"may have {LIMIT} file descriptors" in server.log.read_text()
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
