"""confluent-kafka (librdkafka) through the story of all clients."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.integration.clients.drivers.base import OPERATION_TIMEOUT_S
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import Story

pytestmark = [pytest.mark.clients, pytest.mark.smoke]


class TestConfluent(Story):
    kind = Confluent

    def test_transactions(self, endpoint: Endpoint) -> None:
        """Ask for transactions, which do not exist: the producer gets a fatal error that it must not retry."""
        if endpoint.target == "kafka":
            pytest.skip("Apache Kafka has transactions")
        producer = Producer({"bootstrap.servers": endpoint.bootstrap, "transactional.id": "driver", "log_level": 0})
        with pytest.raises(KafkaException) as caught:
            producer.init_transactions(OPERATION_TIMEOUT_S)
        error = caught.value.args[0]
        assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert error.fatal()
        assert not error.retriable()
