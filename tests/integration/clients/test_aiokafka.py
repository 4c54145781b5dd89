"""aiokafka through the story of all clients."""

import pytest

from tests.integration.clients.drivers.aio import Aio
from tests.integration.clients.story import Story

pytestmark = pytest.mark.clients


class TestAio(Story):
    kind = Aio
