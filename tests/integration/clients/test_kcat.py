"""kcat through the story of all clients."""

import pytest

from tests.integration.clients.drivers.base import Driver
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.kcat import Kcat
from tests.integration.clients.story import Story, messages_for, new_name, require_offsets_for_time, require_same

pytestmark = pytest.mark.clients


class TestKcat(Story):
    kind = Kcat

    def test_offsets_for_time(self, driver: Driver, topic: str) -> None:
        """Do as the story does, on messages of another client: kcat cannot choose timestamps."""
        writer = Confluent(driver.bootstrap)
        sent = messages_for(writer, seed="times")
        writer.produce(topic, sent, "gzip")
        require_offsets_for_time(driver, topic, sent)

    def test_auto_create(self, driver: Driver) -> None:
        """A topic that nobody made is there once it is produced to: one partition."""
        topic = new_name("auto")
        sent = messages_for(driver, seed="auto", partitions=1)
        driver.produce(topic, sent, "none")
        assert driver.partitions(topic) == 1
        require_same(sent, driver.consume([topic], new_name("group"), len(sent)), driver, topic)
