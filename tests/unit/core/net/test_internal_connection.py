"""Connections between the cluster's processes (core/net/internal_connection.py), without sockets, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.net.exchanges import UNANSWERED_BYTES_MAX, UNANSWERED_MAX
from bmq.core.net.internal_connection import SHARE_BYTES, SILENCE_S, UnorderedConnection
from bmq.core.net.listener import Listener
from bmq.core.net.request_runner import BEGUN_A_TURN
from tests.unit.core.net.world import Peer, World, frame, turn

pytestmark = pytest.mark.slow

MB = 1 << 20
LIMIT = 16 * MB


class Unordered(World):
    """A world whose listener is a process's internal one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.listener = Listener(self.script, self.config, self.metrics, in_order=False)

    def peer(self, **settings: Any) -> Peer:
        return super().peer(kind=UnorderedConnection, **settings)


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[Unordered]:
    """Yield a listener; once all its connections are closed, check that it holds nothing."""
    world = Unordered(**settings)
    yield world
    world.listener.close()
    await turn()
    assert world.metrics.request_bytes_held == 0
    assert world.metrics.connections == 0


async def test_answers_go_out_as_they_come() -> None:
    async with listening() as world:
        world.script.later(1, 2, 4)
        peer = world.peer()
        peer.send(frame(1) + frame(2) + frame(3) + frame(4))
        assert world.script.begun == [1, 2, 3, 4]
        assert peer.answers() == [3]
        for number, expected in ((4, [3, 4]), (1, [3, 4, 1]), (2, [3, 4, 1, 2])):
            world.script.respond(number)
            await turn()
            assert peer.answers() == expected
        assert world.script.released == [3, 4, 1, 2]


async def test_answers_of_one_turn_go_out_in_one_write() -> None:
    async with listening() as world:
        world.script.later(*range(100))
        peer = world.peer()
        peer.send(b"".join(map(frame, range(100))))
        world.script.respond(*range(99, 0, -1))
        await turn()
        assert peer.answers() == list(range(99, 0, -1))
        assert peer.writes == 1
        world.script.respond(0)
        await turn()
        assert peer.writes == 2


