"""The load of bench.soak: a steady producer and consumer, and topics and groups that come and go, a thread each."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from bench import client_load
from bench.deployments import Deployment
from bench.results import latency_metrics

PARTITIONS = 6
STEADY_GROUP = "soak-steady"
GROUPS = 10
"""Groups that consumers join and leave; their names are used again, as an application's are."""
GROUP_RECORDS = 500
TOPIC_RECORDS = 200
FAILURES_MOST = 50
END_TIMEOUT_S = 300.0
CONSUME_TIMEOUT_S = 60.0


class Failures:
    """Failures with the second of the run in which they came; the first ``FAILURES_MOST`` of them."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.texts: list[str] = []

    def note(self, what: str, error: BaseException) -> None:
        """Keep a failure."""
        if len(self.texts) < FAILURES_MOST:
            self.texts.append(f"{what} at {time.monotonic() - self.begun:.0f} s: {error!r}")
            print(self.texts[-1], file=sys.stderr, flush=True)


class Worker:
    """A thread that takes a turn again and again until it is stopped.  A failed turn is noted, and it goes on."""

    def __init__(self, name: str, turn: Callable[[], None], pause_s: float, failures: Failures) -> None:
        self._name = name
        self._turn = turn
        self._pause_s = pause_s
        self._failures = failures
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.turns = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for the end of the turn."""
        self._ending.set()
        self._thread.join(END_TIMEOUT_S)
        if self._thread.is_alive():
            self._failures.note(self._name, TimeoutError("a turn does not end"))

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._turn()
                self.turns += 1
            except Exception as error:  # noqa: BLE001
                self._failures.note(self._name, error)
            self._ending.wait(self._pause_s)


class SteadyProducer:
    """Windows of a steady rate, an open loop: the latencies of each until they are taken."""

    def __init__(self, bootstrap: str, topic: str, *, records_s: int, record_bytes: int, window_s: float) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._records_s = records_s
        self._record_bytes = record_bytes
        self._window_s = window_s
        self._lock = threading.Lock()
        self._latencies: array[float] = array("d")
        self.acknowledged = 0

    def turn(self) -> None:
        """Produce for one window."""
        found = client_load.paced(
            self._bootstrap, self._topic, records_s=self._records_s, seconds=self._window_s,
            record_bytes=self._record_bytes, partitions=PARTITIONS,
        )  # fmt: skip
        with self._lock:
            self._latencies.extend(found)
            self.acknowledged += len(found)

    def take(self) -> dict[str, float]:
        """Return the latencies since the last call, as percentiles."""
        with self._lock:
            found, self._latencies = self._latencies, array("d")
        return latency_metrics(found, "us")


class SteadyConsumer:
    """One member of a group that reads everything, and notices an offset that is missing."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = _consumer(bootstrap, STEADY_GROUP)
        self._topic = topic
        self._consumer.subscribe([topic])
        self.next: dict[int, int] = {}
        """The offset after the last record of each partition."""
        self.consumed = 0
        self._lag = 0

    def turn(self) -> None:
        """Consume what is there.  Raises AssertionError if an offset was passed over, or KafkaException.

        All that came is noted before: a record that was left out would count as missing in the next turn.
        """
        failed: Exception | None = None
        for message in self._consumer.consume(10_000, timeout=0.2):
            error = message.error()
            found = self._note(message) if error is None else KafkaException(error)
            failed = failed or found
        self._lag = self._count_lag()
        if failed is not None:
            raise failed

    def lag(self) -> int:
        """Return how many records were not consumed yet after the last turn, as far as its fetches told."""
        return self._lag

    @property
    def position(self) -> int:
        """The sum of the offsets up to which each partition was consumed."""
        return sum(self.next.values())

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _count_lag(self) -> int:
        """Return the lag by the ends that fetches told: in the consumer's own thread, and without a request."""
        places = [(partition, TopicPartition(self._topic, partition)) for partition in self.next]
        ends = ((partition, self._consumer.get_watermark_offsets(place, cached=True)[1]) for partition, place in places)
        return sum(max(0, end - self.next[partition]) for partition, end in ends)

    def _note(self, message: Message) -> AssertionError | None:
        """Count a record; return the error if offsets before it are missing."""
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        wanted = self.next.get(partition, 0)
        self.next[partition] = max(wanted, offset + 1)
        self.consumed += 1
        return AssertionError(f"partition {partition}: {offset} comes after {wanted - 1}") if offset > wanted else None


