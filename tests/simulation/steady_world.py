"""One server under a light load that does not change, on a storage and a store that count their calls.

No setting keeps anything for longer than a minute, and the caches are small: after three minutes a process holds as
much as it ever will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from bmq.coordinator.settings import CoordinatorSettings
from bmq.meta.kv import Commit, Compare, Write
from bmq.meta.kv_memory import MemoryStore
from bmq.proxy.routing import moved_partitions
from bmq.storage.memory import MemoryStorage
from tests.harness.ageing import Ageing
from tests.simulation.kafka_world import CONFIG, KafkaWorld

T = TypeVar("T")
JOURNAL_BYTES = 8_000
"""Size of a journal at which the next one is begun."""
SNAPSHOT_BYTES = 4_000
"""Bytes of a shard's log after which it takes a snapshot, and drops what is older."""
MOVED_S = 60.0
"""How long a proxy remembers that a partition has left this process."""
STEADY = replace(
    CONFIG,
    cache_bytes=256 << 10,
    metrics_topics_max=10,
    log_retention_ms=60_000,
    log_roll_ms=30_000,
    log_segment_delete_delay_ms=5_000,
    producer_id_expiration_ms=60_000,
    offsets_retention_minutes=1,
    offsets_retention_check_interval_ms=20_000,
    transaction_state_log_num_partitions=2,
    transactional_id_expiration_ms=60_000,
    transaction_remove_expired_interval_ms=20_000,
)
HISTORY_REVISIONS = 16
"""What the store keeps for watches; by default it is more than a test writes."""
WORLD = ("bmq.storage.memory", "bmq.meta.kv_memory")
"""The modules of the world around the process."""


class CountedStore(MemoryStore):
    """A store that counts the calls to it."""

    calls = 0

    def get(self, key: str) -> Any:
        self.calls += 1
        return super().get(key)

    def page(self, prefix: str, after: str, limit: int) -> Any:
        self.calls += 1
        return super().page(prefix, after, limit)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write], now: float) -> Commit:
        self.calls += 1
        return super().commit(compares, writes, now)

    def keep_alive(self, lease: int, now: float) -> float:
        self.calls += 1
        return super().keep_alive(lease, now)


class CountedStorage(MemoryStorage):
    """A storage that counts the calls to its NameNode."""

    calls = 0

    def serve(self, operation: Callable[[], T]) -> T:
        self.calls += 1
        return super().serve(operation)


class SteadyWorld(KafkaWorld):
    """The world of one server, whose ageing is measured."""

    def __init__(self) -> None:
        super().__init__(1, config=STEADY)
        self.storage = self._counted_storage = CountedStorage(self.rng, datanodes=5)
        self._clients: list[asyncio.Task[None]] = []
        self.store = self._counted_store = CountedStore(history=HISTORY_REVISIONS)

    def ageing(self) -> Ageing:
        """Return the meter of this world."""
        costs: Mapping[str, Callable[[], int]] = {
            "calls to storage": lambda: self._counted_storage.calls,
            "calls to the store": lambda: self._counted_store.calls,
        }
        gauges: Mapping[str, Callable[[], int]] = {
            "files": lambda: len(self.storage.namespace.files),
            "bytes of files": lambda: sum(len(file.data) for file in self.storage.namespace.files.values()),
            "open files": lambda: len(self.storage.open_files()),
            "keys of the store": lambda: len(self.store.page("", "", 1 << 30)),
        }
        return Ageing(costs, gauges, spared=WORLD)

    async def ready(self) -> None:
        """Start the server, and wait until it serves."""
        server = self.start()
        while not server.is_ready:
            assert not self.starts_failed, self.starts_failed
            await asyncio.sleep(0.1)
        node = server.node
        assert node.broker is not None
        assert node.traffic is not None
        node.broker.broker.journal._machine.roll_bytes = JOURNAL_BYTES
        server._context.run(node.traffic.start)  # ``server.process`` does so
        self._stop_traffic = node.traffic.stop

    def begin(self, *clients: Coroutine[None, None, None]) -> None:
        """Begin the clients' work; what one raises ends the test."""
        self._clients += [asyncio.create_task(each) for each in clients]

    async def end(self) -> None:
        """End the clients, which look at ``is_over``, and the server."""
        self.is_over = True
        await asyncio.gather(*self._clients)
        self._stop_traffic()
        await self.server.stop()

    def forget_closed(self) -> None:
        """Drop the connections that are closed: a history would look at them."""
        self.server.links = [link for link in self.server.links if link.is_open]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what no setting shortens."""
    of = CoordinatorSettings.of
    monkeypatch.setattr(CoordinatorSettings, "of", lambda config: replace(of(config), snapshot_bytes=SNAPSHOT_BYTES))
    monkeypatch.setattr(moved_partitions, "LASTS_S", MOVED_S)
