"""The listener of partitions notifies the process's fetches, and the logs of shards that it owns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.server.roles.flush_listeners import FetchAndShardListener
from bmq.server.roles.local_shard_log import LocalShardLogs
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


class RecordingLogs:
    """`LocalShardLogs` as far as the listener calls it."""

    def __init__(self) -> None:
        self.calls: list[PartitionKey] = []

    def ended(self, key: PartitionKey) -> None:
        self.calls.append(key)


def notify_all(listener: FetchAndShardListener) -> None:
    listener.opened(KEY, 3, 4, 5)
    listener.flushed(KEY, (), 6)
    listener.log_start_moved(KEY, 5)
    listener.changed(KEY)
    listener.closed(KEY)


def test_fetches_are_notified_of_everything_and_shard_logs_of_the_end() -> None:
    fetches, logs = RecordingFetches(), RecordingLogs()
    listener = FetchAndShardListener(fetches, cast(LocalShardLogs, logs))
    notify_all(listener)
    assert fetches.calls == ALL
    assert logs.calls == [KEY]
