"""kafka-python: a client written in Python alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    STREAM_PAUSE_S,
    ClientError,
    Driver,
    GroupState,
    Message,
    Rebalance,
    Record,
    is_shared,
    next_offsets,
    poll_until,
)

POLL_MS = 50
BOOTSTRAP_TIMEOUT_MS = 6_000
"""How long a client with a log-in tries to get in.  It does not end earlier when it is refused."""
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


class KafkaPython(Driver):
    name = "kafka-python"
    assignors = tuple(ASSIGNORS)
    cannot_send = frozenset({"null header", "null message"})

    def _common(self) -> dict[str, Any]:
        """Return the arguments of every client: the servers, and who it is."""
        common: dict[str, Any] = {"bootstrap_servers": self.bootstrap}
        if self.login is not None:
            common |= self.login.kafka_python()
            common["bootstrap_timeout_ms"] = BOOTSTRAP_TIMEOUT_MS
            if self.login.access_token:
                common["sasl_oauth_token_provider"] = _AccessTokens(Path(self.login.access_token))
        return common

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        with self._admin() as admin:
            admin.create_topics({topic: {"num_partitions": partitions}})

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topics([topic])

    def partitions(self, topic: str) -> int:
        with self._admin() as admin:
            if topic not in admin.list_topics():
                return 0
            (described,) = admin.describe_topics([topic])
            return len(described["partitions"])

    # --- data ---

    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        producer = KafkaProducer(
            **self._common(),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=is_idempotent,
            acks="all",
            linger_ms=20,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    key=each.key,
                    value=each.value,
                    headers=list(each.headers),
                    partition=each.partition,
                    timestamp_ms=each.timestamp,
                )
                for each in messages
            ]
            producer.flush(timeout=OPERATION_TIMEOUT_S)
            for future in sent:
                future.get(timeout=OPERATION_TIMEOUT_S)
        finally:
            producer.close(timeout=OPERATION_TIMEOUT_S)

    def stream(self, topic: str, seconds: float) -> int:
        producer = KafkaProducer(**self._common(), acks="all")
        sent = 0
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                producer.send(topic, b"%d" % sent, partition=0).get(OPERATION_TIMEOUT_S)
                sent += 1
                time.sleep(STREAM_PAUSE_S)
        finally:
            producer.close(timeout=OPERATION_TIMEOUT_S)
        return sent

    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        records: list[Record] = []
        with self._consumer(group=group) as consumer:
            subscribe(consumer, topics)

            def poll() -> bool:
                found = consumer.poll(timeout_ms=POLL_MS, max_records=count - len(records))
                records.extend(_record(each) for batch in found.values() for each in batch)
                return len(records) >= count

            poll_until(poll, lambda: f"{len(records)} of {count} records")
            consumer.commit(
                {
                    TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
                    for place, offset in next_offsets(records).items()
                }
            )
        return records

    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        with self._consumer() as consumer:
            places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
            found = consumer.offsets_for_times(dict.fromkeys(places, timestamp))
        return {place.partition: -1 if response is None else response.offset for place, response in found.items()}

    def first_offsets(self, topic: str) -> dict[int, int]:
        with self._consumer() as consumer:
            places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
            return {place.partition: offset for place, offset in consumer.beginning_offsets(places).items()}

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        with self._admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): offset for partition, offset in before.items()})

    # --- groups ---

    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        settings = {"partition_assignment_strategy": [ASSIGNORS[assignor]]}
        everything = frozenset(range(self.partitions(topic)))
        with self._consumer(group=group, **settings) as first, self._consumer(group=group, **settings) as second:
            # Each member needs a thread: a join blocks its poll until the other has come to join as well.
            with _Polling(first, topic) as one:
                one.wait(lambda: one.assigned == everything)
                alone = one.assigned
                with _Polling(second, topic) as two:
                    two.wait(lambda: is_shared(one.assigned, two.assigned, everything))
                    both = one.assigned, two.assigned
                    one.leave()
                    two.wait(lambda: two.assigned == everything)
                    return Rebalance(alone, *both, two.assigned)

    def groups(self) -> set[str]:
        with self._admin() as admin:
            return {group["group_id"] for group in admin.list_groups()}

    def describe_group(self, group: str) -> GroupState:
        with self._admin() as admin:
            found = admin.describe_groups([group])[group]
            return GroupState(found["group_state"], len(found["members"]))

    def delete_group(self, group: str) -> None:
        with self._admin() as admin:
            failed = {group: error for group, error in admin.delete_groups([group]).items() if error != "OK"}
        if failed:
            raise ClientError(str(failed))

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(**self._common())
        try:
            yield admin
        finally:
            admin.close()

    @contextmanager
    def _consumer(self, *, group: str | None = None, **settings: Any) -> Iterator[Any]:
        consumer = KafkaConsumer(
            **self._common(),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **settings,
        )
        try:
            yield consumer
        finally:
            consumer.close()


class _AccessTokens(AbstractTokenProvider):  # type: ignore[misc]
    """The token that a file has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def token(self) -> str:
        return self._file.read_text()


class _Polling:
    """A member of a group in a thread of its own; only that thread touches the consumer, until it has ended."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self.assigned: frozenset[int] = frozenset()
        self._consumer = consumer
        self._topic = topic
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Polling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def leave(self) -> None:
        self.__exit__()
        self._consumer.close()

    def wait(self, condition: Callable[[], bool]) -> None:
        def step() -> bool:
            if self._error is not None:
                raise self._error
            return condition() or self._ending.wait(POLL_MS / 1000)

        poll_until(step, lambda: self.assigned)

    def _run(self) -> None:
        try:
            subscribe(self._consumer, [self._topic])
            while not self._ending.is_set():
                self._consumer.poll(timeout_ms=POLL_MS)
                self.assigned = frozenset(place.partition for place in self._consumer.assignment())
        except Exception as error:  # noqa: BLE001 - raised again in the test's thread
            self._error = error


def subscribe(consumer: Any, topics: Sequence[str]) -> None:
    """Subscribe, and learn the topics' partitions before the first poll joins the group.

    Otherwise kafka-python 3.0 can elect this member leader and assign nothing for want of metadata.  The metadata that
    come then can be lost in two ways, with Apache Kafka as well; the group stays without an assignment in both:

    * They come before the SyncGroup response: kafka-python sees no change any more.
    * They cause another join, and a poll ends between its JoinGroup and its SyncGroup response: kafka-python forgets
      the join, sends no heartbeats, and its session ends.
    """
    consumer.subscribe(list(topics))
    poll_until(lambda: all(consumer.partitions_for_topic(topic) for topic in topics), lambda: topics)


def _record(found: Any) -> Record:
    return Record(
        found.topic,
        found.offset,
        Message(found.partition, found.key, found.value, tuple(found.headers), found.timestamp),
    )
