"""confluent-kafka (librdkafka) with transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    ClientError,
    poll_until,
)
from tests.integration.clients.transactional.base import (
    ABORT_EVERY,
    SENTINEL,
    TIMEOUT_MS,
    Fenced,
    Loop,
    Transactional,
    Transactor,
    transformed,
)

POLL_S = 0.05
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


def _call(action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except KafkaException as error:
        raise (Fenced if error.args[0].code() in FENCED else ClientError)(str(error)) from None


class ConfluentTransactor(Transactor):
    """A transactional producer of librdkafka."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.bootstrap = bootstrap
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        _call(self.producer.init_transactions, OPERATION_TIMEOUT_S)

    def begin(self) -> None:
        _call(self.producer.begin_transaction)

    def send(self, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            errors.extend([error] if error is not None else [])

        for partition, each in values.items():
            for value in each:
                _call(lambda p=partition, v=value: self.producer.produce(topic, v, partition=p, on_delivery=delivered))
        left = self.producer.flush(OPERATION_TIMEOUT_S)
        if left or errors:
            raise ClientError(f"{left} records not delivered in time, errors {errors}")

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        try:
            wanted = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
            metadata = consumer.consumer_group_metadata()
            _call(self.producer.send_offsets_to_transaction, wanted, metadata, OPERATION_TIMEOUT_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        _call(self.producer.commit_transaction, OPERATION_TIMEOUT_S)

    def abort(self) -> None:
        _call(self.producer.abort_transaction, OPERATION_TIMEOUT_S)

    def close(self) -> None:
        self.producer.purge()
        with contextlib.suppress(KafkaException):  # a fenced producer repeats its error
            self.producer.flush(0)


class ConfluentTransactional(Transactional):
    name = "confluent"

    def transactor(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> ConfluentTransactor:
        return ConfluentTransactor(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, group: str, *, is_committed: bool) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if is_committed else "read_uncommitted",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "log_level": 0,
            }
        )

    def read(self, topic: str, partitions: int, *, is_committed: bool) -> dict[int, list[bytes]]:
        consumer = self._consumer("reader", is_committed=is_committed)
        found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        ended: set[int] = set()

        def step() -> bool:
            for message in consumer.consume(500, POLL_S):
                partition, value = message.partition(), message.value()
                assert partition is not None
                if message.error() is not None:
                    raise ClientError(str(message.error()))
                if value == SENTINEL:
                    ended.add(partition)
                else:
                    found[partition].append(value or b"")
            return len(ended) == partitions

        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        try:
            poll_until(step, lambda: f"the end of {topic}: {sorted(ended)}")
        finally:
            consumer.close()
        return found

    def transform(self, loop: Loop) -> int:
        transactor = self.transactor(loop.transactional_id)
        consumer = self._consumer(loop.group, is_committed=True)
        consumer.subscribe([loop.source])
        next_offsets: dict[int, int] = {}
        number = committed = 0

        def step() -> bool:
            nonlocal number, committed
            messages = [each for each in consumer.consume(loop.batch, POLL_S) if each.error() is None]
            if messages:
                number += 1
                offsets = self._transaction(transactor, consumer, loop, messages, is_commit=number % ABORT_EVERY != 0)
                next_offsets.update(offsets)
                committed += bool(offsets)
            return sum(next_offsets.values()) >= loop.count

        try:
            poll_until(step, lambda: f"{loop}: {next_offsets}", progress=lambda: sum(next_offsets.values()))
        finally:
            consumer.close()
            transactor.close()
        return committed

    def _transaction(
        self,
        transactor: ConfluentTransactor,
        consumer: Consumer,
        loop: Loop,
        messages: Sequence[Any],
        *,
        is_commit: bool,
    ) -> dict[int, int]:
        """Return the offsets that the transaction committed; after an abort the consumer goes back instead."""
        transactor.begin()
        first: dict[int, int] = {}
        offsets: dict[int, int] = {}
        for each in messages:
            first.setdefault(each.partition(), each.offset())
            offsets[each.partition()] = each.offset() + 1
            value = transformed(each.partition(), each.offset(), each.value())
            transactor.producer.produce(loop.sink, value, partition=each.partition())
        wanted = [TopicPartition(loop.source, partition, offset) for partition, offset in offsets.items()]
        metadata = consumer.consumer_group_metadata()
        _call(transactor.producer.send_offsets_to_transaction, wanted, metadata, OPERATION_TIMEOUT_S)
        if is_commit:
            transactor.commit()
            return offsets
        transactor.producer.flush(OPERATION_TIMEOUT_S)  # else the abort drops the batches that have not been sent
        transactor.abort()
        for partition, offset in first.items():
            consumer.seek(TopicPartition(loop.source, partition, offset))
        return {}