async def test_held_requests_do_not_stop_reading() -> None:
    async with listening() as world:
        count = UNANSWERED_MAX + 10
        world.script.later(*range(count))
        peer = world.peer()
        for number in range(count):
            peer.send(frame(number, size=2 * UNANSWERED_BYTES_MAX // count))
        peer.send(frame(1_000))
        assert peer.answers() == [1_000]
        assert not peer.is_paused
        world.script.respond(*range(count))
        await turn()
        assert len(peer.answers()) == count + 1


async def test_small_requests_of_one_read_begin_in_turns_of_the_loop() -> None:
    """Reading waits until those that were read have begun."""

    async with listening() as world:
        peer, count = world.peer(), 5 * BEGUN_A_TURN
        peer.send(b"".join(map(frame, range(count))))
        assert len(world.script.begun) == BEGUN_A_TURN
        assert peer.is_paused
        while len(world.script.begun) < count:
            begun = len(world.script.begun)
            await asyncio.sleep(0)
            assert 0 < len(world.script.begun) - begun <= BEGUN_A_TURN
        await turn()
        assert len(peer.answers()) == count
        assert not peer.is_paused


async def test_past_the_budget_only_those_wait_that_hold_much() -> None:
    async with listening(queued_max_request_bytes=LIMIT, socket_request_max_bytes=2 * MB) as world:
        large, small = world.peer(), world.peer()
        world.script.later(*range(20), 30)
        small.send(frame(30, size=SHARE_BYTES // 2))
        large.send(b"".join(frame(number, size=MB) for number in range(20)))
        assert large.is_paused
        assert len(world.script.begun) <= 1 + LIMIT // MB + 1
        assert world.metrics.request_bytes_held <= LIMIT + 2 * MB
        small.send(frame(31))
        assert small.answers() == [31]  # a ping, say
        new = world.peer()
        new.send(frame(32))
        assert new.answers() == [32]
        for number in range(20):
            world.script.respond(number)
            await turn()
        assert large.answers() == list(range(20))
        assert not large.is_paused
        world.script.respond(30)
        await turn()


async def test_who_holds_little_again_reads_on_before_the_others() -> None:
    async with listening(queued_max_request_bytes=LIMIT, socket_request_max_bytes=2 * MB) as world:
        one, two = world.peer(), world.peer()
        world.script.later(*range(4), *range(10, 30))
        one.send(b"".join(frame(number, size=MB) for number in range(4)))
        two.send(b"".join(frame(number, size=MB) for number in range(10, 30)))
        one.send(frame(40))
        assert two.is_paused
        assert one.answers() == [40]  # it has read before it could know
        assert one.is_paused
        one.send(frame(41))
        world.script.respond(*range(4))
        await turn()
        assert not one.is_paused
        assert one.answers()[-1] == 41
        assert world.listener.budget.is_shut
        assert two.is_paused


async def test_nothing_begins_while_answers_are_not_read() -> None:
    async with listening() as world:
        world.script.later(1, 2)
        peer = world.peer(room=10)
        peer.send(frame(1) + frame(2))
        world.script.respond(1, size=100)
        await turn()
        assert peer.is_paused
        peer.send(frame(3))
        world.script.respond(2)
        await turn()
        assert world.script.begun == [1, 2]
        assert world.script.released == []
        peer.read(1 << 20)
        await turn()
        assert peer.answers() == [1, 2, 3]
        assert world.script.released == [1, 2, 3]


async def test_a_close_gives_everything_back() -> None:
    async with listening() as world:
        world.script.later(1, 2, 3)
        peer = world.peer(room=10)
        peer.send(frame(1, size=MB) + frame(2) + frame(3))
        world.script.respond(1, size=100)
        await turn()
        world.script.respond(2)
        await turn()
        peer.leave()
        assert world.script.answers[3].cancelled()  # a parked fetch must not linger
        assert sorted(world.script.released) == [1, 2]


async def test_drain_waits_for_what_is_held() -> None:
    async with listening() as world:
        world.script.later(1)
        peer, quiet = world.peer(), world.peer()
        peer.send(frame(1))
        draining = asyncio.create_task(world.listener.drain(60))
        await asyncio.sleep(10)
        assert quiet.is_gone
        assert not peer.is_gone
        world.script.respond(1)
        await draining
        assert peer.answers() == [1]
        assert asyncio.get_running_loop().time() < 11


async def test_silence_ends_a_connection_and_nothing_else_does() -> None:
    async with listening(connections_max_idle_ms=1_000) as world:
        world.script.later(1)
        silent, pinging, reading = world.peer(), world.peer(), world.peer(room=10)
        silent.send(frame(1))  # what it waits for does not keep it
        world.script.later(2)
        reading.send(frame(2))
        world.script.respond(2, size=1_000)
        for number in range(100):
            await asyncio.sleep(SILENCE_S / 30)
            pinging.send(frame(10 + number))
            reading.read(1)
        assert silent.is_gone
        assert not pinging.is_gone
        assert not reading.is_gone
        assert world.metrics.connections_idle_closed == 1


async def test_any_number_of_processes_may_share_a_host() -> None:
    async with listening(max_connections_per_ip=1, max_connections=3) as world:
        peers = [world.peer() for _ in range(5)]
        assert [peer.is_gone for peer in peers] == [False] * 3 + [True] * 2
        await turn()
        assert world.metrics.connections_refused == 2


@pytest.mark.parametrize("seed", range(20))
async def test_every_request_is_answered_once_whatever_happens(seed: int) -> None:
    """Responses in random order, readers that stall, connections that close: each request left gets its response, all
    memory is released."""
    rng = random.Random(seed)

    async with listening(queued_max_request_bytes=8 * MB, socket_request_max_bytes=2 * MB) as world:
        peers = [world.peer(room=rng.choice((50, 1 << 40)), piece=rng.choice((50_000, 1 << 20))) for _ in range(4)]
        numbers = range(120)
        sent: dict[int, Peer] = {}
        world.script.later(*rng.sample(numbers, 80))
        for number in numbers:
            peer = rng.choice(peers)
            if not peer.is_gone:
                sent[number] = peer
                peer.send(frame(number, size=rng.choice((8, 100, MB))))
            _answer_some(world, rng)
            if rng.random() < 0.3:
                await turn(1)
            if rng.random() < 0.02:
                rng.choice(peers).leave()
        left = [peer for peer in peers if not peer.is_gone]
        while any(len(peer.answers()) < sum(each is peer for each in sent.values()) for peer in left):
            _answer_some(world, rng)
            for peer in left:
                peer.read(1 << 10)
            await turn(1)
        for peer in left:
            assert sorted(peer.answers()) == sorted(number for number, each in sent.items() if each is peer)
        assert len(set(world.script.released)) == len(world.script.released)
        answered = [number for peer in left for number in peer.answers()]
        assert set(answered) <= set(world.script.released)


def _answer_some(world: World, rng: random.Random) -> None:
    running = [
        number
        for number in world.script.begun
        if isinstance(future := world.script.answers.get(number), asyncio.Future) and not future.done()
    ]
    world.script.respond(*rng.sample(running, min(len(running), rng.choice((0, 0, 1, 3)))), size=20)
