"""aiokafka through the story of all clients, and its transactions."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.clients.drivers.aio import Aio
from tests.integration.clients.drivers.base import OPERATION_TIMEOUT_S
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import Story, new_name

pytestmark = pytest.mark.clients


class TestAio(Story):
    kind = Aio

    def test_transactions(self, endpoint: Endpoint, topic: str) -> None:
        """Commit a transaction with offsets of a group, and abort another one: a group and readers see the first."""
        asyncio.run(asyncio.wait_for(transactions(endpoint.bootstrap, topic), 3 * OPERATION_TIMEOUT_S))


async def transactions(bootstrap: str, topic: str) -> None:
    group = new_name("group")
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=new_name("id")) as producer:
        for value, offset in ((b"kept", 5), (b"gone", 9)):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, value, partition=0)
            await producer.send_offsets_to_transaction({TopicPartition(topic, 1): offset}, group)
            if value == b"kept":
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, isolation_level="read_committed", enable_auto_commit=False
    )
    async with consumer:
        assert await consumer.committed(TopicPartition(topic, 1)) == 5
    assert await read(bootstrap, topic, "read_committed") == [b"kept"]
    assert await read(bootstrap, topic, "read_uncommitted") == [b"kept", b"gone"]


async def read(bootstrap: str, topic: str, level: str) -> list[bytes | None]:
    """Return the values of partition 0, up to the end at an isolation level."""
    partition, values = TopicPartition(topic, 0), list[bytes | None]()
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=level) as consumer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                values.extend(record.value for record in records)
    return values
