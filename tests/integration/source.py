"""Idempotent producer of numbered records in a thread, for applications that read while processes die."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Producer

LIMIT_S = 180.0
RECORDS_PER_S = 200


def number(count: int) -> bytes:
    """Return the value of a source's record that follows ``count`` others: eight digits."""
    return b"%08d" % count


class Source:
    """An idempotent producer of numbered records, in a thread, until ``finish``.

    Record n goes to partition n modulo ``partitions``, with the value ``value(n)``.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, value: Callable[[int], bytes] = number) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._value = value
        self._stop = threading.Event()
        self._errors: list[object] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        while not self._stop.wait(1 / RECORDS_PER_S):
            producer.produce(
                self._topic,
                self._value(self.sent),
                partition=self.sent % self._partitions,
                on_delivery=lambda error, _: self._errors.append(error) if error else None,
            )
            self.sent += 1
            producer.poll(0)
        if left := producer.flush(LIMIT_S):
            self._errors.append(f"{left} records were not answered")

    def abandon(self) -> None:
        """Stop without a check."""
        self._stop.set()

    def finish(self) -> None:
        """Stop, and wait until every record is acknowledged."""
        self._stop.set()
        self._thread.join(2 * LIMIT_S)
        assert not self._thread.is_alive()
        assert not self._errors, self._errors[:5]
