"""Connections that come too fast, at a listener: they wait unread, in TLS before the handshake too, or are closed.

So are connections of a principal that has too many.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import pytest

from bmq.core.net.admission import Admission
from bmq.core.net.listener import REFUSED_MAX, REFUSED_S, ClientConnection, Listener
from bmq.core.net.request import Client, Response
from bmq.core.security.listener_settings import security_of
from bmq.core.security.principal import user
from bmq.core.security.session import NOT_BEGUN, Session
from bmq.core.security.tls import ServerTls
from tests.harness.certificates import Certificates
from tests.harness.waiting import until
from tests.unit.core.net.test_listener import read_response
from tests.unit.core.net.world import World, frame, reply, turn


class Rates:
    """Rates that let each connection have what a test says."""

    is_active = True

    def __init__(self, *admissions: Admission) -> None:
        self._admissions = list(admissions)
        self.asked: list[tuple[str, str]] = []

    def admit(self, host: str, listener: str) -> Admission:
        self.asked.append((host, listener))
        return self._admissions.pop(0) if self._admissions else Admission()


def make(rates: Rates, **settings: Any) -> World:
    world = World(**settings)
    world.listener = Listener(world.script, world.config, world.metrics, rates=rates)
    return world


async def test_a_connection_waits_for_its_turn_and_is_served() -> None:
    rates = Rates(Admission(2.0))
    world = make(rates)
    late, other = world.peer(), world.peer(host="10.0.0.2")
    late.send(frame(1))
    other.send(frame(2))
    assert (late.is_paused, late.answers(), other.answers()) == (True, [], [2])
    await asyncio.sleep(2.1)
    assert (late.is_paused, late.answers()) == (False, [1])
    assert rates.asked == [("10.0.0.1", ""), ("10.0.0.2", "")]
    assert (world.metrics.connections_throttled, world.metrics.connections_refused) == (1, 0)
    world.listener.close()


class Bounds:
    """A bound on the connections of each principal, as ``proxy.quotas.connection_bounds`` has it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.live: list[str] = []

    def admit(self, connection: Client) -> str:
        principal = str(connection.session.principal)
        if self.live.count(principal) >= self._most:
            return f"{principal} has {self._most}"
        self.live.append(principal)
        connection.on_close(lambda: self.live.remove(principal))
        return ""


async def test_a_connection_past_its_principals_bound_is_held_unread_and_then_closed() -> None:
    world = World()
    bounds = Bounds(1)
    world.listener = Listener(world.script, world.config, world.metrics, bounds=bounds)
    first, second = world.peer(), world.peer(host="10.0.0.2")
    second.send(frame(1))
    first.send(frame(2))
    assert (second.is_paused, second.answers(), first.answers()) == (True, [], [2])
    await asyncio.sleep(REFUSED_S - 0.1)
    assert not second.is_gone
    await asyncio.sleep(0.2)
    assert second.is_gone
    assert bounds.live == ["User:ANONYMOUS"]
    assert (world.metrics.user_connections_refused, world.metrics.connections_refused) == (1, 1)
    first.leave()
    third = world.peer()
    third.send(frame(3))
    assert third.answers() == [3]
    world.listener.close()
    assert bounds.live == []


async def test_refused_connections_that_wait_are_bounded() -> None:
    world = World()
    world.listener = Listener(world.script, world.config, world.metrics, bounds=Bounds(0))
    peers = [world.peer(host=f"10.0.1.{number}") for number in range(REFUSED_MAX + 10)]
    await asyncio.sleep(0.1)
    assert sum(not each.is_gone for each in peers) == REFUSED_MAX
    await asyncio.sleep(REFUSED_S)
    assert all(each.is_gone for each in peers)
    assert not world.peer().is_gone, "others waited, and are closed: one more waits again"
    world.listener.close()


async def test_a_refused_connection_is_held_unread_and_then_closed() -> None:
    world = make(Rates(Admission(1.0, "too fast"), Admission(0.0, "much too fast")))
    held, closed = world.peer(), world.peer()
    held.send(frame(1))
    await turn()
    assert (held.is_gone, closed.is_gone) == (False, True)
    await asyncio.sleep(1.1)
    assert (held.is_gone, world.script.begun) == (True, [])
    assert (world.metrics.connections_throttled, world.metrics.connections_refused) == (2, 2)
    assert world.metrics.connections == 0


async def test_a_held_connection_that_leaves_or_is_drained_leaves_nothing() -> None:
    world = make(Rates(Admission(1.0, "too fast"), Admission(5.0), Admission(1.0, "too fast")))
    gone, waiting, held = world.peer(), world.peer(), world.peer()
    gone.leave()
    await asyncio.wait_for(world.listener.drain(30), 0.5)
    assert (waiting.is_gone, held.is_gone, world.metrics.connections) == (True, True, 0)


