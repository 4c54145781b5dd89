"""sarama through the story of all clients."""

import pytest

from tests.integration.clients.drivers.program import Sarama
from tests.integration.clients.story import Story

pytestmark = pytest.mark.clients


class TestSarama(Story):
    kind = Sarama
