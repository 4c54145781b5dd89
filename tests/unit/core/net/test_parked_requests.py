"""Parked requests, and requests behind them: they end with their connection once others wait for their memory."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.logging.fields import fields_of
from bmq.core.net.client_progress import LITTLE_BYTES, ClientProgress
from bmq.core.net.request_budget import STUCK_S
from tests.unit.core.net.world import FETCH, OTHER, PRODUCE, Peer, World, frame, turn

LIMIT = 1 << 20


def parked(world: World, number: int, behind: int, size: int = 50_000, key: int = FETCH) -> Peer:
    """Return a client whose first request gets no response, with requests of ``behind`` bytes behind it."""
    world.script.later(number)
    peer = world.peer()
    peer.send(frame(number, key=key))
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
    """Take 20 s for each of many requests: the process owes this work."""
    world = World(queued_max_request_bytes=LIMIT)
    other = world.peer()
    slow = parked(world, 100, 6 * LITTLE_BYTES, size=LITTLE_BYTES, key=OTHER)
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


async def test_produces_behind_a_request_that_waits_for_slow_storage_keep_their_connection() -> None:
    """The first produce runs, and a request of another kind keeps the produces behind it from being begun."""
    world = World(queued_max_request_bytes=LIMIT)
    world.script.later(1)
    peer = world.peer()
    peer.send(frame(1, key=PRODUCE, size=700_000) + frame(2) + frame(3, key=PRODUCE, size=400_000))
    assert world.listener.budget.is_shut
    await asyncio.sleep(4 * STUCK_S)
    assert not peer.is_gone
    world.script.respond(1)
    await turn()
    assert peer.answers() == [1, 2, 3]
    world.listener.close()


async def test_a_parked_request_does_not_save_a_client_that_does_not_read() -> None:
    """The next fetch is parked in the turn that writes the response before it, and the kernel does not take this."""
    world = World(queued_max_request_bytes=LIMIT)
    hogs: list[Peer] = []
    while not world.listener.budget.is_shut:
        number = 100 * len(hogs)
        hogs.append(world.peer(room=1_000))
        world.script.later(number, number + 1)
        hogs[-1].send(frame(number, key=FETCH) + frame(number + 1, key=FETCH) + frame(number + 2, size=50_000))
        world.script.respond(number, size=2_000)
        await turn()
        assert world.script.begun[-1] == number + 1
    late = world.peer()
    late.send(frame(5_000))
    assert late.answers() == []
    await asyncio.sleep(2 * STUCK_S)
    assert [each.is_gone for each in hogs] == [True] * len(hogs)
    assert late.answers() == [5_000]
    world.listener.close()


def fetches(world: World, count: int) -> Peer:
    """Return a client that sends large fetches, numbered from 1.  None gets a response."""
    world.script.later(*range(1, count + 1))
    peer = world.peer()
    for number in range(1, count + 1):
        peer.send(frame(number, key=FETCH, size=66_000))
    return peer


async def test_fetches_that_are_parked_in_turn_do_not_keep_the_memory() -> None:
    """Park each for less than STUCK_S: the bytes behind them wait for minutes."""
    world = World(queued_max_request_bytes=LIMIT)
    hog, late = fetches(world, 20), world.peer()
    assert world.listener.budget.is_shut
    late.send(frame(5_000))
    await asyncio.sleep(25)
    world.script.respond(1)
    await turn()
    assert (hog.is_gone, late.answers(), world.script.begun[-1]) == (False, [], 2)
    await asyncio.sleep(STUCK_S / 2)
    assert (hog.is_gone, late.answers()) == (True, [5_000])
    world.listener.close()


async def test_work_at_the_moments_of_the_looks_does_not_save_parked_requests() -> None:
    """A request that the process works on runs at each look, and fetches are parked between two looks."""
    world = World(queued_max_request_bytes=LIMIT)
    world.script.later(*range(1, 41))
    hog = world.peer()
    for number in range(1, 41, 2):
        hog.send(frame(number, size=100) + frame(number + 1, key=FETCH, size=66_000))
    assert world.listener.budget.is_shut
    late = world.peer()
    late.send(frame(5_000))
    await asyncio.sleep(STUCK_S / 4 - 0.1)
    for number in range(1, 13, 2):
        await asyncio.sleep(0.2)  # a look is in the middle
        if hog.is_gone:
            break
        world.script.respond(number)
        await asyncio.sleep(STUCK_S / 4 - 0.2)
        assert (world.script.begun[-1], hog.is_gone) == (number + 1, False)
        world.script.respond(number + 1)
    assert (hog.is_gone, late.answers()) == (True, [5_000])
    world.listener.close()


async def test_requests_that_were_parked_before_others_waited_keep_their_connection() -> None:
    """The time behind parked requests counts from the look at which others wait."""
    world = World(queued_max_request_bytes=LIMIT)
    world.script.later(1, 2, 100, 101)
    client, other = world.peer(), world.peer()
    client.send(frame(1, key=FETCH) + frame(2) + b"".join(frame(number, size=66_000) for number in range(3, 6)))
    other.send(frame(100, size=LIMIT))
    assert world.listener.budget.is_shut
    await asyncio.sleep(STUCK_S / 2)
    world.script.respond(100)
    await turn()
    assert not world.listener.budget.is_shut
    await asyncio.sleep(2 * STUCK_S)
    other.send(frame(101, size=LIMIT))
    assert world.listener.budget.is_shut
    await asyncio.sleep(STUCK_S / 2)
    world.script.respond(1)
    await asyncio.sleep(2 * STUCK_S)
    assert (client.is_gone, world.script.begun[-1]) == (False, 2)
    world.listener.close()


def large(world: World, number: int, size: int, key: int = FETCH) -> Peer:
    """Return a client with one request of ``size`` bytes, which gets no response."""
    world.script.later(number)
    peer = world.peer()
    peer.send(frame(number, key=key, size=size))
    return peer


async def test_large_parked_requests_do_not_shut_the_port(caplog: pytest.LogCaptureFixture) -> None:
    """The largest are closed, until the parked requests hold an eighth of the memory at most."""
    world = World(queued_max_request_bytes=LIMIT)
    small, medium = large(world, 1, 1_000), large(world, 2, LIMIT // 10)
    hogs = [large(world, 3, LIMIT // 2), large(world, 4, LIMIT // 4), large(world, 5, LIMIT // 6)]
    assert world.listener.budget.is_shut
    late = world.peer()
    late.send(frame(6))
    await asyncio.sleep(STUCK_S - 1)
    assert late.answers() == []
    assert not any(each.is_gone for each in hogs)
    await asyncio.sleep(STUCK_S)
    assert late.answers() == [6]
    assert [each.is_gone for each in hogs] == [True] * 3
    assert (small.is_gone, medium.is_gone) == (False, False)
    lines = [each for each in caplog.records if each.message == "closing a connection: it keeps others waiting"]
    why = "others wait for queued.max.request.bytes, and it keeps the bytes of a request that waits for other clients"
    assert {fields_of(each)["error"] for each in lines} == {why}
    assert len(lines) == world.metrics.connections_stuck_closed == 3
    world.script.respond(1, 2)
    await turn()
    assert (small.answers(), medium.answers()) == ([1], [2])
    world.listener.close()


@pytest.mark.parametrize("key", [PRODUCE, OTHER])
async def test_large_requests_that_the_broker_works_on_keep_their_connections(key: int) -> None:
    world = World(queued_max_request_bytes=LIMIT)
    peers = [large(world, number, LIMIT // 2, key) for number in (1, 2)]
    assert world.listener.budget.is_shut
    await asyncio.sleep(4 * STUCK_S)
    assert not any(each.is_gone for each in peers)
    world.listener.close()


@pytest.mark.parametrize(("parts", "is_closed"), [((5, 2), (True, False)), ((3, 1), (False, False))])
async def test_parked_requests_keep_a_half_of_the_memory_while_the_gate_opens_for_moments(
    parts: tuple[int, int], is_closed: tuple[bool, bool]
) -> None:
    world = World(queued_max_request_bytes=LIMIT)
    peers = [large(world, number, LIMIT * part // 8 - 1_000) for number, part in enumerate(parts)]
    other = world.peer()
    for number in range(100, 100 + int(2 * STUCK_S), 2):
        world.script.later(number)
        other.send(frame(number, size=LIMIT))
        assert world.listener.budget.is_shut
        await asyncio.sleep(2)
        world.script.respond(number)
        await turn()
        assert not world.listener.budget.is_shut
    assert tuple(each.is_gone for each in peers) == is_closed
    world.listener.close()


async def test_large_requests_that_are_parked_for_seconds_keep_their_connection() -> None:
    """Each of many is parked for 20 s, and the memory is used up all the time."""
    world = World(queued_max_request_bytes=LIMIT)
    busy = large(world, 1, LIMIT // 2, PRODUCE)
    peer = large(world, 100, LIMIT * 5 // 8)
    for number in range(100, 106):
        world.script.later(number + 1)
        peer.send(frame(number + 1, key=FETCH, size=LIMIT * 5 // 8))
        assert world.listener.budget.is_shut
        await asyncio.sleep(20)
        world.script.respond(number)
        await turn()
    assert (peer.is_gone, busy.is_gone) == (False, False)
    assert peer.answers() == list(range(100, 106))
    world.listener.close()


async def test_begun_frames_go_on_beside_a_large_parked_request() -> None:
    """Begun frames and the parked request shut the gate: nobody would be read until the parked one has its response."""
    world = World(queued_max_request_bytes=LIMIT)
    hog = large(world, 1, LIMIT * 3 // 8)
    part, whole = LIMIT // 8, LIMIT // 4
    peers = [world.peer() for _ in range(6)]
    for number, peer in enumerate(peers, 2):
        peer.send(frame(number, size=whole)[:part])
    assert world.listener.budget.is_shut
    for number, peer in enumerate(peers, 2):
        peer.send(frame(number, size=whole)[part : part + 1])  # is read, and then no more
        assert peer.is_paused
        peer.send(frame(number, size=whole)[part + 1 :])
    assert [peer.answers() for peer in peers] == [[]] * 6
    await asyncio.sleep(2 * STUCK_S)
    assert hog.is_gone
    assert [peer.answers() for peer in peers] == [[number] for number in range(2, 8)]
    world.listener.close()


MUCH = LITTLE_BYTES + 1


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        ([(0, MUCH, True), (STUCK_S, MUCH, True)], True),
        ([(0, MUCH, True), (STUCK_S - 1, MUCH, True)], False),
        ([(0, LITTLE_BYTES, True), (STUCK_S, LITTLE_BYTES, True)], False),
        ([(0, LITTLE_BYTES, True), (STUCK_S, MUCH, True)], False),
        ([(0, MUCH, True), (20, LITTLE_BYTES, True), (STUCK_S, MUCH, True), (STUCK_S + 20, MUCH, True)], False),
        ([(0, MUCH, True), (20, 2 * LITTLE_BYTES, True), (STUCK_S, MUCH, True)], True),
        ([(0, MUCH, False), (STUCK_S, MUCH, False)], False),
        ([(0, MUCH, True), (20, MUCH, False), (100, MUCH, True), (109, MUCH, True)], False),
        ([(0, MUCH, True), (20, MUCH, False), (100, MUCH, True), (110, MUCH, True)], True),
    ],
    ids=["kept", "not yet", "little", "more came late", "was little", "more came", "owed", "29 s", "30 s"],
)
def test_the_verdict_about_requests_that_wait(looks: list[tuple[float, int, bool]], verdict: bool) -> None:
    progress = ClientProgress()
    progress.opened(0.0)
    for now, waiting, is_parked in looks:
        progress.looked_at(now, waiting, is_parked=is_parked)
    assert progress.is_held_up(looks[-1][0]) is verdict
