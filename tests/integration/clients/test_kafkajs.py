"""kafkajs through the story of all clients."""

import pytest

from tests.integration.clients.drivers.program import KafkaJs
from tests.integration.clients.story import Story

pytestmark = pytest.mark.clients


class TestKafkaJs(Story):
    kind = KafkaJs
