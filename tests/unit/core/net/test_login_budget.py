"""Requests before a log-in: bounded among themselves, and in nobody else's way."""

from __future__ import annotations

import asyncio
import random

import pytest

from bmq.core.metrics.counters import PortCounters
from bmq.core.net.login_budget import LIMIT_BYTES, LoginBudget
from bmq.core.net.request_budget import FRAME_BYTES
from tests.unit.core.net.world import PRODUCE, Peer, World, frame, turn

KB, MB = 1 << 10, 1 << 20
TOKEN_MAX = 512 * KB
LOGIN = 77
"""Number of the request that logs in."""


class Budget:
    """A budget of connections that have names."""

    def __init__(self, limit: int) -> None:
        self.held: dict[str, int] = {}
        self.closed: list[str] = []
        self.budget = LoginBudget[str](limit, PortCounters(), self._close)

    def add(self, name: str, count: int) -> None:
        self.held[name] = self.held.get(name, 0) + count
        self.budget.change(name, count, 0, has_completed=False)

    def _close(self, name: str) -> None:
        self.closed.append(name)
        self.add(name, -self.held[name])


def test_the_largest_that_were_held_for_longest_are_closed_until_a_sixteenth_is_free() -> None:
    w = Budget(1_600)
    w.add("old and large", 500)
    w.add("old and small", 50)
    for number in range(10):
        w.add(f"late {number}", 100)
    assert w.closed == []
    w.add("honest", 60)
    assert (w.closed, w.budget.held) == (["old and large"], 1_110)
    assert not w.budget.is_tight


def test_one_connection_alone_may_hold_more_than_the_limit() -> None:
    w = Budget(1_000)
    for _ in range(5):
        w.add("token", 400)
    assert (w.closed, w.budget.held) == ([], 2_000)
    w.add("next", 1)
    assert (w.closed, w.budget.held) == (["token"], 1)


def test_what_is_given_back_counts_no_more() -> None:
    w = Budget(1_000)
    w.add("logged in", 900)
    w.add("logged in", -900)
    w.add("late", 600)
    w.add("logged in", 300)
    w.add("late", 200)
    assert w.closed == ["late"], "the other has begun again"


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_stays_within_the_limit_and_ends_at_nothing(seed: int) -> None:
    rng = random.Random(seed)
    w = Budget(10_000)
    names = [str(number) for number in range(rng.randint(2, 60))]
    for _ in range(2_000):
        name = rng.choice(names)
        held = w.held.get(name, 0)
        w.add(name, -rng.randint(1, held) if held and rng.random() < 0.4 else rng.randint(1, 3_000))
        assert w.budget.held == sum(w.held.values())
        assert w.budget.held <= 10_000 or sum(map(bool, w.held.values())) == 1
    for name, held in w.held.items():
        w.add(name, -held)
    assert (w.budget.held, w.budget._holders, w.budget._metrics.request_bytes_held) == (0, {}, 0)


# ------------------------------------------------------------------------------------------------------ connections


def stranger(world: World, **settings: int) -> Peer:
    """Return a client of a listener that asks for a log-in."""
    peer = world.peer(**settings)
    peer.connection.limit_frames(TOKEN_MAX, "sasl.server.max.receive.size", 8)
    return peer


@pytest.mark.slow
async def test_strangers_that_hold_their_tokens_back_hold_up_no_client() -> None:
    """Parts of tokens are more than all the memory for requests: a client's large produce is served at once."""
    world = World(queued_max_request_bytes=64 * MB, socket_request_max_bytes=16 * MB)
    kept = world.peer(piece=64 * KB)
    strangers = [stranger(world) for _ in range(200)]
    for peer in strangers:
        peer.send(frame(1, size=TOKEN_MAX)[: TOKEN_MAX - 8])
        assert world.listener.login_budget.held <= LIMIT_BYTES
    kept.send(frame(1, key=PRODUCE, size=900 * KB))
    assert kept.answers() == [1]
    honest = stranger(world, piece=100)
    honest.send(frame(5, size=8 * KB))
    assert honest.answers() == [5]
    await turn()
    assert sum(peer.is_gone for peer in strangers) == world.metrics.connections_stuck_closed >= 200 - 33
    assert not world.listener.budget.is_tight
    assert world.listener.budget.held == 0


async def test_a_log_in_moves_the_bytes_to_those_of_clients() -> None:
    world = World()
    budget, before = world.listener.budget, world.listener.login_budget
    script = world.script
    script.later(LOGIN)
    peer = stranger(world)
    behind = frame(2, size=1_000)
    peer.send(frame(LOGIN, size=500) + behind[:600])
    assert (budget.held, before.held) == (0, 500 + FRAME_BYTES + 596)
    peer.connection.unlimit_frames()
    assert (budget.held, before.held) == (500 + FRAME_BYTES + 596, 0)
    script.respond(LOGIN)
    await turn()
    assert budget.held == 596
    peer.send(behind[600:])
    assert (peer.answers(), budget.held, before.held) == ([LOGIN, 2], 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_any_log_ins_keep_both_budgets_exact(seed: int) -> None:
    """Connections send parts of frames, log in, are answered late, and leave, in any order."""
    rng = random.Random(seed)
    world = World(queued_max_request_bytes=4 * MB, socket_request_max_bytes=2 * MB)
    listener, script = world.listener, world.script
    peers: list[Peer] = []
    sizes: dict[Peer, list[bytes]] = {}
    number = 1_000
    for _ in range(600):
        choice = rng.random()
        if choice < 0.15 or not peers:
            peer = stranger(world, piece=rng.choice((1_000, 64 * KB))) if rng.random() < 0.8 else world.peer()
            peers.append(peer)
        else:
            peer = rng.choice(peers)
            if peer.is_gone or peer.connection.is_closed:
                peers.remove(peer)
            elif choice < 0.6:
                if not sizes.get(peer):
                    number += 1
                    if rng.random() < 0.5:
                        script.later(number)
                    data = frame(number, key=rng.choice((PRODUCE, 18)), size=rng.choice((8, 3_000, 400 * KB)))
                    sizes[peer] = [data]
                (data,) = sizes.pop(peer)
                cut = rng.choice((len(data), len(data), rng.randint(1, len(data))))
                peer.send(data[:cut])
                if data[cut:]:
                    sizes[peer] = [data[cut:]]
            elif choice < 0.75:
                peer.connection.unlimit_frames()
            elif choice < 0.85:
                waiting = [n for n in script.begun if isinstance(script.answers.get(n), asyncio.Future)]
                for n in waiting:
                    if not script.answers[n].done():
                        script.respond(n)
            elif choice < 0.9:
                peer.leave()
            else:
                await turn()
        known = [each for each in listener.connections if each.is_known]
        others = [each for each in listener.connections if not each.is_known]
        assert listener.budget.held == sum(each._share.held for each in known)
        assert listener.login_budget.held == sum(each._share.held for each in others)
        assert world.metrics.request_bytes_held == listener.budget.held + listener.login_budget.held
        assert listener.login_budget.held <= 2 * MB + 64 * KB
    for peer in peers:
        peer.leave()
    await turn()
    assert (listener.budget.held, listener.login_budget.held, world.metrics.request_bytes_held) == (0, 0, 0)
    assert not listener.budget._begun
    assert not listener.budget._finishers
    assert not listener.login_budget._holders
