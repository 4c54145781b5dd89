"""Java kafka-clients through the story of all clients."""

import pytest

from tests.integration.clients.drivers.program import Java
from tests.integration.clients.story import Story, new_name

pytestmark = pytest.mark.clients


class TestJava(Story):
    kind = Java

    def test_static_member(self, driver: Java, topic: str) -> None:
        """A static member that goes away without leaving and comes back in time keeps its partitions, unnoticed."""
        moves = driver.call("static_restart", topic=topic, group=new_name("group"))
        assert moves["before"] == moves["after"]
        assert moves["rebalances"] == 0

    def test_transactions(self, driver: Java, topic: str) -> None:
        """Commit a transaction with offsets of a group, and abort another one: a group and readers see the first."""
        found = driver.call("transactions", topic=topic, group=new_name("group"), id=new_name("id"))
        assert found == {"committed": 5, "read_committed": ["kept"], "read_uncommitted": ["kept", "gone"]}
