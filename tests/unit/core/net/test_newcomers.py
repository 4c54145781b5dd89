"""The places of a listener: strangers lose theirs to new connections after a while; clients keep theirs."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from bmq.core.net.admission import Admission
from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.internal_connection import UnorderedConnection
from bmq.core.net.listener import Listener
from bmq.core.net.newcomers import KEPT_S, SAVED_S, SHARE, Newcomers
from bmq.core.net.strangers import Strangers
from bmq.core.security.principal import ANONYMOUS, Principal, user
from bmq.core.security.session import Session
from bmq.proxy.quotas.connection_rates import TURN_S
from tests.harness.log_text import lines
from tests.unit.core.net.test_admission import Bounds, Rates
from tests.unit.core.net.world import Peer, World, frame, turn

USER = user("alice")


def stranger(world: World, host: str = "10.0.0.1", listener: str = "A") -> Peer:
    """Return a client of a listener that asks for a log-in."""

    def begin(gated: Any, *args: Any) -> ClientConnection:
        connection = ClientConnection(gated, None, _gate)
        connection.session = Session(listener=listener, protocol="SASL_PLAINTEXT")
        return connection

    kind: Any = begin
    return Peer(world.listener, host=host, kind=kind)


def _gate(connection: ClientConnection) -> None:
    connection.limit_frames(1_000, "sasl.server.max.receive.size", 8)


def log_in(peer: Peer, principal: Principal = ANONYMOUS) -> None:
    peer.connection.session = replace(peer.connection.session, principal=principal)
    peer.connection.unlimit_frames()
    peer.connection.identified()


def longest_pause_s(newcomers: int) -> float:
    """Return the longest time between two connections that lose their places."""
    return 2 / (SHARE * newcomers)


async def test_a_new_connection_takes_the_place_of_the_youngest_past_its_time(caplog: pytest.LogCaptureFixture) -> None:
    world = World(max_connections=4)
    client = world.peer()
    first, second, third = (stranger(world, listener=name) for name in ("A", "B", "A"))
    log_in(second)
    await asyncio.sleep(KEPT_S - 0.01)
    early = stranger(world)
    await turn()
    assert [each.is_gone for each in (client, first, second, third, early)] == [False] * 4 + [True]
    await asyncio.sleep(0.02)
    fourth = stranger(world, host="10.0.0.2", listener="B")
    await turn()
    assert [each.is_gone for each in (client, first, second, third, fourth)] == [False, False, False, True, False]
    await asyncio.sleep(longest_pause_s(2))
    late = world.peer(host="10.0.0.3")
    await turn()
    assert (first.is_gone, fourth.is_gone, late.is_gone) == (False, True, False), "a client without a log-in, too"
    assert (world.metrics.connections_refused, len(world.listener.connections)) == (3, 4)
    refused, closed, _ = lines(caplog)
    assert refused.endswith('connection refused connection=10.0.0.1:1 error="max.connections (4) is reached"')
    why = "max.connections (4) is reached, and it has had no session for 5 s"
    assert closed.endswith(f'closing a connection: it has not logged in connection=10.0.0.1:1 error="{why}"')
    world.listener.close()


async def test_clients_keep_their_places_and_a_new_connection_is_refused() -> None:
    world = World(max_connections=3)
    peers = [stranger(world) for _ in range(3)]
    for each in peers:
        log_in(each)
    await asyncio.sleep(2 * KEPT_S)
    late = stranger(world)
    await turn()
    assert [each.is_gone for each in (*peers, late)] == [False, False, False, True]
    peers[0].leave()
    assert not stranger(world).is_gone
    world.listener.close()


async def test_connections_of_one_turn_take_a_place_each() -> None:
    """The closed connections still count until the loop's next turn."""
    world = World(max_connections=60)
    old = [stranger(world) for _ in range(60)]
    await asyncio.sleep(KEPT_S)
    world.listener._newcomers._chance = lambda: 0.5
    late = [stranger(world) for _ in range(8)]
    saved = round(SAVED_S * SHARE * 60)
    assert [each.connection.is_closed for each in late] == [False] * saved + [True] * (8 - saved)
    assert [each.connection.is_closed for each in old] == [False] * (60 - saved) + [True] * saved
    await turn()
    assert len(world.listener.connections) == len(world.listener._newcomers) == 60
    world.listener.close()


