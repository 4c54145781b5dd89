"""kafka-python through the story of all clients."""

import pytest

from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.story import Story

pytestmark = [pytest.mark.clients, pytest.mark.smoke]


class TestKafkaPython(Story):
    kind = KafkaPython
