"""confluent-kafka: librdkafka from Python."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

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
from tests.integration.clients.drivers.login import Login

POLL_S = 0.05
ACCESS_TOKEN_S = 600.0
REFUSED = re.compile("code=_AUTHENTICATION|SSL alert")


class Confluent(Driver):
    name = "confluent"
    assignors = ("range", "roundrobin", "cooperative-sticky")

    def __init__(self, bootstrap: str, login: Login | None = None) -> None:
        super().__init__(bootstrap, login)
        self._errors: list[str] = []
        self._admin = AdminClient(self._common() | {"log_level": 0})  # it outlives the server at the end

    def _common(self) -> dict[str, Any]:
        """Return the settings of every client: the servers, and who it is."""
        common: dict[str, Any] = {"bootstrap.servers": self.bootstrap}
        if self.login is not None:
            common |= self.login.librdkafka()
            common |= {"log_level": 0, "error_cb": lambda error: self._errors.append(repr(error))}
            if self.login.access_token:
                common["oauth_cb"] = self._read_access_token
        return common

    def _read_access_token(self, _: str) -> tuple[str, float]:
        assert self.login is not None
        return Path(self.login.access_token).read_text(), time.time() + ACCESS_TOKEN_S

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        _results(self._admin.create_topics([NewTopic(topic, partitions, -1)]))

    def delete_topic(self, topic: str) -> None:
        _results(self._admin.delete_topics([topic]))

    def partitions(self, topic: str) -> int:
        topics = self._admin.list_topics(timeout=OPERATION_TIMEOUT_S).topics
        return len(topics[topic].partitions) if topic in topics else 0

    # --- data ---

    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        producer = Producer(
            self._common()
            | {
                "compression.type": codec,
                "enable.idempotence": is_idempotent,
                "acks": "all",
                "linger.ms": 20,
            }
        )
        errors: list[object] = []
        for each in messages:
            producer.produce(
                topic,
                key=each.key,
                value=each.value,
                headers=list(each.headers),
                partition=each.partition,
                timestamp=each.timestamp,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        remaining = self._flush(producer)
        if remaining or errors:
            raise ClientError(f"{remaining} messages not delivered in time, errors {errors} {self._errors}")

    def _flush(self, producer: Producer) -> int:
        """Return how many messages are left, in the end or once the server does not believe who it is.

        librdkafka goes on to try for as long as a message lives: the application learns of it by its call-back.
        """
        deadline = time.monotonic() + OPERATION_TIMEOUT_S
        while remaining := producer.flush(POLL_S):
            if time.monotonic() > deadline or any(REFUSED.search(each) for each in self._errors):
                producer.purge()
                break
        return remaining

    def stream(self, topic: str, seconds: float) -> int:
        errors: list[object] = []
        producer = Producer(self._common() | {"acks": "all"})
        end = time.monotonic() + seconds
        sent = 0
        while time.monotonic() < end:
            producer.produce(
                topic, b"%d" % sent, partition=0, on_delivery=lambda error, _: errors.append(error) if error else None
            )
            sent += 1
            producer.poll(STREAM_PAUSE_S)
        remaining = producer.flush(OPERATION_TIMEOUT_S)
        if remaining or errors:
            raise ClientError(f"{remaining} messages not delivered in time, errors {errors} {self._errors}")
        return sent

    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        consumer = self._consumer(group)
        records: list[Record] = []

        def poll() -> bool:
            for message in consumer.consume(count - len(records), POLL_S):
                if message.error():
                    raise ClientError(str(message.error()))
                records.append(_record(message))
            return len(records) >= count

        try:
            consumer.subscribe(list(topics))
            poll_until(poll, lambda: f"{len(records)} of {count} records")
            offsets = [TopicPartition(*place, offset) for place, offset in next_offsets(records).items()]
            for committed in consumer.commit(offsets=offsets, asynchronous=False):
                if committed.error:
                    raise ClientError(str(committed.error))
        finally:
            consumer.close()
        return records

    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        return self._offsets(topic, OffsetSpec.for_timestamp(timestamp))

    def first_offsets(self, topic: str) -> dict[int, int]:
        return self._offsets(topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        wanted = {TopicPartition(topic, partition): spec for partition in range(self.partitions(topic))}
        found = _results(self._admin.list_offsets(wanted))
        return {place.partition: info.offset for place, info in found.items()}

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        _results(self._admin.delete_records([TopicPartition(topic, *place) for place in before.items()]))

    # --- groups ---

    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        everything = frozenset(range(self.partitions(topic)))
        settings = {"partition.assignment.strategy": assignor}
        first, second = self._consumer(group, **settings), self._consumer(group, **settings)
        members = [first]

        def wait(condition: Callable[[], bool]) -> None:
            def step() -> bool:
                for member in members:
                    member.poll(POLL_S)
                return condition()

            poll_until(step, lambda: [_assigned(member) for member in members])

        try:
            first.subscribe([topic])
            wait(lambda: _assigned(first) == everything)
            alone = _assigned(first)
            second.subscribe([topic])
            members.append(second)
            wait(lambda: is_shared(_assigned(first), _assigned(second), everything))
            both = _assigned(first), _assigned(second)
            members.remove(first)
            first.close()
            wait(lambda: _assigned(second) == everything)
            return Rebalance(alone, *both, _assigned(second))
        finally:
            for member in members:
                member.close()

    def groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(OPERATION_TIMEOUT_S)
        if listed.errors:
            raise ClientError(str(listed.errors))
        return {group.group_id for group in listed.valid}

    def describe_group(self, group: str) -> GroupState:
        found = _results(self._admin.describe_consumer_groups([group]))[group]
        return GroupState(found.state.name.title(), len(found.members))

    def delete_group(self, group: str) -> None:
        _results(self._admin.delete_consumer_groups([group]))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets by partition, from the admin client."""
        found = _results(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))[group]
        return {each.partition: each.offset for each in found.topic_partitions if each.topic == topic}

    def _consumer(self, group: str, **settings: str) -> Consumer:
        return Consumer(
            self._common()
            | {
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                **settings,
            }
        )


def _assigned(consumer: Consumer) -> frozenset[int]:
    return frozenset(each.partition for each in consumer.assignment())


def _record(message: Any) -> Record:
    headers = tuple((name, value) for name, value in message.headers() or ())
    content = Message(message.partition(), message.key(), message.value(), headers, message.timestamp()[1])
    return Record(message.topic(), message.offset(), content)


def _results(futures: Mapping[Any, Future[Any]]) -> dict[Any, Any]:
    return {key: future.result(OPERATION_TIMEOUT_S) for key, future in futures.items()}
