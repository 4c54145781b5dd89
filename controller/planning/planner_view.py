"""The planner's input and result."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from bmq.controller.planning.balance_state import AT_REST, BalanceState
from bmq.controller.planning.idle_partitions import IdlePartitions
from bmq.controller.planning.partition_table import PartitionTable
from bmq.core.model import PartitionKey
from bmq.meta.cluster.assignment import count_without_owner

PENDING_MOVES_MAX = 64
"""Pending moves of drain and balance at once: a hand-over is some tens of milliseconds of a broker's flushes, and the
partition acknowledges nothing meanwhile."""
COOL_DOWN_S = 600.0
"""Time that a partition stays after balancing has moved it, so that no move is undone soon."""
SETTLE_S = 60.0
"""Time after a topic's creation or a broker's arrival in which balancing leaves both alone: only partitions that have
no owner, or must leave it, move then."""
WHOLE: Final = 10**12
"""The sum of all brokers' scores."""


class PlannerBroker(NamedTuple):
    """A live broker (or coordinator, for shards)."""

    incarnation: str
    zone: str = ""
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    """The state of a cluster as the planner sees it.

    | field | meaning |
    |---|---|
    | ``brokers`` | live brokers; an owner that is not among them is dead |
    | ``owners`` | owner and traffic of every partition, "" for those without an owner |
    | ``unreachable`` | by broker, how many of the ``proxies`` cannot reach it |
    | ``stalled`` | brokers that do not serve |
    | ``resting`` | brokers that serve again, or have joined again, and must not be given anything yet |
    | ``moved_at`` | when balancing last moved a partition |
    | ``pending_moves`` | number of moves that are not finished |
    | ``balance`` | the state of balancing after the last plan |
    | ``knows_loads`` | the leader has asked for loads long enough to know which of them last |
    | ``arrived_at`` | when this leader first saw a broker |
    | ``created_at`` | when this leader saw a topic's creation; not for topics from before its term |
    | ``idle`` | partitions at rest that an earlier plan found, which this one need not search for |
    """

    brokers: Sequence[PlannerBroker]
    owners: PartitionTable
    unreachable: Mapping[str, int] = field(default_factory=dict)
    proxies: int = 0
    stalled: Set[str] = frozenset()
    resting: Set[str] = frozenset()
    moved_at: Mapping[PartitionKey, float] = field(default_factory=dict)
    pending_moves: int = 0
    balance: BalanceState = AT_REST
    knows_loads: bool = True
    arrived_at: Mapping[str, float] = field(default_factory=dict)
    created_at: Mapping[uuid.UUID, float] = field(default_factory=dict)
    idle: IdlePartitions = field(default_factory=IdlePartitions, compare=False)

    def without_owner(self) -> int:
        """Return the number of partitions without a live owner: their owner is "", or is not among ``brokers``."""
        return count_without_owner(
            ((owner, self.owners.count(owner)) for owner in self.owners.owners),
            {broker.incarnation for broker in self.brokers},
        )

    def may_balance(self, key: PartitionKey, now: float) -> bool:
        """Return whether the partition's last move by balancing, and its topic's creation, are long enough ago."""
        moved_at, created_at = self.moved_at.get(key), self.created_at.get(key.topic_id)
        has_cooled = moved_at is None or now - moved_at >= COOL_DOWN_S
        return has_cooled and (created_at is None or now - created_at >= SETTLE_S)

    def is_settled(self, incarnation: str, now: float) -> bool:
        """Return whether this leader has known the broker for ``SETTLE_S``.

        A new leader does not know loads yet, and would move partitions with a load as if they were at rest.
        """
        arrived_at = self.arrived_at.get(incarnation)
        return arrived_at is None or now - arrived_at >= SETTLE_S


class Why(Enum):
    """The reason of a move."""

    UNASSIGNED = "unassigned"
    DEAD = "dead"
    DRAIN = "drain"
    STALLED = "stalled"
    UNREACHABLE = "unreachable"
    BALANCE = "balance"
    ASKED = "asked"


class Move(NamedTuple):
    """A change of a partition's owner from ``source`` ("" for none) to ``target``."""

    key: PartitionKey
    source: str
    target: str
    why: Why


class MovePlan(NamedTuple):
    """A plan, and the state of balancing after it."""

    moves: Sequence[Move]
    balance: BalanceState


def count_unreachable(reports: Mapping[str, Set[str]], proxies: Set[str], brokers: Set[str]) -> dict[str, int]:
    """Return the number of live proxies that report a broker as unreachable, by live broker with a report.

    ``reports``: the unreachable members by proxy; ``proxies``, ``brokers``: the live ones.  With several brokers a
    proxy that reaches none of them is presumed to be cut off itself, and its report is ignored.
    """
    counts: Counter[str] = Counter()
    for proxy, named in reports.items():
        known = named & brokers
        if proxy in proxies and not (known == brokers and len(brokers) > 1):
            counts.update(known)
    return dict(counts)