class TopicChurn:
    """Topics that are made, written, and deleted."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def turn(self) -> None:
        """Make a topic, produce to it, and delete it."""
        topic = self._deployment.create_topic(PARTITIONS)
        try:
            client_load.produce(
                self._deployment.bootstrap, topic, count=TOPIC_RECORDS, record_bytes=1000, partitions=PARTITIONS
            )
        finally:
            self._deployment.delete_topic(topic)


class GroupChurn:
    """Groups whose only member joins, reads some records, commits, and leaves."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._number = 0

    def turn(self) -> None:
        """Be a member of the next group for a moment.  Raises TimeoutError if it gets no record."""
        self._number += 1
        consumer = _consumer(self._bootstrap, f"soak-group-{self._number % GROUPS}")
        try:
            consumer.subscribe([self._topic])
            seen, end = 0, time.monotonic() + CONSUME_TIMEOUT_S
            while seen < GROUP_RECORDS:
                found = consumer.consume(GROUP_RECORDS, timeout=0.5)
                seen += sum(message.error() is None for message in found)
                if time.monotonic() > end:
                    raise TimeoutError(f"{seen} of {GROUP_RECORDS} records in {CONSUME_TIMEOUT_S:.0f} s")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()


class Load:
    """All parts of the load, as ``running`` yields them."""

    def __init__(self, producer: SteadyProducer, consumer: SteadyConsumer, topics: Worker, groups: Worker) -> None:
        self.producer = producer
        self.consumer = consumer
        self.topics = topics
        self.groups = groups


@contextlib.contextmanager
def running(
    deployment: Deployment, topic: str, *, records_s: int, window_s: float, topics_every_s: float,
    groups_every_s: float, failures: Failures,
) -> Iterator[Load]:  # fmt: skip
    """Start the load, and stop it at the end; then the consumer gets to the end of what was produced."""
    bootstrap = deployment.bootstrap
    producer = SteadyProducer(bootstrap, topic, records_s=records_s, record_bytes=1000, window_s=window_s)
    consumer = SteadyConsumer(bootstrap, topic)
    producing = Worker("produce", producer.turn, 0.0, failures)
    consuming = Worker("consume", consumer.turn, 0.0, failures)
    topics = Worker("topics", TopicChurn(deployment).turn, topics_every_s, failures)
    groups = Worker("groups", GroupChurn(bootstrap, topic).turn, groups_every_s, failures)
    workers = [producing, topics, groups]
    for worker in (*workers, consuming):
        worker.start()
    try:
        yield Load(producer, consumer, topics, groups)
    finally:
        for worker in workers:
            worker.stop()
        _drain(consumer, producer.acknowledged, failures)
        consuming.stop()
        consumer.close()


def _drain(consumer: SteadyConsumer, acknowledged: int, failures: Failures) -> None:
    """Wait until the consumer has as many records as were acknowledged."""
    end = time.monotonic() + CONSUME_TIMEOUT_S
    while (missing := acknowledged - consumer.position) > 0:
        if time.monotonic() > end:
            failures.note("consume to the end", TimeoutError(f"{missing} acknowledged records were not consumed"))
            return
        time.sleep(0.2)


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
        "session.timeout.ms": 10_000, "topic.metadata.refresh.interval.ms": 5000,
    })  # fmt: skip
