"""The changes after which balancing leaves a partition, a broker or a topic alone for a while."""

from __future__ import annotations

import uuid
from typing import TypeVar

from bmq.controller.planning.planner_view import COOL_DOWN_S, SETTLE_S
from bmq.core.model import PartitionKey

_Key = TypeVar("_Key")


class RecentChanges:
    """Monotonic times of recent changes: moves by balancing, arrivals of brokers, creations of topics."""

    __slots__ = ("arrived_at", "created_at", "moved_at")

    def __init__(self) -> None:
        self.moved_at: dict[PartitionKey, float] = {}
        self.arrived_at: dict[str, float] = {}
        self.created_at: dict[uuid.UUID, float] = {}

    def __bool__(self) -> bool:
        return bool(self.moved_at or self.arrived_at or self.created_at)

    def forget_old(self, now: float) -> None:
        """Forget the changes after which balancing need not wait any longer."""
        _forget(self.moved_at, now - COOL_DOWN_S)
        _forget(self.arrived_at, now - SETTLE_S)
        _forget(self.created_at, now - SETTLE_S)

    def clear(self) -> None:
        """Forget all changes: balancing waits for none."""
        self.moved_at.clear()
        self.arrived_at.clear()
        self.created_at.clear()


def _forget(times: dict[_Key, float], before: float) -> None:
    """Remove the keys whose time is before another one."""
    for key in [key for key, at in times.items() if at < before]:
        del times[key]
