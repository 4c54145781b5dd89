"""kafka-python's producer and consumer on a log in memory: the same calls, answers in the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, MessageSizeTooLargeError

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


@dataclass(frozen=True)
class FakeRecord:
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def records_of(key: TopicPartition, first: int, last: int) -> list[FakeRecord]:
    name = "ab"[key.partition]
    return [
        FakeRecord(key.topic, key.partition, offset, 1_000 * offset, b"k%d" % offset, f"{name}{offset}".encode())
        for offset in range(first, last + 1)
    ]


def member_of(*partitions: int, member_id: str = "another") -> dict[str, Any]:
    """Return the description of a group's member that these partitions are assigned to."""
    assigned = [{"topic": "orders", "partitions": list(partitions)}]
    return {"member_id": member_id, "member_assignment": {"assigned_partitions": assigned}}


class FakeFuture:
    def __init__(self, result: Any, *, is_done: bool) -> None:
        self._result = result
        self.is_done = is_done

    def get(self, timeout: float) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class FakeProducer:
    """`failing` is what becomes of records by their value; `answers` is whether results are there at once."""

    def __init__(self, partitions: int = 2, *, answers: bool = False) -> None:
        self.partitions = set(range(partitions))
        self.sent: list[dict[str, Any]] = []
        self.failing: dict[bytes, KafkaError] = {}
        self.too_large: set[bytes] = set()
        self.answers = answers
        self.is_closed = False
        self.configs: dict[str, Any] = {}

    def __call__(self, **configs: Any) -> FakeProducer:
        self.configs = configs
        return self

    def partitions_for(self, topic: str) -> set[int]:
        return self.partitions

    def send(self, topic: str, **record: Any) -> FakeFuture:
        if record["value"] in self.too_large:
            raise MessageSizeTooLargeError("The message is 200 bytes when serialized")
        self.sent.append({"topic": topic, **record})
        partition = record["partition"] or 0
        place = SimpleNamespace(topic=topic, partition=partition, offset=len(self.sent) - 1, timestamp=5)
        return FakeFuture(self.failing.get(record["value"], place), is_done=self.answers)

    def close(self, timeout: float | None = None) -> None:
        self.is_closed = True


OWN_ID = "this-member"


class FakeConsumer:
    """A poll gives up to three records of one partition; `on_poll` is called before each with its number."""

    def __init__(self, logs: Mapping[TopicPartition, list[FakeRecord]]) -> None:
        self.logs = dict(logs)
        self.ends: dict[TopicPartition, int] = {}
        """Where positions jump to once the records are read: behind offsets without records."""
        self.configs: dict[str, Any] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.commit_error: KafkaError | None = None
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.on_poll: Callable[[int], None] = lambda number: None
        self.polls = 0
        self.is_closed = False
        self.listener: Any = None
        self.given: Collection[TopicPartition] = ()
        """What the group gives this member."""

    def __call__(self, **configs: Any) -> FakeConsumer:
        self.configs = configs
        return self

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.positions = dict.fromkeys(partitions, 0)

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def subscribe(self, topics: Sequence[str], listener: Any) -> None:
        self.listener = listener

    def group_metadata(self) -> SimpleNamespace:
        return SimpleNamespace(member_id=OWN_ID)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = offset

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int | None:
        return self.positions[partition]

    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[FakeRecord]]:
        self.polls += 1
        self.on_poll(self.polls)
        if self.listener is not None and self.polls == 1:
            self.positions = {key: self.committed.get(key, 0) for key in self.given}
            self.listener.on_partitions_assigned(self.given)
            return {}
        for key in sorted(self.positions.keys() - self.paused):
            position = self.positions[key]
            found = [each for each in self.logs.get(key, ()) if each.offset >= position][: min(max_records, 3)]
            if found:
                self.positions[key] = found[-1].offset + 1
                return {key: found}
            self.positions[key] = max(position, self.ends.get(key, 0))
        return {}

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.committed.update({key: each.offset for key, each in offsets.items()})

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        assert not autocommit
        self.is_closed = True
