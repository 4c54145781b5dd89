"""Every client reads what every other client wrote, with each codec."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.clients.drivers.aio import Aio
from tests.integration.clients.drivers.base import Driver, Message
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.drivers.kcat import Kcat
from tests.integration.clients.drivers.program import Franz, Java, KafkaJs, Sarama
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import messages_for, new_name, require_same

pytestmark = pytest.mark.clients

KINDS: tuple[type[Driver], ...] = (Confluent, Kcat, KafkaPython, Aio, Java, Sarama, Franz, KafkaJs)
MESSAGES = 40  # a codec

Written = dict[str, tuple[Driver, list[Message]]]


@pytest.fixture(scope="module")
def drivers(endpoint: Endpoint) -> Iterator[dict[str, Driver]]:
    made = {kind.name: kind(endpoint.bootstrap) for kind in KINDS}
    yield made
    for driver in made.values():
        driver.close()


@pytest.fixture(scope="module")
def written(drivers: dict[str, Driver]) -> Written:
    """One topic of one partition by each client, a stretch of it in each of its codecs."""
    topics: Written = {}
    for driver in drivers.values():
        topic = new_name(f"by-{driver.name}")
        driver.create_topic(topic, 1)
        all_sent: list[Message] = []
        for codec in driver.codecs:
            sent = messages_for(driver, seed=codec, count=MESSAGES, partitions=1)
            driver.produce(topic, sent, codec)
            all_sent += sent
        topics[topic] = driver, all_sent
    return topics


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_reads_all(drivers: dict[str, Driver], written: Written, name: str) -> None:
    """One consumer of all the topics sees each record as it was sent."""
    count = sum(len(sent) for _, sent in written.values())
    started = time.time()
    records = drivers[name].consume(list(written), new_name("cross"), count)
    assert {record.topic for record in records} == set(written)
    for topic, (producer, sent) in written.items():
        found = [record for record in records if record.topic == topic]
        require_same(sent, found, producer, topic)
        assert all(0 < record.message.timestamp <= (started + 60) * 1000 for record in found)
