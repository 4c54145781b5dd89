"""A kind of shards for tests: values by key, some of them in transactions that end with a marker."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from bmq.coordinator.shard.active import ActiveShard, Loaded
from bmq.coordinator.shard.context import CoordinatorContext, ShardContext
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.shard.shard import Shard
from bmq.meta.catalog import Topic
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId

_MARKER = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1


def marker(*, is_commit: bool) -> KeyValue:
    """Return the control record that ends a transaction, as in Kafka: its version and type are the key."""
    return _MARKER.pack(0, _COMMIT if is_commit else _ABORT), b"\0" * 6


class KvState:
    """Values by key.  Values of a transaction are pending by producer id until its marker."""

    def __init__(self, *, is_by_key: bool = False) -> None:
        self.is_by_key = is_by_key
        self.values: dict[bytes, bytes] = {}
        self.pending: dict[int, dict[bytes, bytes | None]] = {}

    def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> None:
        if producer is None or not (producer.is_transactional or producer.is_control):
            self._set(key, value)
        elif not producer.is_control:
            self.pending.setdefault(producer.producer_id, {})[key] = value
        else:
            ended = self.pending.pop(producer.producer_id, {})
            if _MARKER.unpack(key)[1] == _COMMIT:
                for each, last in ended.items():
                    self._set(each, last)

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def live_records(self) -> Iterator[KeyValue]:
        for key in list(self.values):
            if key in self.values:
                yield key, self.values[key]

    def parts(self) -> list[object]:
        return list(self.values.values())

    @property
    def summary(self) -> str:
        return f"{len(self.values)} values"

    def facts(self) -> tuple[dict[bytes, bytes], dict[int, dict[bytes, bytes | None]]]:
        return dict(self.values), {producer: dict(values) for producer, values in self.pending.items()}


class ActiveKv(ActiveShard[KvState]):
    """A loaded shard: a write goes to the log, and to the state by the function of the replay."""

    async def put(self, records: list[KeyValue], producer: BatchProducer | None = None) -> None:
        """Store records, and wait until they are durable.  Raises RequestError."""
        await self.room()
        durable = self._written(records, "", producer)
        for key, value in records:
            self.state.replay(key, value, producer)
        await self._in_time(durable)


class KvShard(Shard[KvState, ActiveKv]):
    def _new_state(self) -> KvState:
        return KvState()

    def _barrier(self) -> KeyValue:
        return b"barrier", None

    def _activate(self, loaded: Loaded[KvState]) -> ActiveKv:
        return ActiveKv(self.context, loaded)


class KvShards(Shards[ActiveKv]):
    """The shards of a process, as those of transactions."""

    def __init__(self, context: CoordinatorContext, topic: Topic, made: Callable[[ShardId, int], None]) -> None:
        async def ensure() -> Topic:
            return topic

        super().__init__(
            TRANSACTIONS, context, ensure, partitions=topic.partitions,
            expiry_interval_s=context.settings.expiry_interval_s,
        )  # fmt: skip
        self._made = made

    def _new_shard(self, context: ShardContext) -> KvShard:
        self._made(context.id, context.ownership)
        return KvShard(context)