async def test_an_address_past_its_bound_takes_nobodys_place() -> None:
    world = World(max_connections=3, max_connections_per_ip=2)
    others = [stranger(world, host="10.0.0.2"), stranger(world), stranger(world)]
    await asyncio.sleep(KEPT_S)
    late = stranger(world)
    await turn()
    assert (late.is_gone, [each.is_gone for each in others]) == (True, [False] * 3)
    world.listener.close()


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
async def test_a_connection_over_its_rate_takes_nobodys_place(wait_s: float) -> None:
    """There is no place to wait in either: it is closed at once."""
    world = World(max_connections=40)
    rates = Rates(*[Admission()] * 40, *[Admission(wait_s, "too fast")] * 40)
    world.listener = Listener(world.script, world.config, world.metrics, rates=rates)
    strangers = [stranger(world) for _ in range(40)]
    await asyncio.sleep(KEPT_S)
    for _ in range(40):
        assert stranger(world, host="10.0.0.2").is_gone
        await asyncio.sleep(longest_pause_s(40))
    assert [each.is_gone for each in strangers] == [False] * 40
    assert world.metrics.connections_refused == world.metrics.connections_throttled == 40
    served = stranger(world, host="10.0.0.3")
    await turn()
    assert (served.is_gone, [each.is_gone for each in strangers]) == (False, [False] * 39 + [True])
    world.listener.close()


@pytest.mark.parametrize("kind", ["before a log-in", "without a log-in"])
async def test_a_refused_connection_that_is_held_gives_way_at_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Fill all places by connections over the rate of their address: others get in, and nobody else loses a place."""
    world = World(max_connections=20)
    rates = Rates(Admission(), *[Admission(1.0, "too fast")] * 19)
    world.listener = Listener(world.script, world.config, world.metrics, rates=rates)

    def connect(host: str) -> Peer:
        return stranger(world, host=host) if kind == "before a log-in" else world.peer(host=host)

    first, *held = (connect("10.0.0.1") for _ in range(20))
    await turn()
    assert not any(each.is_gone for each in held)
    assert len(world.listener._newcomers) == (kind == "before a log-in"), "they do not speed up the changes of places"
    others = [connect("10.0.0.2") for _ in range(19)]
    await turn()
    assert [each.is_gone for each in (first, *others)] == [False] * 20
    assert all(each.is_gone for each in held)
    assert stranger(world).is_gone, "nobody else gives way yet"
    assert len(lines(caplog)) == world.metrics.connections_refused == 20, "a refused connection is refused once"
    world.listener.close()


async def test_a_connection_past_its_principals_bound_gives_way_at_once() -> None:
    world = World(max_connections=2)
    bounds = Bounds(1)
    world.listener = Listener(world.script, world.config, world.metrics, bounds=bounds)
    client, refused = world.peer(), world.peer()
    bounds._most = 2
    late = world.peer()
    await turn()
    assert [each.is_gone for each in (client, refused, late)] == [False, True, False]
    world.listener.close()


async def test_a_wait_for_a_rate_is_no_part_of_the_time_for_a_log_in() -> None:
    """Let two connections wait for their turns: the time of each begins as it is read."""
    world = World(max_connections=2)
    rates = Rates(Admission(TURN_S), Admission(TURN_S))
    world.listener = Listener(world.script, world.config, world.metrics, rates=rates)
    strangers = [stranger(world), stranger(world)]
    await asyncio.sleep(TURN_S + KEPT_S - 0.1)
    assert stranger(world).is_gone
    assert [each.is_gone for each in strangers] == [False, False]
    await asyncio.sleep(0.2)
    served = stranger(world, host="10.0.0.2")
    await turn()
    assert (served.is_gone, [each.is_gone for each in strangers]) == (False, [False, True])
    world.listener.close()


async def test_a_connection_that_is_refused_for_want_of_a_place_does_not_count_in_the_rates() -> None:
    world = World(max_connections=2)
    rates = Rates()
    world.listener = Listener(world.script, world.config, world.metrics, rates=rates)
    strangers = [stranger(world), stranger(world), stranger(world)]
    assert [each.is_gone for each in strangers] == [False, False, True]
    assert len(rates.asked) == 2
    world.listener.close()


async def test_a_client_that_has_gone_before_its_log_in_takes_nobodys_place() -> None:
    gone: list[Any] = []
    world = World(max_connections=40)
    world.listener = Listener(world.script, world.config, world.metrics, ended=lambda _: gone)
    strangers = [stranger(world) for _ in range(40)]
    await asyncio.sleep(KEPT_S)
    world.listener.close_departed()
    gone.append("each that connects")
    for _ in range(10):
        assert stranger(world, host="10.0.0.2").is_gone
        await asyncio.sleep(longest_pause_s(40))
    assert [each.is_gone for each in strangers] == [False] * 40
    world.listener.close()


async def test_processes_of_the_cluster_get_in_while_strangers_hold_the_internal_port() -> None:
    """``max.connections`` may be less than what the port's strangers may have."""
    world = World(max_connections=3)
    strangers = Strangers()
    world.listener = Listener(world.script, world.config, world.metrics, in_order=False, strangers=strangers)
    peers = [world.peer(kind=UnorderedConnection) for _ in range(3)]
    strangers.known(peers[0].connection)
    late = world.peer(kind=UnorderedConnection)
    await turn()
    assert [each.is_gone for each in (*peers, late)] == [False, True, False, False]
    late.send(frame(1))
    assert late.answers() == [1]
    for each in (peers[2], late):
        strangers.known(each.connection)
    refused = world.peer(kind=UnorderedConnection)
    await turn()
    assert refused.is_gone
    world.listener.close()


