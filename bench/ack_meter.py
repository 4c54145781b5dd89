"""A steady stream of records to every partition, and the time of each acknowledgement: an outage as clients see it.

One idempotent producer, on its client's defaults except ``linger.ms`` 0.  A partition's pause is the longest time
between two of its acknowledgements, so a pause is exact to the time between two records.
"""

from __future__ import annotations

import threading
import time
from array import array
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

EVERY_S = 0.025
VALUE = b"." * 100
BIN_S = 0.05
BEFORE_S, AFTER_S = 1.0, 15.0
"""Seconds around a fault that are drawn."""
FLUSH_S = 120.0


class AckMeter:
    """A producer of the stream: ``start``, then read the pauses of any span of time, then ``finish``."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._acked = [array("d") for _ in range(partitions)]
        self._errors: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ack-meter", daemon=True)

    def start(self) -> None:
        """Start the stream, and wait until every partition acknowledges."""
        self._thread.start()
        self.wait_acked()

    def wait_acked(self, records: int = 50, timeout_s: float = FLUSH_S) -> None:
        """Wait until every partition has acknowledged so many more records.  Raises AssertionError if one does not."""
        goals = [len(times) + records for times in self._acked]
        end = time.monotonic() + timeout_s
        while any(len(times) < goal for times, goal in zip(self._acked, goals, strict=True)):
            if self._errors or time.monotonic() > end:
                silent = [partition for partition, times in enumerate(self._acked) if len(times) < goals[partition]]
                raise AssertionError(f"partitions {silent} acknowledge nothing: {self._errors[:3]}")
            time.sleep(0.01)

    def pauses_ms(self, since: float) -> list[float]:
        """Return, for each partition, the longest time without an acknowledgement that ended after ``since``."""
        pauses = []
        for times in self._acked:
            seen = list(times)
            before = next((at for at in reversed(seen) if at < since), since)
            gaps = [b - a for a, b in pairwise([before, *(at for at in seen if at >= since)])]
            pauses.append(max(gaps, default=0.0) * 1000)
        return pauses

    def rate(self, since: float, until: float) -> list[float]:
        """Return the acknowledgements a second of all partitions, for each bin of BIN_S seconds."""
        bins = [0] * max(1, round((until - since) / BIN_S))
        for times in self._acked:
            for at in list(times):
                place = int((at - since) / BIN_S)
                if 0 <= place < len(bins):
                    bins[place] += 1
        return [count / BIN_S for count in bins]

    def finish(self) -> None:
        """Stop, and wait for the acknowledgements.  Raises AssertionError if a record was refused, or has none."""
        self._ending.set()
        self._thread.join(2 * FLUSH_S)
        if self._errors or self._thread.is_alive():
            raise AssertionError(f"not every record was acknowledged: {self._errors[:3]}")

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        due = time.monotonic()
        while not self._ending.is_set():
            for partition in range(len(self._acked)):
                producer.produce(self._topic, VALUE, partition=partition, on_delivery=self._delivered)
            due += EVERY_S
            producer.poll(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1.0)  # after a slow moment, do not catch up with more than a second
        if producer.flush(FLUSH_S):
            self._errors.append("some were never acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is not None or partition is None:
            self._errors.append(str(error))
        else:
            self._acked[partition].append(time.monotonic())


def fill(bootstrap: str, topic: str, partitions: int, size: int) -> None:
    """Produce ``size`` bytes, evenly over the partitions.  Raises AssertionError if a record is not acknowledged."""
    value = bytes(100_000)
    failed: list[str] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.size": 1_000_000, "linger.ms": 20, "queue.buffering.max.kbytes": 65_536}
    )

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(str(error))

    for number in range(size // len(value)):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(FLUSH_S) or failed:
        raise AssertionError(f"filling {topic} failed: {failed[:3]}")
