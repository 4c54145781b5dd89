"""Requests behind a parked request: they are closed with their connection once others wait for their memory."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.logging.fields import fields_of
from bmq.core.net.client_progress import LITTLE_BYTES, ClientProgress
from bmq.core.net.request_budget import STUCK_S
from tests.unit.core.net.world import Peer, World, frame, turn

LIMIT = 1 << 20


def parked(world: World, number: int, behind: int, size: int = 50_000) -> Peer:
    """Return a client whose first request gets no response, with requests of ``behind`` bytes behind it."""
    world.script.later(number)
    peer = world.peer()
    peer.send(frame(number))
    for each in range(behind // size):
        peer.send(frame(number + 1 + each, size=size))
    return peer


async def test_connections_that_keep_requests_behind_a_parked_one_do_not_shut_the_port(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(queued_max_request_bytes=LIMIT)
    idle = parked(world, 9_000, 0)
    small = parked(world, 9_100, LITTLE_BYTES // 2)
    hogs: list[Peer] = []
    while not world.listener.budget.is_shut:
        hogs.append(parked(world, 100 * len(hogs), 4 * LITTLE_BYTES))
    late = world.peer()
    late.send(frame(5_000))
    assert late.answers() == []
    await asyncio.sleep(2 * STUCK_S)
    assert late.answers() == [5_000]
    assert [each.is_gone for each in hogs] == [True] * len(hogs)
    assert (idle.is_gone, small.is_gone) == (False, False)
    assert world.metrics.connections_stuck_closed == len(hogs)
    lines = [each for each in caplog.records if each.message == "closing a connection: it keeps others waiting"]
    why = "others wait for queued.max.request.bytes, and it keeps its requests' bytes"
    assert {fields_of(each)["error"] for each in lines} == {why}
    world.script.respond(9_000)
    await turn()
    assert idle.answers() == [9_000]
    world.listener.close()


@pytest.mark.parametrize("moments", [False, True], ids=["shut", "opens for moments"])
async def test_requests_that_go_on_behind_slow_ones_keep_their_connection(moments: bool) -> None:
    """Take 20 s for each of many requests: none of them is parked for STUCK_S."""
    world = World(queued_max_request_bytes=LIMIT)
    other = world.peer()
    slow = parked(world, 100, 6 * LITTLE_BYTES, size=LITTLE_BYTES)
    world.script.later(*range(101, 107))
    for number in range(100, 106):
        world.script.later(number + 1_000)
        other.send(frame(number + 1_000, size=LIMIT))
        assert world.listener.budget.is_shut
        for second in range(20):
            await asyncio.sleep(1)
            if moments and second == 10:
                world.script.respond(number + 1_000)
                await turn()
        world.script.respond(number)
        if not moments:
            world.script.respond(number + 1_000)
        await turn()
    assert not slow.is_gone
    assert slow.answers() == list(range(100, 106))
    world.listener.close()


async def test_produces_that_storage_takes_slowly_keep_their_connection() -> None:
    world = World(queued_max_request_bytes=LIMIT)
    world.script.later(*range(1, 9))
    peer = world.peer()
    for number in range(1, 9):
        peer.send(frame(number, key=0, size=2 * LITTLE_BYTES))
    assert world.listener.budget.is_shut
    await asyncio.sleep(4 * STUCK_S)
    assert not peer.is_gone
    world.listener.close()


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        ([(0, 1, LITTLE_BYTES + 1), (STUCK_S, 1, LITTLE_BYTES + 1)], True),
        ([(0, 1, LITTLE_BYTES + 1), (STUCK_S - 1, 1, LITTLE_BYTES + 1)], False),
        ([(0, 1, LITTLE_BYTES), (STUCK_S, 1, LITTLE_BYTES)], False),
        ([(0, 1, LITTLE_BYTES), (STUCK_S, 1, LITTLE_BYTES + 1)], False),
        ([(0, 1, LITTLE_BYTES + 1), (20, 2, LITTLE_BYTES + 1), (STUCK_S, 2, LITTLE_BYTES + 1)], False),
        ([(0, 1, LITTLE_BYTES + 1), (20, 1, LITTLE_BYTES), (STUCK_S, 1, LITTLE_BYTES + 1)], False),
        ([(0, 1, LITTLE_BYTES + 1), (20, 1, 2 * LITTLE_BYTES), (STUCK_S, 1, LITTLE_BYTES + 1)], True),
    ],
    ids=["kept", "not yet", "little", "more came late", "went on", "was little", "more came"],
)
def test_the_verdict_about_requests_that_wait(looks: list[tuple[float, int, int]], verdict: bool) -> None:
    progress = ClientProgress()
    progress.opened(0.0)
    for now, begun, waiting in looks:
        progress.looked_at(now, begun, waiting)
    assert progress.is_held_up(looks[-1][0]) is verdict
