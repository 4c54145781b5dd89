"""What the planner is given, and what it returns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from bmq.controller.planning.idle_partitions import IdlePartitions
from bmq.controller.planning.partition_table import PartitionTable
from bmq.core.model import PartitionKey

UNDER_WAY_MAX = 64
"""Moves of drain and balance under way at once: a hand-over is some tens of milliseconds of a broker's flushes, and
what is under way does not acknowledge meanwhile."""
COOL_DOWN_S = 60.0
"""A partition that balance has moved stays that long: its clients have just found it again."""
WHOLE: Final = 10**12
"""The scores of all brokers together."""
SHARDS = uuid.UUID(int=0)
"""The shards of coordinators are planned as partitions of this topic, which is none."""


class Broker(NamedTuple):
    """A living one."""

    incarnation: str
    zone: str = ""
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerView:
    """``owners`` has every partition that there is, "" for those without an owner, and their traffic.  An owner that
    is not among ``brokers`` is dead.

    ``unreachable``: how many of the ``proxies`` cannot reach a broker.  ``stalled``: brokers that do not serve.
    ``resting``: those that serve again, and are not to be given anything yet.  ``moved_at``: when balance moved a
    partition last.  ``under_way``: moves that are not finished.  ``is_balancing`` is what the last plan said.
    ``idle``: what an earlier plan found of partitions at rest, which this one need not search for.
    """

    brokers: Sequence[Broker]
    owners: PartitionTable
    unreachable: Mapping[str, int] = field(default_factory=dict)
    proxies: int = 0
    stalled: Set[str] = frozenset()
    resting: Set[str] = frozenset()
    moved_at: Mapping[PartitionKey, float] = field(default_factory=dict)
    under_way: int = 0
    is_balancing: bool = False
    idle: IdlePartitions = field(default_factory=IdlePartitions, compare=False)

    def may_balance(self, key: PartitionKey, now: float) -> bool:
        """Whether balance did not move it lately."""
        moved_at = self.moved_at.get(key)
        return moved_at is None or now - moved_at >= COOL_DOWN_S


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
    key: PartitionKey
    source: str
    target: str
    why: Why


class Moves(NamedTuple):
    """``is_balancing``: balance has more to do, and goes on down to ``STOP``."""

    moves: Sequence[Move]
    is_balancing: bool
