"""Producers with acks=0 that send, flush and close at once: all of their records are accepted, as at Kafka."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import new_name

pytestmark = pytest.mark.clients

COUNT = 3_000
"""Records, each in a request of its own, as far as the client can: more than a connection begins in one turn."""
VALUES = [b"%d" % number for number in range(COUNT)]


def by_librdkafka(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 0, "batch.num.messages": 1, "linger.ms": 0})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def by_kcat(bootstrap: str, topic: str) -> None:
    options = ("-X", "acks=0", "-X", "batch.num.messages=1")
    command = ("kcat", "-P", "-b", bootstrap, "-t", topic, *options)
    subprocess.run(command, input=b"\n".join(VALUES) + b"\n", check=True, timeout=60)


def by_kafka_python(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks=0, batch_size=1, enable_idempotence=False)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()


def by_aiokafka(bootstrap: str, topic: str) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks=0, max_batch_size=100) as producer:
            for value in VALUES:
                await producer.send(topic, value)
            await producer.flush()

    asyncio.run(send())


@pytest.mark.parametrize("produce", [by_librdkafka, by_kcat, by_kafka_python, by_aiokafka])
def test_all_records_are_there_after_the_close(endpoint: Endpoint, produce: object) -> None:
    driver = Confluent(endpoint.bootstrap)
    topic = new_name("acks-0")
    driver.create_topic(topic, 1)
    produce(endpoint.bootstrap, topic)  # type: ignore[operator]
    found = driver.consume([topic], new_name("group"), COUNT)
    driver.close()
    assert [each.message.value for each in found] == VALUES
