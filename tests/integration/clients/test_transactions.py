"""Each client library with transactions through the story of transactions, at both levels of transaction.version.

At level 2 Java and franz-go use the second part of KIP-890; the other libraries are clients of version 1 at both.
"""

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


class TestConfluentAtLevel1(TransactionStory):
    library = ConfluentTransactional
    level = 1


class TestAioAtLevel1(TransactionStory):
    library = AioTransactional
    level = 1


class TestKafkaPythonAtLevel1(TransactionStory):
    library = KafkaPythonTransactional
    level = 1


class TestJavaAtLevel1(TransactionStory):
    library = JavaTransactional
    level = 1


class TestFranzAtLevel1(TransactionStory):
    library = FranzTransactional
    level = 1
