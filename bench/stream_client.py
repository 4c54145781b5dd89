"""A steady stream of records through one topic, as a producer, a member of a group and its commits see it.

    python -m bench.stream_client --bootstrap HOST:PORT --topic NAME --partitions 12 --events FILE

It is a process of its own, so that what the measurement does meanwhile does not hold its clock up.  Records are due at
fixed times, an open loop: a record that is sent or acknowledged late counts from when it was due.  Each record
acknowledged or received, and each commit confirmed, is an event in the file.  SIGTERM ends the stream; the exit code
is 0 if every record was acknowledged by then.
"""

from __future__ import annotations

import argparse
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

PRODUCED, CONSUMED, COMMITTED, REFUSED = range(4)
"""Kinds of events."""
EVENT = struct.Struct("<iidd")
"""Kind, partition (-1 of a commit), when it was due, when it was seen: seconds of ``time.monotonic``."""
DUE = struct.Struct("<d")
"""When a record was due, at the beginning of its value."""
RECORD_BYTES = 100
COMMIT_S = 0.1
"""Seconds between two commits, and between two attempts of one that failed."""
POLL_S = 0.02
FLUSH_S = 120.0
FIRST_ASSIGNMENT_S = 120.0
SOON = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "socket.connection.setup.timeout.ms": 1000,
    "log_level": 0,
}
"""Settings of both clients: they try again so soon that a pause is the servers' and not the client's back-off."""
PRODUCER = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000}
CONSUMER = {"auto.offset.reset": "latest", "enable.auto.commit": False, "fetch.error.backoff.ms": 20}


class Events:
    """The file of events; threads may share it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, kind: int, partition: int, due: float, at: float) -> None:
        """Write one event; it may stay in the buffer until ``flush``."""
        self._file.write(EVENT.pack(kind, partition, due, at))

    def flush(self) -> None:
        """Make what was written visible to the reader of the file."""
        self._file.flush()


class Committer:
    """The commits of one member: one at a time, each counted from when it was due until one is confirmed."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._due = time.monotonic()
        self._next = self._due
        self._is_pending = False

    def is_due(self, now: float) -> bool:
        """Return whether a commit is to be requested now."""
        return not self._is_pending and now >= self._next

    def requested(self) -> None:
        """Note that a commit was requested."""
        self._is_pending = True

    def nothing_new(self, now: float) -> None:
        """Note that nothing was received since the last commit, so that none is due."""
        self._is_pending, self._due = False, now
        self._next = now + COMMIT_S

    def confirmed(self, error: KafkaError | None, now: float) -> None:
        """Note the response to a commit.  After an error the commit is still due, since when it first was."""
        self._is_pending = False
        self._next = now + COMMIT_S
        if error is None:
            self._events.add(COMMITTED, -1, self._due, now)
            self._due = self._next


def produce(options: argparse.Namespace, events: Events, stopping: threading.Event) -> int:
    """Produce until it is stopped; return how many records were refused or never acknowledged."""
    producer = Producer({**SOON, **PRODUCER, **_servers(options)})
    refused = 0

    def on_delivery(partition: int, due: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, _: Message) -> None:
            nonlocal refused
            refused += error is not None
            events.add(PRODUCED if error is None else REFUSED, partition, due, time.monotonic())

        return delivered

    filling = bytes(RECORD_BYTES - DUE.size)
    period = options.every_ms / 1000 / options.partitions
    begun, number, flushed = time.monotonic(), 0, 0.0
    while not stopping.is_set():
        partition, due = number % options.partitions, begun + number * period
        while (left := due - time.monotonic()) > 0:
            producer.poll(left)
        producer.produce(
            options.topic, DUE.pack(due) + filling, partition=partition, on_delivery=on_delivery(partition, due)
        )
        producer.poll(0)
        number += 1
        if due > flushed + POLL_S:
            events.flush()
            flushed = due
    return refused + producer.flush(FLUSH_S)


def consume(options: argparse.Namespace, events: Events, assigned: threading.Event, stopping: threading.Event) -> None:
    """Consume as the only member of a group until it is stopped, and commit as it goes."""
    committer = Committer(events)

    def on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is not None and error.code() == KafkaError._NO_OFFSET:
            committer.nothing_new(time.monotonic())
        else:
            committer.confirmed(error, time.monotonic())

    consumer = Consumer({**SOON, **CONSUMER, **_servers(options), "group.id": options.group, "on_commit": on_commit})
    newest = [0.0] * options.partitions
    consumer.subscribe([options.topic], on_assign=lambda *_: assigned.set())
    try:
        while not stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                _received(message, newest, events)
            if assigned.is_set() and committer.is_due(time.monotonic()):
                try:
                    consumer.commit(asynchronous=True)
                    committer.requested()
                except KafkaException as error:
                    on_commit(error.args[0], [])
    finally:
        consumer.close()


def _received(message: Message, newest: list[float], events: Events) -> None:
    """Write the event of a record that is seen for the first time: a group may get some again after a rebalance."""
    value, partition = message.value(), message.partition()
    if not isinstance(value, bytes) or partition is None or len(value) != RECORD_BYTES or partition >= len(newest):
        return  # of what the topic was filled with
    (due,) = DUE.unpack_from(value)
    if due > newest[partition]:
        newest[partition] = due
        events.add(CONSUMED, partition, due, time.monotonic())


def _servers(options: argparse.Namespace) -> dict[str, str | int]:
    return {"bootstrap.servers": options.bootstrap, "socket.timeout.ms": options.timeout_ms}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both clients until SIGTERM, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream_client", description="A steady stream of records.")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True, help="partitions 0 to N-1 get records")
    parser.add_argument("--every-ms", type=float, default=20.0, help="between two records of a partition")
    parser.add_argument("--timeout-ms", type=int, default=2000, help="socket.timeout.ms of both clients")
    parser.add_argument("--group", default="watchers")
    parser.add_argument("--events", type=Path, required=True)
    options = parser.parse_args(arguments)
    stopping, consuming_ends, assigned = threading.Event(), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with options.events.open("ab") as file:
        events = Events(file)
        consumer = threading.Thread(target=consume, args=(options, events, assigned, consuming_ends), name="consumer")
        consumer.start()
        try:
            if not assigned.wait(FIRST_ASSIGNMENT_S):
                raise TimeoutError(f"the group got no partitions in {FIRST_ASSIGNMENT_S:.0f} s")
            refused = produce(options, events, stopping)
        finally:
            consuming_ends.set()
            consumer.join()
    if refused:
        print(f"{refused} records were refused or never acknowledged", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
