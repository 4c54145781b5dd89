"""aiokafka with transactions.

aiokafka commits offsets by the group's name alone, without a generation (before KIP-447), so the loop assigns its
partitions itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from tests.integration.clients.drivers.base import OPERATION_TIMEOUT_S, ClientError
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
T = TypeVar("T")


async def _call(action: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(OPERATION_TIMEOUT_S):
            return await action
    except (ProducerFenced, InvalidProducerEpoch) as error:
        raise Fenced(repr(error)) from None
    except KafkaError as error:
        raise ClientError(repr(error)) from None


class AioTransactor(Transactor):
    """A transactional producer of aiokafka, in a loop of its own."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._runner = asyncio.Runner()
        self.producer = self._run(lambda: _started(bootstrap, transactional_id, timeout_ms))

    def _run(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._runner.run(_call(action()))

    def begin(self) -> None:
        self._run(self.producer.begin_transaction)

    def send(self, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
        async def send() -> None:
            sent = [
                await self.producer.send(topic, value, partition=partition)
                for partition, each in values.items()
                for value in each
            ]
            await asyncio.gather(*sent)

        self._run(send)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        self._run(lambda: self.producer.send_offsets_to_transaction(wanted, group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction)

    def abort(self) -> None:
        self._run(self.producer.abort_transaction)

    def close(self) -> None:
        self._run(self.producer.stop)
        self._runner.close()


async def _started(bootstrap: str, transactional_id: str, timeout_ms: int) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, linger_ms=5
    )
    await producer.start()
    return producer


class AioTransactional(Transactional):
    name = "aiokafka"

    def transactor(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> AioTransactor:
        return AioTransactor(self.bootstrap, transactional_id, timeout_ms)

    def _consumer(self, group: str | None, *, is_committed: bool) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if is_committed else "read_uncommitted",
        )

    def read(self, topic: str, partitions: int, *, is_committed: bool) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}

        async def read() -> None:
            ended: set[int] = set()
            consumer = self._consumer(None, is_committed=is_committed)
            await consumer.start()
            try:
                consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
                while len(ended) < partitions:
                    for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                        values = [record.value for record in records]
                        found[place.partition] += [value for value in values if value != SENTINEL]
                        if SENTINEL in values:
                            ended.add(place.partition)
            finally:
                await consumer.stop()

        asyncio.run(_call(read()))
        return found

    def transform(self, loop: Loop) -> int:
        async def transform() -> int:
            producer = await _started(self.bootstrap, loop.transactional_id, TIMEOUT_MS)
            consumer = self._consumer(loop.group, is_committed=True)
            await consumer.start()
            consumer.assign([TopicPartition(loop.source, partition) for partition in range(loop.partitions)])
            offsets: dict[TopicPartition, int] = {}
            number = committed = 0
            try:
                while sum(offsets.values()) < loop.count:
                    found = await consumer.getmany(timeout_ms=POLL_MS, max_records=loop.batch)
                    if not found:
                        continue
                    number += 1
                    await _send(producer, loop, found)
                    if number % ABORT_EVERY == 0:
                        await producer.abort_transaction()
                        for place, records in found.items():
                            consumer.seek(place, records[0].offset)
                    else:
                        await producer.commit_transaction()
                        committed += 1
                        offsets |= {place: records[-1].offset + 1 for place, records in found.items()}
            finally:
                await consumer.stop()
                await producer.stop()
            return committed

        return asyncio.run(_call(transform()))


async def _send(
    producer: AIOKafkaProducer, loop: Loop, found: Mapping[TopicPartition, Sequence[ConsumerRecord[bytes, bytes]]]
) -> None:
    """Begin a transaction with these records, transformed, and their offsets."""
    await producer.begin_transaction()
    for place, records in found.items():
        for each in records:
            value = transformed(each.partition, each.offset, each.value or b"")
            await producer.send(loop.sink, value, partition=place.partition)
    offsets = {place: records[-1].offset + 1 for place, records in found.items()}
    await producer.send_offsets_to_transaction(offsets, loop.group)
