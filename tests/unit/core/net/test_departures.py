"""Clients that have gone while the process stood still: what they sent before begins no request, on any transport.

The loop stands still for as long as a test does not await: client sockets are blocking ones, and the clock is moved.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.core.aio.standstill import DOUBT_S, Standstill
from bmq.core.clock import SystemClock
from bmq.core.net.departures import BACKLOG_S, Departures, ended
from bmq.core.net.listener import Listener
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from tests.harness.certificates import Certificates
from tests.harness.waiting import until
from tests.unit.core.net.test_tls_transport import client_context, tls
from tests.unit.core.net.world import PRODUCE, World, frame, turn

POLLS_MAX = 20_000
"""Most looks for an end; loopback delivers it at once."""
sockets = pytest.mark.loops("asyncio", "uvloop")


class MovedClock(SystemClock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Port(World):
    """A listener that looks for departures after a doubt, and gives clients up, as a process's does."""

    def __init__(self, certificates: Certificates | None, *, in_order: bool = True) -> None:
        super().__init__()
        if not in_order:
            self.listener = Listener(self.script, self.config, self.metrics, in_order=False)
        self.clock = MovedClock()
        standstill = self.listener.standstill = Standstill(self.clock)
        self.closed: list[int] = []
        self.given_up: list[int] = []
        standstill.on_doubt.add(lambda _: self.closed.append(self.listener.close_departed()))
        standstill.on_found.add(lambda _: self.given_up.append(self.listener.give_clients_up()))
        standstill.start()
        self._certificates = certificates

    async def start(self) -> None:
        if self._certificates is None:
            await self.listener.start("127.0.0.1", 0, session=ANONYMOUS_SESSION)
        else:
            session = Session(listener="OUT", protocol="SSL")
            await self.listener.start("127.0.0.1", 0, session=session, tls=tls(self._certificates))

    def stand_still(self, seconds: float = 1.5 * DOUBT_S) -> None:
        self.clock.now += seconds

    async def client(self) -> socket.socket:
        """Return a client's blocking socket, connected and accepted."""
        count = len(self.listener.connections)
        client = await asyncio.to_thread(self.connect)
        await until(lambda: len(self.listener.connections) == count + 1)
        return client

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.listener.port))
        if self._certificates is None:
            return client
        return client_context(self._certificates).wrap_socket(client, server_hostname="localhost")

    def wait_for_end(self, count: int = 1) -> None:
        """Wait, without a turn of the loop, until the kernel has got the end of so many connections."""
        for _ in range(POLLS_MAX):
            if len(ended([each.transport for each in self.listener.connections])) >= count:
                return


@asynccontextmanager
async def opened(certificates: Certificates | None = None, **kind: Any) -> AsyncIterator[Port]:
    port = Port(certificates, **kind)
    await port.start()
    yield port
    port.listener.standstill.stop()
    port.listener.close()
    await until(lambda: not port.listener.connections)
    assert port.metrics.request_bytes_held == 0
    assert port.metrics.connections == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def leave(client: socket.socket, how: str) -> None:
    """Leave as a client that gives its request up: by close, by a reset, or with the sending half alone."""
    if how == "half":
        socket.socket.shutdown(client, socket.SHUT_WR)
        return
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@sockets
@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_a_request_of_a_client_that_has_gone_does_not_begin_and_that_of_another_does(
    made: Certificates, how: str, is_secure: bool, in_order: bool
) -> None:
    async with opened(made if is_secure else None, in_order=in_order) as port:
        leaves, stays = await port.client(), await port.client()
        leaves.sendall(frame(1) + frame(2))
        stays.sendall(frame(3))
        leave(leaves, how)
        port.wait_for_end()
        port.stand_still()
        await until(lambda: port.script.begun != [])
        await until(lambda: len(port.listener.connections) == 1)
        stays.sendall(frame(4))
        await until(lambda: 4 in port.script.begun)
        assert port.script.begun == [3, 4]
        stays.close()
        leaves.close()


@sockets
@pytest.mark.slow
@pytest.mark.parametrize("is_secure", [False, True])
async def test_an_end_is_seen_while_reading_is_paused(made: Certificates, is_secure: bool) -> None:
    """A request that was read before and waited, for a quota or for another one, does not begin either."""
    async with opened(made if is_secure else None) as port:
        muted, busy = await port.client(), await port.client()
        port.script.later(1)
        busy.sendall(frame(1) + frame(2))
        await until(lambda: port.script.begun == [1])
        first, second = port.listener.connections
        running = second if second._requests.started else first
        idle = first if running is second else second
        idle.mute(1_000)
        idle._settle()
        muted.sendall(frame(3))
        muted.close()
        busy.close()
        port.wait_for_end(2)
        port.stand_still()
        port.script.answers[1].set_result(port.script.reply(1))
        idle.unmute()
        await until(lambda: not port.listener.connections)
        assert port.script.begun == [1]


@sockets
@pytest.mark.slow
async def test_a_connection_that_waited_to_be_accepted_is_closed_if_its_client_has_gone() -> None:
    async with opened() as port:
        stays = await port.client()
        stays.sendall(frame(1))
        gone, late = port.connect(), port.connect()  # in this turn of the loop: not accepted yet
        gone.sendall(frame(2, key=PRODUCE))
        late.sendall(frame(3, key=PRODUCE))
        gone.close()
        port.stand_still()
        port.listener.standstill.look()
        await until(lambda: 3 in port.script.begun)
        await until(lambda: len(port.listener.connections) == 2)
        assert sorted(port.script.begun) == [1, 3]
        stays.close()
        late.close()


@sockets
@pytest.mark.slow
async def test_without_a_standstill_the_bytes_before_an_end_are_served() -> None:
    async with opened() as port:
        client = await port.client()
        client.sendall(frame(1))
        client.close()
        port.wait_for_end()
        await until(lambda: not port.listener.connections)
        assert port.script.begun == [1]
        assert port.closed == []


async def test_nothing_begins_between_the_end_and_the_call_that_reports_the_loss() -> None:
    world = World()
    world.script.later(1)
    peer = world.peer()
    peer.send(frame(1) + frame(2))
    running = world.script.answers[1]
    running.set_result(world.script.reply(1))
    peer.connection.eof_received()
    await turn()
    assert world.script.begun == [1]
    assert peer.is_gone
    assert not world.listener.connections


class Transport(asyncio.Transport):
    """A transport whose other side ends when the test says so."""


async def test_new_connections_are_looked_at_for_a_while_after_a_standstill() -> None:
    loop: Any = asyncio.get_running_loop()
    transport = Transport()
    departures = Departures(lambda transports: list(transports))
    assert not departures.has_left(transport), "there was no standstill"
    assert departures.find([transport]) == [transport]
    assert departures.has_left(transport)
    loop.clock.now += 0.9 * BACKLOG_S
    assert departures.has_left(transport)
    loop.clock.now += 0.2 * BACKLOG_S
    assert not departures.has_left(transport)


@sockets
async def test_a_transport_without_a_socket_or_that_this_side_closes_has_not_ended() -> None:
    async with opened() as port:
        client = await port.client()
        (connection,) = port.listener.connections
        assert not ended([connection.transport, port.peer().connection.transport])
        client.close()
        port.wait_for_end()
        connection.close()
        assert not ended([connection.transport])
        for peer in list(port.listener.connections):
            peer.close()
