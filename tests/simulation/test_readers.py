"""The simulated readers judge for themselves: a leader change is told once with each epoch (KIP-320)."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataResponse

from bmq.core.errors import ErrorCode
from tests.simulation.kafka_clients import Fetcher, Refused
from tests.simulation.kafka_world import Told
from tests.simulation.loop import run

NAMES = {"topic_id": None, "error_code": 0}


class FencingServer:
    """A world of one server: Metadata gives ``epoch``, and each fetch with an epoch below ``current`` is fenced."""

    def __init__(self) -> None:
        self.rng = Random(1)
        self.told = Told()
        self.is_over = False
        self.epoch = self.current = 3
        self.sent: list[int] = []

    def client(self) -> FencingServer:
        return self

    def close(self) -> None:
        """Nothing is open."""

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        if response is MetadataResponse:
            part = SimpleNamespace(partition_index=0, leader_epoch=self.epoch)
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[part], **NAMES)])
        listed = [each.current_leader_epoch for topic in request.topics for each in topic.partitions]
        self.sent += listed
        is_fenced = self.sent[-1] != -1 and self.sent[-1] < self.current
        error = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NONE
        part = SimpleNamespace(partition_index=0, error_code=error, records=None)
        return SimpleNamespace(error_code=0, session_id=7, responses=[SimpleNamespace(partitions=[part])])


def test_a_reader_may_be_fenced_once_with_each_epoch() -> None:
    async def main() -> None:
        server = FencingServer()
        fetcher = Fetcher(server, server, "orders")
        fetcher.version, fetcher.offsets = 12, {0: 0}
        await fetcher.poll()
        for epoch in (4, 5):
            server.current = epoch
            await fetcher.poll()
            server.epoch = epoch
            await fetcher.poll()
            assert server.sent[-1] == epoch
        assert server.told.refused == []
        server.current = 6
        await fetcher.poll()
        with pytest.raises(Refused, match="FENCED_LEADER_EPOCH"):
            await fetcher.poll()
        assert server.told.refused == ["reader of orders-0: fenced again with epoch 5"]
        server.epoch = -1
        await fetcher.poll()
        assert server.sent[-1] == -1
        assert len(server.told.refused) == 1

    run(main())
