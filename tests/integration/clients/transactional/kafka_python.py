"""kafka-python with transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    ClientError,
    poll_until,
)
from tests.integration.clients.drivers.kafka_python import subscribe
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

POLL_MS = 50


def _call(action: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except (ProducerFencedError, InvalidProducerEpochError) as error:
        raise Fenced(repr(error)) from None
    except KafkaError as error:
        raise ClientError(repr(error)) from None


class KafkaPythonTransactor(Transactor):
    """A transactional producer of kafka-python."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms,
            linger_ms=5,
        )  # fmt: skip
        _call(self.producer.init_transactions)

    def begin(self) -> None:
        _call(self.producer.begin_transaction)

    def send(self, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
        sent = [
            _call(lambda p=partition, v=value: self.producer.send(topic, v, partition=p))
            for partition, each in values.items()
            for value in each
        ]
        for each in sent:
            _call(each.get, OPERATION_TIMEOUT_S)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        _call(self.producer.send_offsets_to_transaction, _offsets(topic, offsets), group)

    def commit(self) -> None:
        _call(self.producer.commit_transaction)

    def abort(self) -> None:
        _call(self.producer.abort_transaction)

    def close(self) -> None:
        self.producer.close(timeout=OPERATION_TIMEOUT_S)


def _offsets(topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()
    }


class KafkaPythonTransactional(Transactional):
    name = "kafka-python"

    def transactor(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> KafkaPythonTransactor:
        return KafkaPythonTransactor(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, group: str | None, *, is_committed: bool) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if is_committed else "read_uncommitted",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )

    def read(self, topic: str, partitions: int, *, is_committed: bool) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        ended: set[int] = set()
        consumer = self._consumer(None, is_committed=is_committed)
        consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])

        def step() -> bool:
            for place, records in consumer.poll(timeout_ms=POLL_MS).items():
                values = [record.value for record in records]
                found[place.partition] += [value for value in values if value != SENTINEL]
                if SENTINEL in values:
                    ended.add(place.partition)
            return len(ended) == partitions

        try:
            poll_until(step, lambda: f"the end of {topic}: {sorted(ended)}")
        finally:
            consumer.close()
        return found

    def transform(self, loop: Loop) -> int:
        transactor = self.transactor(loop.transactional_id)
        consumer = self._consumer(loop.group, is_committed=True)
        subscribe(consumer, [loop.source])
        next_offsets: dict[int, int] = {}
        number = committed = 0

        def step() -> bool:
            nonlocal number, committed
            found = consumer.poll(timeout_ms=POLL_MS, max_records=loop.batch)
            if found:
                number += 1
                transactor.begin()
                for place, records in found.items():
                    for each in records:
                        value = transformed(each.partition, each.offset, each.value)
                        transactor.producer.send(loop.sink, value, partition=place.partition)
                offsets = {place.partition: records[-1].offset + 1 for place, records in found.items()}
                wanted, metadata = _offsets(loop.source, offsets), consumer.group_metadata()
                _call(transactor.producer.send_offsets_to_transaction, wanted, metadata)
                if number % ABORT_EVERY == 0:
                    transactor.abort()
                    for place, records in found.items():
                        consumer.seek(place, records[0].offset)
                else:
                    transactor.commit()
                    committed += 1
                    next_offsets.update(offsets)
            return sum(next_offsets.values()) >= loop.count

        try:
            poll_until(step, lambda: f"{loop}: {next_offsets}", progress=lambda: sum(next_offsets.values()))
        finally:
            consumer.close()
            transactor.close()
        return committed
