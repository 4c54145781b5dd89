"""`bmq serve` on a local root whose disk is full: no storm of files, a log that names the cause, and no loss."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.harness.seeds import amount
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

DISK_MB = 6
FULL_S = float(amount(4, 12))
"""Time on the full disk: long enough for a thousand files, if nothing slows their making down."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system of its own for the test: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def status_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.smoke
def test_a_full_disk_is_named_and_survived(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(DISK_MB * 512 << 10))
    acked: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            acked.append(int(bytes(message.value() or b"")[:8]))

    with BmqServer(f"file://{small_disk}/root") as server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0, "enable.idempotence": True})
        number = 0

        def is_told() -> bool:
            nonlocal number
            for _ in range(4):
                producer.produce("orders", b"%08d" % number + bytes(100_000), on_delivery=delivered)
                number += 1
            producer.poll(0.2)
            return "No space left on device" in server.log.read_text()

        wait_for(is_told, "a log line that names the cause", timeout_s=60)
        url = f"{server.http}/readyz"
        wait_for(lambda: "No space left on device" in status_of(url)[1], "the cause in /readyz", timeout_s=60)
        assert status_of(url)[0] == 200, "other processes have no room either: leaving the service helps no client"
        files, until = count_files(small_disk), time.monotonic() + FULL_S
        while time.monotonic() < until:
            producer.poll(0.5)
        assert count_files(small_disk) - files < 40
        assert server.log.read_text().count("No space left") < 40
        filler.unlink()
        assert producer.flush(60) == 0
        assert failed == []
        assert sorted(acked) == list(range(number))
        wait_for(
            lambda: '"status": "ok"' in status_of(url)[1], "a response of /readyz that names nothing", timeout_s=60
        )
        assert read(server, number) == list(range(number))


def test_sigterm_on_a_full_disk_ends_in_its_time(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(DISK_MB * 512 << 10))
    producer = None
    with BmqServer(f"file://{small_disk}/root", environment={"BMQ_DRAIN_MS": "4000"}) as server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})

        def is_full() -> bool:
            producer.produce("orders", bytes(100_000))
            producer.poll(0.1)
            return "No space left on device" in server.log.read_text()

        wait_for(is_full, "a full disk", timeout_s=60)
    assert "1 partitions are not handed over" in server.log.read_text(), "it ended by its deadline, with status 0"
    producer.purge()


def count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def read(server: BmqServer, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("orders", 0, 0)])
    values: list[int] = []
    until = time.monotonic() + 60
    while len(values) < count and time.monotonic() < until:
        for message in consumer.consume(100, 1):
            assert message.error() is None
            values.append(int(bytes(message.value() or b"")[:8]))
    consumer.close()
    return values
