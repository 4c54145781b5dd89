"""The two halves: producing the flights, and consuming them in a group.  Each works in its own threads.

``done`` counts for the progress bar.  ``responses`` counts responses that only a living server can have sent:
acknowledgements, and commits; the pause around a kill ends when it moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from demo.flights import Flight
from demo.ledger import NOWHERE, Ledger, Sent
from demo.pauses import Pauses

_FETCH = 1_000
"""Records that a member takes, books and commits at a time."""
_POLL_S = 0.2
_QUIET: dict[str, Any] = {
    "log_level": 0,  # the demo kills the server: what matters is checked at the end
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
}


class Worker:
    """Threads with a count, an end, and an error that ends the others."""

    def __init__(self) -> None:
        self.done = 0
        self.responses = 0
        self.stopping = threading.Event()
        self._errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for number, target in enumerate(self.targets()):
            self._threads.append(threading.Thread(target=self._guard, args=(target,), name=f"worker-{number}"))
        for thread in self._threads:
            thread.start()

    def targets(self) -> Sequence[Any]:
        """Return the functions to run, each in a thread of its own."""
        raise NotImplementedError

    def _guard(self, target: Any) -> None:
        try:
            target()
        except Exception as error:  # noqa: BLE001 - kept, and raised by check()
            self._errors.append(error)
            self.stopping.set()

    @property
    def is_running(self) -> bool:
        """True while a thread runs."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Ask the threads to end, and wait for them."""
        self.stopping.set()
        for thread in self._threads:
            thread.join()

    def check(self) -> None:
        """Raise the error that ended a thread, if any."""
        if self._errors:
            raise self._errors[0]


class Producing(Worker):
    """The producing half: all flights, in order, by an idempotent producer: acknowledged records are in the log
    once."""

    def __init__(self, bootstrap: str, topic: str, flights: Iterable[Flight], sent: Sent, pauses: Pauses) -> None:
        super().__init__()
        self._topic = topic
        self._flights = flights
        self._sent = sent
        self._pauses = pauses
        self._producer = Producer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "linger.ms": 20,
                "queue.buffering.max.messages": 50_000,
                "message.timeout.ms": 120_000,
            }
        )

    def targets(self) -> Sequence[Any]:
        return [self._produce]

    def _produce(self) -> None:
        for flight in self._flights:
            if self.stopping.is_set():
                return
            row, sequence = self._sent.add(flight.key, flight.carrier, flight.value)
            self._send(flight, row, sequence)
            self._producer.poll(0)
        while self._producer.flush(_POLL_S) and not self.stopping.is_set():
            pass  # flush serves the acknowledgements; ``done`` shows how far it is

    def _send(self, flight: Flight, row: int, sequence: int) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("row", b"%d" % row), ("seq", b"%d" % sequence)]

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            self._acknowledged(row, error, message)

        while not self.stopping.is_set():
            try:
                self._producer.produce(
                    self._topic, key=flight.key, value=flight.value, headers=headers, on_delivery=acknowledged
                )
            except BufferError:  # the queue is full: wait for acknowledgements
                self._producer.poll(_POLL_S)
            else:
                return

    def _acknowledged(self, row: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        offset = message.offset()
        partition = message.partition()
        assert partition is not None, "an acknowledged record has its partition"
        self._sent.acknowledge(row, partition, NOWHERE if offset is None or offset < 0 else offset)
        self._pauses.on_acknowledged(partition, time.monotonic())
        self.done += 1
        self.responses += 1


class Consuming(Worker):
    """The consuming half: two members of one group, until every record of the log is booked and every offset
    committed."""

    MEMBERS = 2

    def __init__(self, bootstrap: str, topic: str, group: str, ledger: Ledger, expected: int) -> None:
        super().__init__()
        self._topic = topic
        self._ledger = ledger
        self._expected = expected
        self._lock = threading.Lock()  # one ledger, two members
        self._is_committed = [True] * self.MEMBERS
        self.taken = [0] * self.MEMBERS
        self._config = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1_000,
            "queued.min.messages": 5_000,
            "queued.max.messages.kbytes": 8_192,  # little is read ahead, so that a kill shows
            "fetch.max.bytes": 4 << 20,
        }

    def targets(self) -> Sequence[Any]:
        return [lambda: self._consume(0), lambda: self._consume(1)]

    @property
    def is_finished(self) -> bool:
        """True if every record is booked and every offset committed."""
        return self._ledger.records >= self._expected and all(self._is_committed)

    def _consume(self, member: int) -> None:
        consumer = Consumer({**self._config, "client.id": f"demo-{member}"})
        consumer.subscribe([self._topic])
        try:
            while not (self.stopping.is_set() or self.is_finished):
                messages = consumer.consume(_FETCH, timeout=_POLL_S)
                if messages:
                    self._is_committed[member] = False
                    self._book(member, messages)
                if not self._is_committed[member]:
                    self._commit(member, consumer)
        finally:
            consumer.close()

    def _book(self, member: int, messages: Sequence[Message]) -> None:
        with self._lock:
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.fatal():
                        raise KafkaException(error)
                    continue  # the client continues by itself; a record that it does not bring is missed at the end
                headers = dict(message.headers() or ())
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self._ledger.take(partition, offset, message.key(), message.value(), headers)
                self.taken[member] += 1
            self.done = self._ledger.records

    def _commit(self, member: int, consumer: Consumer) -> None:
        """Commit; what cannot be committed now is committed with the next, or read again by the other member."""
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.fatal():
                raise
            # Nothing to commit: the partitions went to the other member, which continues from the last commit.
            self._is_committed[member] = error.code() == KafkaError._NO_OFFSET
            time.sleep(_POLL_S / 4)  # a refusal comes at once: do not try in a tight loop
        else:
            self._is_committed[member] = True
            self.responses += 1


def ends_of(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """Return where each partition ends.  A log that does not begin at 0 is an error."""
    consumer = Consumer({**_QUIET, "bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        return _ends(consumer, topic, partitions)
    finally:
        consumer.close()


def ends_and_commits(bootstrap: str, topic: str, group: str, partitions: int) -> tuple[list[int], list[int]]:
    """Return, by partition, where it ends, and the group's committed offset."""
    consumer = Consumer({**_QUIET, "bootstrap.servers": bootstrap, "group.id": group})
    try:
        keys = [TopicPartition(topic, partition) for partition in range(partitions)]
        return _ends(consumer, topic, partitions), [key.offset for key in consumer.committed(keys, timeout=10)]
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, partitions: int) -> list[int]:
    ends = []
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        assert low == 0, f"partition {partition} begins at {low}"
        ends.append(high)
    return ends
