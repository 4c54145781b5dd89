"""The places of a listener: strangers lose theirs to new connections, the oldest first; clients keep theirs."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import pytest

from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.internal_connection import UnorderedConnection
from bmq.core.net.listener import Listener
from bmq.core.net.strangers import Strangers
from bmq.core.security.session import Session
from tests.harness.log_text import lines
from tests.unit.core.net.world import Peer, World, frame, turn


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


def log_in(peer: Peer) -> None:
    peer.connection.unlimit_frames()
    peer.connection.identified()


async def test_a_new_connection_takes_the_place_of_the_oldest_stranger(caplog: pytest.LogCaptureFixture) -> None:
    world = World(max_connections=4)
    client = world.peer()
    first, second, third = (stranger(world, listener=name) for name in ("A", "B", "A"))
    log_in(second)
    stranger(world, host="10.0.0.2", listener="B")
    await turn()
    assert [each.is_gone for each in (client, first, second, third)] == [False, True, False, False]
    late = world.peer(host="10.0.0.3")
    await turn()
    assert (third.is_gone, late.is_gone) == (True, False), "a client of a listener without a log-in gets a place, too"
    assert (world.metrics.connections_refused, len(world.listener.connections)) == (2, 4)
    why = "max.connections (4) is reached, and it is the oldest without a session"
    assert lines(caplog)[0].endswith(f'closing a connection: it has not logged in connection=10.0.0.1:1 error="{why}"')
    world.listener.close()


async def test_clients_keep_their_places_and_a_new_connection_is_refused() -> None:
    world = World(max_connections=3)
    peers = [stranger(world) for _ in range(3)]
    for each in peers:
        log_in(each)
    late = stranger(world)
    await turn()
    assert [each.is_gone for each in (*peers, late)] == [False, False, False, True]
    peers[0].leave()
    assert not stranger(world).is_gone
    world.listener.close()


async def test_connections_of_one_turn_take_a_place_each() -> None:
    """The closed connections still count until the loop's next turn."""
    world = World(max_connections=3)
    peers = [stranger(world) for _ in range(8)]
    assert [each.connection.is_closed for each in peers] == [True] * 5 + [False] * 3
    await turn()
    assert len(world.listener.connections) == len(world.listener._newcomers) == 3
    world.listener.close()


async def test_an_address_past_its_bound_takes_nobodys_place() -> None:
    world = World(max_connections=3, max_connections_per_ip=2)
    others = [stranger(world, host="10.0.0.2"), stranger(world), stranger(world)]
    late = stranger(world)
    await turn()
    assert (late.is_gone, [each.is_gone for each in others]) == (True, [False] * 3)
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_the_strangers_that_stay_are_always_the_youngest(seed: int) -> None:
    """Connections come, log in and leave in any order, and a model knows who stays."""
    rng = random.Random(seed)
    most = rng.randint(1, 12)
    world = World(max_connections=most)
    strangers: OrderedDict[Peer, None] = OrderedDict()
    clients: list[Peer] = []
    for _ in range(500):
        choice = rng.random()
        if choice < 0.6:
            peer = stranger(world)
            if len(clients) + len(strangers) == most and strangers:
                strangers.popitem(last=False)
            if len(clients) + len(strangers) < most:
                strangers[peer] = None
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
        assert list(world.listener._newcomers) == [each.connection for each in strangers]
    world.listener.close()
    await turn()
    assert not world.listener._newcomers
