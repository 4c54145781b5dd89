"""Java kafka-clients through the story of all clients."""

import pytest

from tests.integration.clients.drivers.program import Java
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.story import Story, new_name

pytestmark = pytest.mark.clients


class TestJava(Story):
    kind = Java

    def test_static_member(self, driver: Java, topic: str) -> None:
        """A static member that goes away without leaving and comes back in time keeps its partitions, unnoticed."""
        moves = driver.call("static_restart", topic=topic, group=new_name("group"))
        assert moves["before"] == moves["after"]
        assert moves["rebalances"] == 0

    def test_transactions(self, driver: Java, endpoint: Endpoint) -> None:
        """Ask for transactions, which do not exist: the producer gets an authorization error."""
        if endpoint.target == "kafka":
            pytest.skip("Apache Kafka has transactions")
        assert driver.call("init_transactions") == "TransactionalIdAuthorizationException"
