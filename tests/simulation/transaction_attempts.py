"""The transactions of a history as their clients know them, and the topics that the transactions read and write."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from bmq.core.errors import ErrorCode

GROUP, INPUT, OUTPUT = "g", "in", "out"
OUTPUTS = 2
SIDE = "side"
"""A topic of one partition that is deleted and created again: some transactions write to it."""
AGAIN = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS})
"""Codes after which a client asks again, besides the retriable codes."""


class Outcome(Enum):
    """The outcome of a transaction, as far as its client knows."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"


@dataclass
class Attempt:
    """One transaction: the records that were acknowledged in it, and the part of the input that it consumes."""

    name: str
    partition: int
    begin: int
    end: int
    outcome: Outcome = Outcome.OPEN
    records: dict[int, list[bytes]] = field(default_factory=dict)
    """By partition of the output."""


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
    late: int = 0
    """Late batches that were refused."""
    refused: list[str] = field(default_factory=list)

    def committed(self, partition: int) -> int:
        """Return the input offset up to which commits were acknowledged."""
        of = self.attempts.values()
        return max((a.end for a in of if a.partition == partition and a.outcome is Outcome.COMMITTED), default=0)

    def may_be_committed(self, partition: int) -> set[int]:
        """Return the input offsets that may be committed by now."""
        asked = (Outcome.COMMITTED, Outcome.COMMITTING)
        return {0, *(a.end for a in self.attempts.values() if a.partition == partition and a.outcome in asked)}
