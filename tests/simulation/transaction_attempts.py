"""The transactions of a history as their clients know them, and the topics that the transactions read and write."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from bmq.core.errors import ErrorCode

GROUP, INPUT, OUTPUT = "g", "in", "out"
OUTPUTS = 2
RING = ("ring0", "ring1")
"""Topics of one partition: one application reads the first and writes the second, another the other way round."""
SIDE = "side"
"""A topic of one partition that is deleted and created again: some transactions write to it."""
AGAIN = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS})
"""Codes after which a client asks again, besides the retriable codes."""

Key = tuple[str, int]
"""A topic and a partition."""


def writer_of(value: bytes) -> str:
    """Return the name of the transaction that has written a record: the record's value begins with it."""
    return value.partition(b"|")[0].decode()


class Outcome(Enum):
    """The outcome of a transaction, as far as its client knows."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"


@dataclass(frozen=True)
class Read:
    """A record that a transaction has read."""

    key: Key
    offset: int
    value: bytes


@dataclass
class Attempt:
    """One transaction: the records that were sent in it, in order, and the part of its source that it consumes.

    A client asks for the commit of a transaction only once all records are acknowledged.
    """

    name: str
    source: Key
    begin: int
    end: int
    outcome: Outcome = Outcome.OPEN
    records: dict[Key, list[bytes]] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    """Of applications that read from a topic of the ring."""


class Dead(Exception):
    """The client is fenced, or has died."""


@dataclass
class Claim:
    """One InitProducerId, sent until it is answered.  Without an answer it may still be on its way, and fence later."""

    sent_s: float
    answered_s: float = math.inf
    sends: int = 0
    answers: int = 0


@dataclass
class Applications:
    """All that the clients of a history know."""

    claims: dict[str, list[Claim]] = field(default_factory=lambda: defaultdict(list))
    """By transactional id."""
    switched: int = 0
    """Changes of a client from one version to the other."""
    sides: int = 0
    """Records acknowledged in ``SIDE``."""
    expiration_s: float = math.inf
    """A transactional id without a transaction is forgotten after this, since its last use."""
    expired: int = 0
    """Instances whose transactional id was forgotten while they did nothing."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    """By name, in the order of their beginning."""
    input: dict[int, dict[int, bytes]] = field(default_factory=dict)
    sources: list[Key] = field(default_factory=list)
    """Partitions that applications consume, with offsets in their transactions."""
    outputs: list[Key] = field(default_factory=list)
    """Partitions that only transactions write, but for the ``seeds``."""
    seeds: set[bytes] = field(default_factory=set)
    """Values that were written to the ring without a transaction."""
    acked: dict[Key, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """The value of each acknowledged record, by offset."""
    seen: dict[Key, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By offset of a transaction's record: the lowest end of the log in a response with this record."""
    pipelined: int = 0
    """Batches sent while another batch of the partition was in flight."""
    repeated: int = 0
    """Batches sent again."""
    late: int = 0
    """Late batches that were refused."""
    refused: list[str] = field(default_factory=list)

    def committed(self, source: Key) -> int:
        """Return the offset of a source up to which commits were acknowledged."""
        of = self.attempts.values()
        return max((a.end for a in of if a.source == source and a.outcome is Outcome.COMMITTED), default=0)

    def may_be_committed(self, source: Key) -> set[int]:
        """Return the offsets of a source that may be committed by now."""
        asked = (Outcome.COMMITTED, Outcome.COMMITTING)
        return {0, *(a.end for a in self.attempts.values() if a.source == source and a.outcome in asked)}
