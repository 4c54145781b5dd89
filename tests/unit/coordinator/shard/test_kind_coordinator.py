"""The end of a kind's coordinator: its shards, their background work, then what they use."""

from __future__ import annotations

import pytest

from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.meta.catalog import TRANSACTIONS_TOPIC
from tests.unit.coordinator.cluster_world import View
from tests.unit.coordinator.fakes import MemoryCatalog, MemoryLogs, context_of, settings, topic
from tests.unit.coordinator.shard.kv_kind import KvShards


class NotedShards(KvShards):
    """Shards that note their end, and may fail at it."""

    def __init__(self, error: Exception | None) -> None:
        stored = topic(TRANSACTIONS_TOPIC, 1)
        context = context_of(settings(), MemoryLogs(), MemoryCatalog(stored), View("a"))
        super().__init__(context, stored, lambda shard, ownership: None)
        self.ends: list[str] = []
        self._error = error

    def close(self) -> None:
        super().close()
        self.ends.append("shards")
        if self._error is not None:
            raise self._error

    async def wait_closed(self) -> None:
        await super().wait_closed()
        self.ends.append("their work")

    async def close_parts(self) -> None:
        self.ends.append("their parts")


@pytest.mark.parametrize("error", [None, ValueError("a shard")])
async def test_parts_are_closed_after_the_shards_also_if_these_fail(error: Exception | None) -> None:
    shards = NotedShards(error)
    coordinator = KindCoordinator(shards, shards.close_parts)
    await coordinator.start()
    if error is None:
        await coordinator.close()
    else:
        with pytest.raises(ValueError, match="a shard"):
            await coordinator.close()
    assert shards.ends == ["shards", "their work", "their parts"]


async def test_a_coordinator_may_be_closed_that_was_not_started() -> None:
    shards = NotedShards(None)
    await KindCoordinator(shards).close()
    assert shards.ends == ["shards", "their work"]
