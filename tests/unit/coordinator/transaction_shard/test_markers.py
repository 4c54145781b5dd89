"""The sender of markers, with transactions of very many partitions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest

from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.key_bounds import KeyBounds
from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.coordinator.transaction.records import StoredTransaction, TopicPartitions
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.call_room import CallRoom
from bmq.coordinator.transaction_shard.markers import MarkerSender
from bmq.coordinator.transaction_shard.parts import TransactionParts
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.control import TransactionMarker
from bmq.meta.security.client_quotas import MAX_TRANSACTIONAL_IDS, NoBounds
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.harness.fakes import FakeCatalog
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.coordinator.fakes import MemoryLogs, settings

pytestmark = pytest.mark.slow
PARTITIONS = 100_000


class Sender:
    """A sender whose partitions take each marker at once."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.taken: list[PartitionKey] = []
        self.done = asyncio.Event()
        context = ShardContext(
            id=ShardId(TRANSACTIONS, 0), ownership=1, settings=settings(), clock=LoopClock(), logs=MemoryLogs(),
            catalog=FakeCatalog(), loads=asyncio.Semaphore(), spawn=self._spawn,
        )  # fmt: skip
        parts = TransactionParts(
            bounds=KeyBounds(NoBounds(), OwnedKeys(list, list, 1.0), MAX_TRANSACTIONAL_IDS, key="id", remedy="wait"),
            producer_ids=self._next_id, write_markers=self._write, room=CallRoom(),
        )  # fmt: skip
        self.markers = MarkerSender(context, parts, done=lambda _: self.done.set(), confirm=self._confirm)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def _next_id(self) -> int:
        raise AssertionError("a sender of markers needs no producer id")

    async def _write(self, marker: TransactionMarker, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, ErrorCode]:
        self.taken += keys
        return dict.fromkeys(keys, ErrorCode.NONE)

    async def _confirm(self) -> None:
        """Find that this process is still the owner."""


def prepared(topics: int) -> StoredTransaction:
    each = tuple(range(PARTITIONS // topics))
    partitions = tuple(TopicPartitions(f"t{number}", uuid.UUID(int=number + 1), each) for number in range(topics))
    return StoredTransaction(1, 1, 60_000, TransactionState.PREPARE_COMMIT, partitions)


@pytest.mark.parametrize("topics", [1, 10_000])
async def test_markers_of_very_many_partitions_are_sent_without_a_stop(topics: int) -> None:
    sender, value = Sender(), prepared(topics)
    with loop_stops() as stops:
        sender.markers.begin("id", value)
        assert not sender.markers.endings["id"].is_complete
        await sender.done.wait()
        await asyncio.gather(*sender.tasks)
    assert len(sender.taken) == len(set(sender.taken)) == PARTITIONS
    assert not sender.markers.endings
    assert is_short(stops.longest_s, 0.020), stops.longest_s


async def test_a_sender_that_closes_while_it_looks_for_partitions_sends_nothing() -> None:
    sender = Sender()
    sender.markers.begin("id", prepared(1))
    sender.markers.close()
    await asyncio.gather(*sender.tasks)
    assert not sender.taken
