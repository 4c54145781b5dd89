"""Interface of the story to a client library. A driver returns what its library gave it, unchanged.

Every driver uses its library the way an application would: explicit partitions and timestamps when producing, a
subscription with a group when consuming, commits of exactly what was handed over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.integration.clients.drivers.login import Login

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Quick members: a change of the group is known after half a second, and a silent one gone after Kafka's minimum.
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 300
OPERATION_TIMEOUT_S = 40.0
STREAM_PAUSE_S = 0.05

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Message to produce; None is Kafka's null, which differs from empty. ``timestamp`` in ms since the epoch."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


@dataclass(frozen=True, slots=True)
class Record:
    """Message that was consumed, with its place."""

    topic: str
    offset: int
    message: Message


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions of the first member alone, of both, and of the second after the first has left."""

    alone: frozenset[int]
    first: frozenset[int]
    second: frozenset[int]
    left: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupState:
    state: str
    members: int


class ClientError(Exception):
    """The client library, or the program around it, reported this."""


class Driver(ABC):
    """One client library, talking to ``bootstrap``, as the user of ``login`` if there is one."""

    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]] = CODECS
    assignors: ClassVar[tuple[str, ...]]  # Kafka's names of them
    # Operations that the library does not have, with the reason that the skipped test gives.
    lacks: ClassVar[Mapping[str, str]] = {}
    # Among "timestamp", "empty value", "null header", "null message" (neither key nor value).
    cannot_send: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, bootstrap: str, login: Login | None = None) -> None:
        self.bootstrap = bootstrap
        self.login = login

    def close(self) -> None:
        """End what the driver holds; the default holds nothing between operations."""
        return

    # --- topics ---

    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Return how many partitions the topic has; 0 if it does not exist."""

    # --- data ---

    @abstractmethod
    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        """Return when all are acknowledged by all replicas."""

    def stream(self, topic: str, seconds: float) -> int:
        """Produce "0", "1", … to partition 0 with one producer for this long; return how many were acknowledged."""
        raise ClientError(f"the driver of {self.name} has no such operation: {topic} for {seconds} s")

    @abstractmethod
    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        """Join, read ``count`` records from the committed offsets (else the first), commit exactly those, leave."""

    @abstractmethod
    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        """Return the first offset at or after this time by partition, -1 where there is none."""

    @abstractmethod
    def first_offsets(self, topic: str) -> dict[int, int]: ...

    @abstractmethod
    def delete_records(self, topic: str, before: Mapping[int, int]) -> None: ...

    # --- groups ---

    @abstractmethod
    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        """Let two members join one after the other, then the first one leave."""

    @abstractmethod
    def groups(self) -> set[str]: ...

    @abstractmethod
    def describe_group(self, group: str) -> GroupState: ...

    @abstractmethod
    def delete_group(self, group: str) -> None: ...


def poll_until(
    step: Callable[[], bool], what: Callable[[], object], *, progress: Callable[[], object] | None = None
) -> None:
    """Call ``step``, which polls the library and waits in there, until it says that the wait is over.

    Raises ClientError after OPERATION_TIMEOUT_S.  With ``progress`` the time begins again at each new value of it: the
    caller's work has a bound of its own, and a busy machine only takes longer for it.
    """
    deadline, before = time.monotonic() + OPERATION_TIMEOUT_S, progress and progress()
    while not step():
        now, reached = time.monotonic(), progress and progress()
        if reached != before:
            deadline, before = now + OPERATION_TIMEOUT_S, reached
        elif now > deadline:
            raise ClientError(f"not within {OPERATION_TIMEOUT_S:.0f} s: {what()}")


def is_shared(first: frozenset[int], second: frozenset[int], everything: frozenset[int]) -> bool:
    """Return whether both members have a share, and each partition has exactly one of them."""
    return bool(first) and bool(second) and not first & second and first | second == everything


def next_offsets(records: Sequence[Record]) -> dict[tuple[str, int], int]:
    """Return the offsets to commit after these records, by topic and partition."""
    return {(record.topic, record.message.partition): record.offset + 1 for record in records}
