"""Deadlines of a shard's groups, beside a plain model."""

from __future__ import annotations

import heapq
import random

import pytest

from bmq.coordinator.group.timers import NEVER, GroupTimers, Timer, TimerKind


@pytest.mark.slow
def test_deadlines_come_in_order_and_only_when_due() -> None:
    """A plain model has the same deadlines; heartbeats only move, so the heap stays within twice the timers."""
    rng = random.Random(5)
    deadlines = GroupTimers()
    timers = [Timer("g", TimerKind.SESSION, str(number)) for number in range(200)]
    now = 0
    for _ in range(20_000):
        timer = rng.choice(timers)
        if rng.random() < 0.2:
            deadlines.cancel(timer)
        else:
            deadlines.set(timer, now + rng.randrange(1, 1_000))
        if rng.random() < 0.05:
            now += rng.randrange(50)
            due = sorted(each.at for each in timers if each.at <= now)
            popped = []
            while (ended := deadlines.pop(now)) is not None:
                assert not ended.is_set
                popped.append(ended)
            assert len(popped) == len(due)
            assert all(each.at > now for each in timers)
        alive = [each.at for each in timers if each.is_set]
        assert deadlines.next() <= min(alive, default=NEVER)
        assert len(deadlines) <= 2 * len(timers) + 128


def test_a_heartbeat_costs_no_heap_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines, timer = GroupTimers(), Timer("g", TimerKind.SESSION)
    deadlines.set(timer, 100)
    monkeypatch.setattr(heapq, "heappush", None)
    for at in range(101, 1_000):
        deadlines.set(timer, at)
    assert len(deadlines) == 1
