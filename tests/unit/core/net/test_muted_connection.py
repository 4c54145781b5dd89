"""A muted connection (KIP-219): it reads and begins nothing until its time is over, and costs nobody else anything."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.logging.fields import fields_of
from bmq.core.net.client_progress import LITTLE_BYTES
from bmq.core.net.request_budget import STUCK_S
from tests.unit.core.net.test_client_connection import frames
from tests.unit.core.net.world import FETCH, PRODUCE, World, frame, turn


async def test_a_muted_connection_reads_nothing_until_its_time_is_over() -> None:
    world = World()
    peer, other = world.peer(), world.peer()
    peer.send(frames(1))
    peer.connection.mute(2.0)
    peer.send(frames(2))  # is read before the pause, and waits
    assert peer.is_paused
    peer.send(frames(3))
    other.send(frames(9))
    await asyncio.sleep(1.9)
    assert (peer.answers(), other.answers(), len(peer.unread)) == ([1], [9], len(frames(3)))
    await asyncio.sleep(0.2)
    assert peer.answers() == [1, 2, 3]
    assert not peer.is_paused
    assert world.metrics.request_bytes_held == 0


async def test_what_has_begun_gets_its_response_at_once() -> None:
    world = World()
    world.script.later(1, 2)
    peer = world.peer()
    peer.send(frames(1, 2, key=PRODUCE))
    peer.connection.mute(5.0)
    peer.send(frames(3, key=PRODUCE))
    world.script.respond(1, 2)
    await turn()
    assert (peer.answers(), world.script.begun) == ([1, 2], [1, 2])
    await asyncio.sleep(5.1)
    assert peer.answers() == [1, 2, 3]


async def test_the_longest_mute_counts() -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(3.0)
    peer.connection.mute(1.0)
    peer.send(frames(1))
    await asyncio.sleep(2.0)
    assert peer.answers() == []
    peer.connection.mute(4.0)
    await asyncio.sleep(3.9)
    assert peer.answers() == []
    await asyncio.sleep(0.2)
    assert peer.answers() == [1]


@pytest.mark.parametrize("is_closed_by_client", [False, True])
async def test_a_connection_that_closes_while_it_is_muted_leaves_nothing(is_closed_by_client: bool) -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(3.0)
    peer.send(frames(1))
    if is_closed_by_client:
        peer.leave()
    else:
        peer.connection.close()
    await asyncio.sleep(4.0)
    assert world.script.begun == []
    assert world.metrics.request_bytes_held == 0
    peer.connection.mute(1.0)


async def test_a_drain_answers_what_a_muted_connection_has_sent() -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(100.0)
    peer.send(frames(1))
    peer.connection.drain()
    await turn()
    assert (peer.answers(), peer.is_gone) == ([1], True)


async def test_a_muted_connection_is_closed_if_others_wait_long_for_its_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(queued_max_request_bytes=50_000, socket_request_max_bytes=50_000)
    peer, other = world.peer(), world.peer()
    peer.send(frames(1))
    peer.connection.mute(600.0)
    peer.send(frame(2, size=30_000) + frame(3, size=30_000))  # of one read
    assert world.listener.budget.is_shut
    other.send(frame(8, size=1_000))  # is read before it is known that there is no room
    other.send(frame(9, size=1_000))
    await asyncio.sleep(STUCK_S - 1)
    assert (peer.is_gone, other.answers()) == (False, [8])
    await asyncio.sleep(STUCK_S)
    assert (peer.is_gone, other.answers()) == (True, [8, 9])
    (line,) = (each for each in caplog.records if each.message == "closing a connection: it keeps others waiting")
    why = "others wait for queued.max.request.bytes, and it is over its quota, and keeps its requests' bytes"
    assert fields_of(line)["error"] == why


@pytest.mark.parametrize(
    ("kept", "is_closed"), [(5 << 19, True), (LITTLE_BYTES + 1_000, True), (LITTLE_BYTES - 1_000, False)]
)
@pytest.mark.parametrize("is_parked", [False, True])
async def test_a_muted_connection_keeps_a_large_part_of_the_memory_for_a_while_only(
    kept: int, is_closed: bool, is_parked: bool
) -> None:
    """All but a byte of a large frame has come before the mute, and the gate opens for a moment after each request."""
    limit = 4 << 20
    world = World(queued_max_request_bytes=limit, socket_request_max_bytes=limit)
    world.script.later(1)
    peer, others = world.peer(), [world.peer() for _ in range(9)]
    peer.send(frame(1, key=FETCH) + frame(2, size=kept)[:-1])
    peer.connection.mute(3_600.0)
    if not is_parked:
        world.script.respond(1)
    await turn()
    for second in range(0, int(2 * STUCK_S), 2):
        numbers = range(1_000 + 10 * second, 1_009 + 10 * second)
        world.script.later(*numbers)
        for other, number in zip(others, numbers, strict=True):
            other.send(frame(number, size=limit // 8))
        assert world.listener.budget.is_shut
        await asyncio.sleep(2)
        for _ in range(9):
            world.script.respond(
                *(n for n in numbers if n in world.script.begun and not world.script.answers[n].done())
            )
            await turn()
        assert not world.listener.budget.is_shut
    assert peer.is_gone is is_closed
    assert [each.is_gone for each in others] == [False] * len(others)
    world.listener.close()


async def test_a_connection_that_is_muted_again_and_again_is_not_held_up() -> None:
    """Each mute is short, and its large frame goes on between two."""
    limit, step = 2 << 20, 130_000
    world = World(queued_max_request_bytes=limit, socket_request_max_bytes=limit)
    peer, other = world.peer(), world.peer()
    data = memoryview(frame(1, size=7 * step))
    peer.send(bytes(data[:step]))
    for second in range(0, int(2 * STUCK_S), 2):
        peer.connection.mute(15.0)
        if second % 10 == 0:
            peer.connection.unmute()
            await turn()
            peer.send(bytes(data[step : 2 * step]))
            data = data[step:]
        world.script.later(1_000 + second)
        other.send(frame(1_000 + second, size=limit))
        assert world.listener.budget.is_shut
        await asyncio.sleep(2)
        world.script.respond(1_000 + second)
        await turn()
    assert (peer.is_gone, other.is_gone) == (False, False)
    world.listener.close()


async def test_a_mute_of_a_moment_keeps_a_client_whose_requests_have_waited_for_long() -> None:
    """Few bytes wait behind a parked request for long, then for the mute: the mute's time begins with the mute."""
    limit = 1 << 20
    world = World(queued_max_request_bytes=limit)
    world.script.later(1, 9)
    peer, other = world.peer(), world.peer()
    peer.send(frame(1, key=FETCH) + frame(2, size=LITTLE_BYTES // 2))
    other.send(frame(9, key=PRODUCE, size=limit))
    assert world.listener.budget.is_shut
    await asyncio.sleep(STUCK_S * 3 / 2 - 1)
    peer.connection.mute(3.0)
    world.script.respond(1)
    await asyncio.sleep(2)  # with a look
    assert not peer.is_gone
    await asyncio.sleep(2)
    assert peer.answers() == [1, 2]
    world.listener.close()


async def test_a_mute_ends_early_and_may_be_followed_by_a_shorter_one() -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(60.0)
    peer.send(frames(1))
    peer.connection.unmute()
    assert peer.answers() == []
    await asyncio.sleep(0.01)
    assert peer.answers() == [1]
    peer.connection.mute(60.0)
    peer.send(frames(2))
    peer.connection.unmute()
    peer.connection.mute(2.0)
    await asyncio.sleep(1.9)
    assert peer.answers() == [1]
    await asyncio.sleep(0.2)
    assert peer.answers() == [1, 2]
