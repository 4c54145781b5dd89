"""The changes after which balancing waits."""

from __future__ import annotations

import uuid

from bmq.controller.planning.planner_view import COOL_DOWN_S, SETTLE_S
from bmq.controller.planning.recent_changes import RecentChanges
from bmq.core.model import PartitionKey

TOPIC = uuid.UUID(int=1)
KEY = PartitionKey(TOPIC, 0)


def changed() -> RecentChanges:
    recent = RecentChanges()
    recent.moved_at[KEY] = recent.arrived_at["a"] = recent.created_at[TOPIC] = 100.0
    return recent


def test_each_change_is_forgotten_in_its_time() -> None:
    recent = changed()
    recent.forget_old(100.0 + min(COOL_DOWN_S, SETTLE_S))
    assert (set(recent.moved_at), set(recent.arrived_at), set(recent.created_at)) == ({KEY}, {"a"}, {TOPIC})
    recent.forget_old(100.0 + SETTLE_S + 1)
    assert not recent.arrived_at
    assert not recent.created_at
    recent.forget_old(100.0 + COOL_DOWN_S + 1)
    assert not recent.moved_at
    assert not recent


def test_a_kind_of_change_alone_counts() -> None:
    for each in ("moved_at", "arrived_at", "created_at"):
        recent = changed()
        kept = getattr(recent, each).copy()
        recent.clear()
        assert not recent
        getattr(recent, each).update(kept)
        assert recent
