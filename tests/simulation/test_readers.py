"""The simulated readers judge for themselves: Metadata gives no leader epoch, and fetches have none."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from kafka.protocol.metadata import MetadataResponse

from tests.simulation.kafka_clients import Fetcher, look_for_epochs
from tests.simulation.kafka_world import Observed

NAMES = {"topic_id": None, "error_code": 0}


class Server:
    """A world of one server, whose Metadata gives ``epoch``; ``sent`` are the epochs in fetches."""

    def __init__(self) -> None:
        self.rng = Random(1)
        self.observed = Observed()
        self.is_over = False
        self.epoch = -1
        self.sent: list[int] = []

    def client(self) -> Server:
        return self

    def close(self) -> None:
        """Nothing is open."""

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        if response is MetadataResponse:
            part = SimpleNamespace(partition_index=0, leader_epoch=self.epoch)
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[part], **NAMES)])
        self.sent += [each.current_leader_epoch for topic in request.topics for each in topic.partitions]
        part = SimpleNamespace(partition_index=0, error_code=0, records=None)
        return SimpleNamespace(error_code=0, session_id=7, responses=[SimpleNamespace(partitions=[part])])


async def test_an_epoch_in_metadata_is_an_error_and_is_not_sent() -> None:
    server = Server()
    await look_for_epochs(server, "orders")
    assert server.observed.errors == []
    server.epoch = 0
    await look_for_epochs(server, "orders")
    assert server.observed.errors == ["Metadata gave orders-0 leader epoch 0"]
    fetcher = Fetcher(server, server, "orders")
    fetcher.version, fetcher.offsets = 12, {0: 0}
    await fetcher.poll()
    assert server.sent[0] in (-1, 0)
