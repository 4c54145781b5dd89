"""kafka-python through the story of all clients."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.story import Story

pytestmark = pytest.mark.clients


@pytest.fixture(autouse=True)
def abandoned_sockets() -> Iterator[None]:
    """Collect abandoned sockets after each test, without warnings.

    A client that is closed while it connects leaves its socket to the garbage collector, whose warning would otherwise
    fail another test.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class TestKafkaPython(Story):
    kind = KafkaPython
