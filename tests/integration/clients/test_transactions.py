"""Each client library with transactions through the story of transactions."""

import pytest

from tests.integration.clients.transaction_story import TransactionStory
from tests.integration.clients.transactional.aio import AioTransactional
from tests.integration.clients.transactional.confluent import ConfluentTransactional
from tests.integration.clients.transactional.kafka_python import KafkaPythonTransactional
from tests.integration.clients.transactional.program import FranzTransactional, JavaTransactional

pytestmark = pytest.mark.clients


class TestConfluent(TransactionStory):
    library = ConfluentTransactional


@pytest.mark.smoke
class TestAio(TransactionStory):
    library = AioTransactional


class TestKafkaPython(TransactionStory):
    library = KafkaPythonTransactional


class TestJava(TransactionStory):
    library = JavaTransactional


class TestFranz(TransactionStory):
    library = FranzTransactional
