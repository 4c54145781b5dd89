"""aiokafka: a client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    ClientError,
    Driver,
    GroupState,
    Message,
    Rebalance,
    Record,
    is_shared,
    next_offsets,
)

POLL_MS = 50
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
T = TypeVar("T")


class Aio(Driver):
    name = "aiokafka"
    assignors = tuple(ASSIGNORS)
    cannot_send = frozenset({"null message"})
    lacks = {"delete_group": "aiokafka's admin client cannot delete groups"}  # noqa: RUF012 - the base declares it

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        async def create() -> None:
            async with self._admin() as admin:
                response = await admin.create_topics([NewTopic(topic, partitions, 1)])
                _require_no_error((error, message) for _, error, message, *_ in response.topic_errors)

        _run(create())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            async with self._admin() as admin:
                response = await admin.delete_topics([topic])
                _require_no_error((error, name) for name, error, *_ in response.topic_error_codes)

        _run(delete())

    def partitions(self, topic: str) -> int:
        async def count() -> int:
            async with self._admin() as admin:
                if topic not in await admin.list_topics():
                    return 0
                (described,) = await admin.describe_topics([topic])
                return len(described["partitions"])

        return _run(count())

    # --- data ---

    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        async def produce() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=is_idempotent,
                acks="all",
                linger_ms=20,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        key=each.key,
                        value=each.value,
                        headers=list(each.headers),
                        partition=each.partition,
                        timestamp_ms=each.timestamp,
                    )
                    for each in messages
                ]
                await asyncio.gather(*sent)
            finally:
                await producer.stop()

        _run(produce())

    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        async def consume() -> list[Record]:
            records: list[Record] = []
            async with self._consumer(group=group) as consumer:
                consumer.subscribe(list(topics))
                while len(records) < count:
                    found = await consumer.getmany(timeout_ms=POLL_MS, max_records=count - len(records))
                    records.extend(_record(each) for batch in found.values() for each in batch)
                await consumer.commit(
                    {TopicPartition(*place): offset for place, offset in next_offsets(records).items()}
                )
            return records

        return _run(consume())

    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        async def find() -> dict[int, int]:
            async with self._consumer(topic) as consumer:
                places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
                found = await consumer.offsets_for_times(dict.fromkeys(places, timestamp))
                return {
                    place.partition: -1 if response is None else response.offset for place, response in found.items()
                }

        return _run(find())

    def first_offsets(self, topic: str) -> dict[int, int]:
        async def find() -> dict[int, int]:
            async with self._consumer(topic) as consumer:
                places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)]
                found = await consumer.beginning_offsets(places)
                return {place.partition: offset for place, offset in found.items()}

        return _run(find())

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        async def delete() -> None:
            async with self._admin() as admin:
                await admin.delete_records(
                    {TopicPartition(topic, place): RecordsToDelete(offset) for place, offset in before.items()}
                )

        _run(delete())

    # --- groups ---

    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        everything = frozenset(range(self.partitions(topic)))

        async def rebalance() -> Rebalance:
            settings = {"partition_assignment_strategy": [ASSIGNORS[assignor]]}
            async with self._consumer(topic, group=group, **settings) as first:
                await _poll(first, until=lambda: _assigned(first) == everything)
                alone = _assigned(first)
                async with self._consumer(topic, group=group, **settings) as second:

                    def is_balanced() -> bool:
                        return is_shared(_assigned(first), _assigned(second), everything)

                    await asyncio.gather(_poll(first, until=is_balanced), _poll(second, until=is_balanced))
                    both = _assigned(first), _assigned(second)
                    await first.stop()
                    await _poll(second, until=lambda: _assigned(second) == everything)
                    return Rebalance(alone, *both, _assigned(second))

        return _run(rebalance())

    def groups(self) -> set[str]:
        async def find() -> set[str]:
            async with self._admin() as admin:
                return {name for name, _ in await admin.list_consumer_groups()}

        return _run(find())

    def describe_group(self, group: str) -> GroupState:
        async def describe() -> GroupState:
            async with self._admin() as admin:
                (response,) = await admin.describe_consumer_groups([group])
                ((error, name, state, _, _, members, *_),) = response.groups
                _require_no_error([(error, name)])
                return GroupState(state, len(members))

        return _run(describe())

    def delete_group(self, group: str) -> None:
        raise ClientError(self.lacks["delete_group"])

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    @asynccontextmanager
    async def _consumer(self, *topics: str, group: str | None = None, **settings: Any) -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            **settings,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _run(operation: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(OPERATION_TIMEOUT_S):
            return await operation

    return asyncio.run(bounded())


async def _poll(consumer: Any, *, until: Callable[[], bool]) -> None:
    while not until():
        await consumer.getmany(timeout_ms=POLL_MS)


def _assigned(consumer: Any) -> frozenset[int]:
    return frozenset(place.partition for place in consumer.assignment())


def _require_no_error(answers: Any) -> None:
    failed = [response for response in answers if response[0] != 0]
    if failed:
        raise ClientError(f"error codes {failed}")


def _record(found: Any) -> Record:
    headers = tuple((name, value) for name, value in found.headers)
    return Record(found.topic, found.offset, Message(found.partition, found.key, found.value, headers, found.timestamp))
