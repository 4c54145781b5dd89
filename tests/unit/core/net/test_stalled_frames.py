"""Clients that begin a request and do not go on: when they are closed, and what they hold until then."""

from __future__ import annotations

import asyncio

from bmq.core.net.request_budget import LEAST_RATE, STALL_S, STUCK_S
from tests.unit.core.net.world import World, frame

TICK_S = STUCK_S / 4
"""Time between two looks of a listener without a bound of idle time."""
KB = 1 << 10


def crowded(part: int) -> World:
    """Return a world in which two parts of this size close the gate of frames."""
    return World(queued_max_request_bytes=2 * part, connections_max_idle_ms=-1)


async def test_a_client_that_sends_slowly_is_closed_after_ten_seconds_at_the_next_look() -> None:
    part = int(LEAST_RATE * STALL_S / 2)
    world = crowded(part)
    peers = [world.peer() for _ in range(2)]
    for peer in peers:
        peer.send(frame(1, size=4 * part)[:part])
    assert world.listener.budget.is_crowded
    await asyncio.sleep(STALL_S - 0.1)
    assert not any(peer.is_gone for peer in peers)
    await asyncio.sleep(TICK_S + 0.2)
    assert any(peer.is_gone for peer in peers)


async def test_a_client_that_sends_much_at_once_is_closed_one_measurement_later() -> None:
    """The burst makes its first measurement fast; the next one has nothing, and begins with the look of the first."""
    part = int(LEAST_RATE * (STALL_S + TICK_S) * 2)
    world = crowded(part)
    peers = [world.peer() for _ in range(2)]
    for peer in peers:
        peer.send(frame(1, size=4 * part)[:part])
    assert world.listener.budget.is_crowded
    await asyncio.sleep(STALL_S + TICK_S)
    assert not any(peer.is_gone for peer in peers)
    await asyncio.sleep(STALL_S + TICK_S)
    assert any(peer.is_gone for peer in peers)


async def test_each_connection_holds_what_one_read_brings_beyond_the_bound_of_all() -> None:
    """Parts are counted after the read: those that may finish their frames at once all bring one read more."""
    limit, part, read, count = 8 << 20, 500 * KB, 256 * KB, 64
    world = World(queued_max_request_bytes=limit, connections_max_idle_ms=-1)
    peers = [world.peer(piece=read) for _ in range(count)]
    for peer in peers:
        peer.send(frame(1, size=part + KB)[:part])
    held = world.metrics.request_bytes_held
    assert limit * 5 // 4 < held <= limit * 5 // 4 + count * read
    assert held < count * part
