"""franz-go through the story of all clients."""

import pytest

from tests.integration.clients.drivers.program import Franz
from tests.integration.clients.story import Story

pytestmark = pytest.mark.clients


class TestFranz(Story):
    kind = Franz
