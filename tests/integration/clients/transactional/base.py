"""Interface of the story of transactions to a client library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.integration.clients.drivers.base import ClientError

TIMEOUT_MS = 60_000
"""Kafka's default time-out of a transaction."""
SENTINEL = b"end"
"""The value of the last record in each partition: a reader ends there."""
ABORT_EVERY = 3
"""A loop aborts each third transaction, and does its records again."""


class Fenced(ClientError):
    """A newer producer has the transactional id, as the library reports it."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A consume-transform-produce loop, from ``source`` to the same partitions of ``sink``.

    The loop ends once ``count`` records of the source are committed.
    """

    source: str
    sink: str
    group: str
    transactional_id: str
    partitions: int
    count: int
    batch: int
    """The largest number of records in a transaction."""


def transformed(partition: int, offset: int, value: bytes) -> bytes:
    """Return the value in the sink of the record at ``offset`` of the source."""
    return b"%d/%d " % (partition, offset) + value


class Transactor(ABC):
    """A producer of one transactional id, initialized.  Raises Fenced or ClientError from each method."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
        """Send these values to partitions, and wait until they are acknowledged."""

    @abstractmethod
    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Transactional(ABC):
    """A client library with transactions, talking to ``bootstrap``."""

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    """Tests of what the library does not have, with the reason that the skipped test gives."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def close(self) -> None:
        """End what the client holds; the default holds nothing between operations."""
        return

    @abstractmethod
    def transactor(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Transactor: ...

    @abstractmethod
    def read(self, topic: str, partitions: int, *, is_committed: bool) -> dict[int, list[bytes]]:
        """Return the values before the sentinel of each partition, at this isolation level."""

    @abstractmethod
    def transform(self, loop: Loop) -> int:
        """Run the loop to its end, and return how many transactions it committed."""
