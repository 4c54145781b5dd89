"""confluent-kafka (librdkafka) through the story of all clients, and its transactions."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.integration.clients.drivers.base import OPERATION_TIMEOUT_S
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import Story, new_name

pytestmark = [pytest.mark.clients, pytest.mark.smoke]


class TestConfluent(Story):
    kind = Confluent

    def test_transactions(self, endpoint: Endpoint, topic: str) -> None:
        """Commit a transaction with offsets of a group, and abort another one: a group and readers see the first."""
        common = {"bootstrap.servers": endpoint.bootstrap}
        producer = Producer({**common, "transactional.id": new_name("id")})
        producer.init_transactions(OPERATION_TIMEOUT_S)
        group = Consumer({**common, "group.id": new_name("group")})
        for value, offset in ((b"kept", 5), (b"gone", 9)):
            producer.begin_transaction()
            producer.produce(topic, value=value, partition=0)
            producer.send_offsets_to_transaction(
                [TopicPartition(topic, 1, offset)], group.consumer_group_metadata(), OPERATION_TIMEOUT_S
            )
            producer.flush(OPERATION_TIMEOUT_S)  # an abort leaves out what was not sent yet
            if value == b"kept":
                producer.commit_transaction(OPERATION_TIMEOUT_S)
            else:
                producer.abort_transaction(OPERATION_TIMEOUT_S)
        (committed,) = group.committed([TopicPartition(topic, 1)], OPERATION_TIMEOUT_S)
        assert committed.offset == 5
        group.close()
        assert read(common, topic, "read_committed") == [b"kept"]
        assert read(common, topic, "read_uncommitted") == [b"kept", b"gone"]


def read(common: dict[str, str], topic: str, level: str) -> list[bytes | None]:
    """Return the values of partition 0, up to what is its end at an isolation level."""
    settings = {"group.id": new_name("group"), "isolation.level": level, "enable.partition.eof": True}
    consumer = Consumer({**common, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while True:
        message = consumer.poll(OPERATION_TIMEOUT_S)
        assert message is not None, f"{values}, and no end"
        if message.error():
            consumer.close()
            return values
        values.append(message.value())
