"""The listener of partitions notifies the process's fetches, and the fence of shard logs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from bmq.broker.shard_log_fence import ShardFence
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.server.roles.flush_listeners import FetchAndShardListener
from bmq.storage.aborted import StableMove

KEY = PartitionKey(uuid.UUID(int=1), 2)
ALL = [
    ("opened", KEY, 3, 4, 5),
    ("flushed", KEY, (), 6),
    ("log_start_moved", KEY, 5),
    ("changed", KEY),
    ("closed", KEY),
]


class RecordingFetches:
    """``endpoint.partitions.FlushListener`` that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self.calls.append(("opened", key, epoch, log_start, high_watermark))

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        self.calls.append(("flushed", key, batches, high_watermark))

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self.calls.append(("log_start_moved", key, log_start))

    def changed(self, key: PartitionKey) -> None:
        self.calls.append(("changed", key))

    def closed(self, key: PartitionKey) -> None:
        self.calls.append(("closed", key))


def notify_all(listener: FetchAndShardListener) -> None:
    listener.opened(KEY, 3, 4, 5)
    listener.flushed(KEY, (), 6)
    listener.log_start_moved(KEY, 5)
    listener.changed(KEY)
    listener.closed(KEY)


def test_fetches_are_notified_of_everything_and_the_fence_of_the_end() -> None:
    fetches, fence, ended = RecordingFetches(), ShardFence(), []
    fence.open(KEY, 3, 1, object(), lambda: ended.append(KEY))
    notify_all(FetchAndShardListener(fetches, fence))
    assert fetches.calls == ALL
    assert (ended, len(fence)) == ([KEY], 0)