async def test_a_connection_over_a_limit_has_no_turn() -> None:
    rates = Rates()
    world = make(rates, max_connections_per_ip=1)
    world.peer()
    world.peer()
    await turn()
    assert len(rates.asked) == 1
    world.listener.close()


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_a_socket_that_waits_is_not_read() -> None:
    world = make(Rates(Admission(0.3), Admission(0.1, "too fast")))
    await world.listener.start("127.0.0.1", 0)
    began = asyncio.get_running_loop().time()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
    writer.write(frame(7))
    assert (await read_response(reader))[0] == 7
    assert asyncio.get_running_loop().time() - began >= 0.3
    refused, other = await asyncio.open_connection("127.0.0.1", world.listener.port)
    other.write(frame(8))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await read_response(refused)
    assert world.script.begun == [7]
    for each in (writer, other):
        each.close()
    await until(lambda: not world.listener.connections)
    world.listener.close()


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_a_tls_handshake_begins_after_the_wait(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = Certificates.make(tmp_path_factory.mktemp("certificates"))
    rates = Rates(Admission(0.3), Admission(0.1, "too fast"))
    world = make(rates)
    config = type(world.config)(ssl_keystore_location=str(made.server))
    tls = ServerTls(security_of("OUT", "SSL", config, ()))
    await world.listener.start("127.0.0.1", 0, session=Session(listener="OUT", protocol="SSL"), tls=tls)
    context = ssl.create_default_context(cafile=str(made.trust))
    began = asyncio.get_running_loop().time()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", world.listener.port, ssl=context, server_hostname="localhost"
    )
    assert asyncio.get_running_loop().time() - began >= 0.3
    writer.write(frame(7))
    assert (await read_response(reader))[0] == 7
    with pytest.raises((ConnectionError, ssl.SSLError)):
        await asyncio.open_connection("127.0.0.1", world.listener.port, ssl=context, server_hostname="localhost")
    assert rates.asked == [("127.0.0.1", "OUT")] * 2
    assert world.metrics.tls_handshakes_failed == 0
    writer.close()
    await until(lambda: not world.listener.connections)
    world.listener.close()


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_a_tls_connection_counts_for_its_principal_after_the_handshake(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = Certificates.make(tmp_path_factory.mktemp("certificates"))
    world, bounds = World(), Bounds(1)
    world.listener = Listener(world.script, world.config, world.metrics, bounds=bounds)
    config = type(world.config)(ssl_keystore_location=str(made.server))
    tls = ServerTls(security_of("OUT", "SSL", config, ()))
    await world.listener.start("127.0.0.1", 0, session=Session(listener="OUT", protocol="SSL"), tls=tls)
    context = ssl.create_default_context(cafile=str(made.trust))

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = world.listener.port
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")

    _, silent = await asyncio.open_connection("127.0.0.1", world.listener.port)
    await until(lambda: len(world.listener.connections) == 1)
    assert bounds.live == []
    reader, writer = await connect()
    writer.write(frame(1))
    assert (await read_response(reader))[0] == 1
    refused, other = await connect()
    other.write(frame(2))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await read_response(refused)
    assert (world.script.begun, world.metrics.user_connections_refused) == ([1], 1)
    for each in (silent, writer, other):
        each.close()
    await until(lambda: not world.listener.connections)
    assert bounds.live == []
    world.listener.close()


class LoggedInBy:
    """A dispatch whose first request is a log-in, which ends when the test says so."""

    def __init__(self, world: World) -> None:
        self.is_pipelined, self.expects_response = world.script.is_pipelined, world.script.expects_response
        self.may_park = world.script.may_park
        self._script = world.script
        self.login: asyncio.Future[Response] | None = None
        self.client: Any = None

    def __call__(self, request: memoryview, client: Client) -> Any:
        if self.login is None:
            self.login, self.client = asyncio.get_running_loop().create_future(), client
            return self.login
        return self._script(request, client)

    def end(self) -> None:
        assert self.login is not None
        self.client.session = Session(principal=user("u"), protocol="SASL_PLAINTEXT")
        self.client.identified()
        if not self.client.is_closed:
            self.login.set_result(reply(1))


@pytest.mark.parametrize("is_refused_first", [True, False])
async def test_a_drain_serves_no_request_of_a_connection_that_is_refused_after_its_log_in(
    is_refused_first: bool,
) -> None:
    """The drain may also begin while the log-in is under way."""
    world = World()
    world.listener = Listener(world.script, world.config, world.metrics, bounds=Bounds(0))
    dispatch = LoggedInBy(world)

    def stranger(listener: Any, *_: object) -> ClientConnection:
        made = ClientConnection(listener, cast(Any, dispatch))
        made.session = Session(protocol="SASL_PLAINTEXT", expires_at=NOT_BEGUN)
        return made

    peer = world.peer(kind=stranger)
    peer.send(frame(1) + frame(2) + frame(3))
    if is_refused_first:
        dispatch.end()
        await turn()
    draining = asyncio.ensure_future(world.listener.drain(2 * REFUSED_S))
    await turn()
    if not is_refused_first:
        dispatch.end()
    await draining
    assert (peer.is_gone, world.metrics.user_connections_refused) == (True, 1)
    assert world.script.begun == []
