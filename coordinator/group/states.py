"""The states of a classic group, and the two settings that shape its moves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


COMES_AFTER = {
    State.EMPTY: {State.PREPARING},
    State.PREPARING: {State.STABLE, State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.PREPARING},
    State.STABLE: {State.COMPLETING},
    State.DEAD: set(State),
}


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Kafka's group.initial.rebalance.delay.ms and group.max.size."""

    initial_delay_ms: int = 3_000
    size_max: int = 2_147_483_647
    metadata_bytes_max: int = 64 << 20
    """Of all members of a group: its leader is sent them in one response, and the chosen protocol's must fit into the
    group's record, which the log's largest batch bounds."""
