"""The states of a classic group, and the two settings that shape its moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GroupState(Enum):
    """State of a classic group, by the name that Kafka sends (``ClassicGroupState``)."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


COMES_AFTER = {
    GroupState.EMPTY: {GroupState.PREPARING},
    GroupState.PREPARING: {GroupState.STABLE, GroupState.COMPLETING, GroupState.EMPTY},
    GroupState.COMPLETING: {GroupState.PREPARING},
    GroupState.STABLE: {GroupState.COMPLETING},
    GroupState.DEAD: set(GroupState),
}
"""The states from which each state may be entered."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Kafka's group.initial.rebalance.delay.ms and group.max.size."""

    initial_delay_ms: int = 3_000
    size_max: int = 2_147_483_647
    metadata_bytes_max: int = 64 << 20
    """Most bytes of protocol names and metadata of all members of a group.  The leader gets all metadata in one
    response, and the chosen protocol's must fit into the group's record, which the log's largest batch bounds."""
