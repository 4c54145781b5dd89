"""The coordinator role: what it returns right after a standstill of its process."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.offsets.committed import Offsets
from tests.unit.server.queries.console_node import node_with


async def test_the_lag_has_no_offsets_from_a_standstill_to_the_doubt_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count of the lag may run before the beat: the timers and sockets of a standstill are ready in one turn."""
    loaded, doubts = Offsets(), list[str]()
    monkeypatch.setattr(Coordinator, "offsets", lambda self: [loaded])
    monkeypatch.setattr(Coordinator, "doubt", lambda self: doubts.append("doubt"))
    async with node_with("coordinator", starts=False) as node:
        assert node.coordinator is not None
        standstill = node.joined.standstill
        assert node.coordinator.offsets() == [loaded]
        standstill.stop()
        await asyncio.sleep(60)  # without a beat
        standstill.deadline = standstill.now() - 1
        assert (node.coordinator.offsets(), doubts) == ([], [])
        await asyncio.sleep(0)
        assert (node.coordinator.offsets(), doubts) == ([loaded], ["doubt"])