async def test_a_connection_in_the_place_of_a_closed_one_costs_nobody_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A connection that was closed in this turn of the loop still counts."""
    world = World(max_connections=1)
    closed = stranger(world)
    await asyncio.sleep(KEPT_S)
    closed.connection.close()
    late = stranger(world)
    await turn()
    assert (closed.is_gone, late.is_gone, world.metrics.connections_refused, lines(caplog)) == (True, False, 0, [])
    world.listener.close()


@pytest.mark.parametrize("clients", [201, 250, 300, 400])
async def test_clients_that_are_too_many_fill_all_places(clients: int) -> None:
    """Clients connect at once, and again after 20 turns; a log-in takes six events, and a turn serves 20 events."""
    world = World(max_connections=200)
    waiting = deque(range(clients))
    again: deque[tuple[int, int]] = deque()
    at_work: deque[tuple[Peer, int, int]] = deque()
    logged_in = 0
    for now in range(200):
        while again and again[0][0] <= now:
            waiting.append(again.popleft()[1])
        while waiting:
            client = waiting.popleft()
            at_work.append((stranger(world, host=f"10.1.{client >> 8}.{client & 255}"), 6, client))
        for _ in range(min(20, len(at_work))):
            peer, events, client = at_work.popleft()
            if peer.connection.is_closed:
                again.append((now + 20, client))
            elif events > 1:
                at_work.append((peer, events - 1, client))
            else:
                log_in(peer)
                logged_in += 1
        await turn(2)
    assert logged_in == len(world.listener.connections) == 200
    assert world.metrics.connections_refused >= clients - 200
    world.listener.close()


async def test_clients_get_in_while_silent_strangers_hold_all_places() -> None:
    """A client tries ten times a second, and its log-in takes a second: the next client does so after it."""
    world = World(max_connections=20)
    clock = asyncio.get_running_loop().time
    strangers = [stranger(world) for _ in range(20)]
    most_s = KEPT_S
    for left in range(20, 10, -1):
        began = clock()
        client = stranger(world, host="10.0.0.2")
        while client.connection.is_closed:
            await asyncio.sleep(0.1)
            client = stranger(world, host="10.0.0.2")
        assert clock() - began <= most_s + 0.1
        most_s = longest_pause_s(left)
        await asyncio.sleep(1)
        assert not client.is_gone
        log_in(client)
    assert [each.is_gone for each in strangers] == [False] * 10 + [True] * 10
    world.listener.close()


async def learn_quick_log_ins(world: World) -> None:
    for _ in range(20):
        client = stranger(world)
        await asyncio.sleep(0.05)
        log_in(client, USER)
        client.leave()


async def log_ins_in_a_trickle(world: World, log_in_s: float, left: int = 5) -> int:
    """Return how many of 50 log-ins end while strangers come for the last places, and stay silent."""
    world.listener._newcomers._chance = random.Random(2).random
    clients = [stranger(world) for _ in range(world.config.max_connections - left)]
    for each in clients:
        log_in(each)
    rng = random.Random(1)
    log_ins = 0
    for _ in range(50):
        for _ in range(10):
            stranger(world, host="10.0.0.6")
            await asyncio.sleep(rng.uniform(0.05, 0.15))
        client = stranger(world, host="10.0.0.2")
        await asyncio.sleep(log_in_s / 2)
        stranger(world, host="10.0.0.6")
        await asyncio.sleep(log_in_s / 2)
        if not client.connection.is_closed:
            log_in(client, USER)
            log_ins += 1
            client.leave()
            await turn()
    assert not any(each.is_gone for each in clients)
    world.listener.close()
    return log_ins


async def test_a_trickle_of_silent_strangers_keeps_no_client_out_of_the_last_places(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(max_connections=10)
    await learn_quick_log_ins(world)
    assert await log_ins_in_a_trickle(world, 0.05) >= 40
    assert "max.connections (10) is reached, and it has had no session for 0.2 s" in lines(caplog)[-1]


async def test_connections_that_wait_for_a_rate_keep_no_client_out_of_the_last_places() -> None:
    """Another listener is at its max.connection.creation.rate: once a second a connection there waits for 5 s."""
    world = World(max_connections=20)
    await learn_quick_log_ins(world)
    accepted = itertools.count()
    rates: Any = Rates()
    rates.admit = lambda *_: Admission(5.0 if next(accepted) % 10 == 9 else 0.0)
    world.listener._rates = rates
    assert await log_ins_in_a_trickle(world, 0.05, left=10) >= 40


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_sessions_without_a_name_do_not_shorten_the_time_for_a_log_in(protocol: str) -> None:
    """Strangers get such sessions on a listener without authentication: a slower log-in of another one must go on."""
    world = World(max_connections=10)
    for _ in range(20):
        early = world.peer() if protocol == "PLAINTEXT" else stranger(world)
        if protocol == "SSL":
            await asyncio.sleep(0.01)
            log_in(early)
        early.leave()
    assert world.listener._newcomers.kept_s == KEPT_S
    client = stranger(world)
    await asyncio.sleep(0.01)
    log_in(client, USER)
    assert world.listener._newcomers.kept_s < KEPT_S
    world.listener.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_a_place_goes_to_a_new_connection_by_the_rule_alone(seed: int) -> None:
    """Connections come, log in and leave in any order, and a model knows whose place may go."""
    rng = random.Random(seed)
    clock = asyncio.get_running_loop().time
    most = rng.randint(1, 12)
    world = World(max_connections=most)
    strangers: dict[Peer, float] = {}
    clients: list[Peer] = []
    closed = 0
    for _ in range(500):
        await asyncio.sleep(rng.expovariate(2))
        choice = rng.random()
        if choice < 0.6:
            now, is_full = clock(), len(clients) + len(strangers) == most
            old = [each for each, since in strangers.items() if now - since >= KEPT_S]
            peer = stranger(world)
            if is_full and old and old[-1].connection.is_closed:
                del strangers[old[-1]]
                closed += 1
                is_full = False
            if not is_full:
                strangers[peer] = now
        elif choice < 0.75 and strangers:
            peer = rng.choice(list(strangers))
            log_in(peer)
            del strangers[peer]
            clients.append(peer)
        elif choice < 0.9 and (clients or strangers):
            peer = rng.choice([*clients, *strangers])
            peer.leave()
            strangers.pop(peer, None)
            clients = [each for each in clients if each is not peer]
        await turn()
        assert set(world.listener.connections) == {each.connection for each in (*clients, *strangers)}
        assert len(world.listener._newcomers) == len(strangers)
    assert closed
    world.listener.close()
    await turn()
    assert not world.listener._newcomers


def with_quick_log_ins() -> Newcomers[int]:
    """Return newcomers without a connection: the last twenty log-ins took 10 ms."""
    newcomers = Newcomers[int]()
    for number in range(100, 120):
        newcomers.add(number, 0.0)
        newcomers.log_in(number, 0.01)
    return newcomers


def test_a_patient_place_that_becomes_quick_goes_after_an_older_quick_one() -> None:
    newcomers = with_quick_log_ins()
    for number, at in ((0, 10.0), (1, 10.5), (2, 10.5), (3, 10.5)):  # 1 and 3 get patient places
        newcomers.add(number, at)
    newcomers.log_in(2, 10.51)
    assert newcomers.give_way(10.52) == 0


def test_a_connection_that_waits_for_a_rate_has_a_patient_place_until_it_is_read() -> None:
    newcomers = with_quick_log_ins()
    newcomers.add(0, 10.0, wait_s=5.0)
    newcomers.add(1, 10.0)
    newcomers.add(2, 10.1)
    assert [newcomers.give_way(10.4) for _ in range(3)] == [1, 2, None]
    assert [newcomers.give_way(15.1), newcomers.give_way(15.3)] == [None, 0]


def test_of_the_patient_places_that_become_quick_the_oldest_goes_first() -> None:
    newcomers = with_quick_log_ins()
    for number in range(8):
        newcomers.add(number, 10 + number / 20)  # 0, 2, 4 and 6 get quick places
    for number in range(0, 8, 2):
        newcomers.remove(number)
    assert newcomers.give_way(10.24) is None
    assert [newcomers.give_way(10.26), newcomers.give_way(10.26)] == [1, None]
