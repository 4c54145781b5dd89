"""A connection that may not be read from its accept on: over loopback sockets, since uvloop reads in spite of a pause.

uvloop begins to read after ``connection_made``, also if the transport was paused in that call; asyncio does not.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bmq.core.config import NodeConfig
from bmq.core.net import listener
from bmq.core.net.admission import Admission
from bmq.core.net.frames import SHARED_BYTES
from bmq.core.net.listener import Listener
from bmq.core.security.listener_settings import security_of
from bmq.core.security.session import ANONYMOUS_SESSION, Session
from bmq.core.security.tls import ServerTls
from tests.harness.certificates import Certificates
from tests.harness.waiting import until
from tests.unit.core.net.test_admission import Bounds, Rates
from tests.unit.core.net.world import NO_ACKS, PRODUCE, World, frame, turn

LIMIT = 1 << 20
PART = frame(7, size=1 << 20)
PARTS = 64
"""More than the kernel keeps of a connection that nobody reads."""
TURNS = 2_000
"""Turns of the loop in which a connection that is read has sent all ``PARTS``, its handshake included."""
WAITS = ["shut gate", "rate", "rate refused", "bound refused"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def tls(certificate: Path) -> ServerTls:
    config = NodeConfig(ssl_keystore_location=str(certificate))
    return ServerTls(security_of("OUT", "SSL", config, ()))


@asynccontextmanager
async def listening(why: str, server: ServerTls | None) -> AsyncIterator[World]:
    """Listen, with a reason for which the next connection may not be read."""
    world = World(queued_max_request_bytes=LIMIT, socket_request_max_bytes=2 * LIMIT)
    if why.startswith("rate"):
        rates = Rates(Admission(600.0, "too fast" if why == "rate refused" else ""))
        world.listener = Listener(world.script, world.config, world.metrics, rates=rates)
    elif why == "bound refused":
        world.listener = Listener(world.script, world.config, world.metrics, bounds=Bounds(0))
    session = ANONYMOUS_SESSION if server is None else Session(listener="OUT", protocol="SSL")
    await world.listener.start("127.0.0.1", 0, session=session, tls=server)
    if why == "shut gate":
        world.script.later(1)
        world.peer().send(frame(1, size=LIMIT))
        assert world.listener.budget.is_shut
    try:
        yield world
    finally:
        world.listener.close()
        await turn(TURNS)  # both ends of every socket are closed
    assert world.metrics.request_bytes_held == 0


async def _flood(world: World, context: ssl.SSLContext | None, shaken: list[bool]) -> None:
    """Send ``PARTS`` as a client does; ``shaken`` gets an entry after the handshake."""
    name = None if context is None else "localhost"
    _, writer = await asyncio.open_connection("127.0.0.1", world.listener.port, ssl=context, server_hostname=name)
    shaken.append(context is not None)
    try:
        for _ in range(PARTS):
            writer.write(PART)
            await writer.drain()
    finally:
        writer.transport.abort()


@pytest.mark.loops("asyncio", "uvloop")
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("why", WAITS)
async def test_a_new_connection_that_may_not_be_read_brings_a_read_at_most(
    monkeypatch: pytest.MonkeyPatch, made: Certificates, why: str, is_secure: bool
) -> None:
    monkeypatch.setattr(listener, "REFUSED_S", 600.0)
    async with listening(why, tls(made.server) if is_secure else None) as world:
        before, begun, shaken = world.metrics.request_bytes_held, list(world.script.begun), list[bool]()
        context = ssl.create_default_context(cafile=str(made.trust)) if is_secure else None
        flood = asyncio.ensure_future(_flood(world, context, shaken))
        try:
            await turn(TURNS)
            assert not flood.done()
            assert world.metrics.request_bytes_held - before <= SHARED_BYTES
            assert world.script.begun == begun
            assert not (why.startswith("rate") and any(shaken)), "a handshake begins after the wait"
        finally:
            flood.cancel()
            await asyncio.wait([flood])


@pytest.mark.loops("asyncio", "uvloop")
async def test_a_request_without_a_response_does_not_begin_before_the_gate_opens() -> None:
    """Else clients that connect, send and close again and again pass the bound: their requests outlive them."""
    async with listening("shut gate", None) as world:
        writers = []
        for number in range(2, 12):
            _, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
            writer.write(frame(number, key=PRODUCE, version=NO_ACKS, size=1_000) * 2)
            writers.append(writer)
        try:
            await turn(TURNS)
            assert world.script.begun == [1]
            assert world.listener.budget.held <= LIMIT + 10_000
            world.script.respond(1)
            await until(lambda: len(world.script.begun) == 21)
            assert sorted(world.script.begun[1:]) == sorted([*range(2, 12)] * 2), "each is read whole"
        finally:
            for writer in writers:
                writer.transport.abort()


async def test_a_byte_before_the_pause_is_cut_with_those_behind_it() -> None:
    """A loop that reads in spite of the pause gets a byte at a time, and its transport is paused again with each."""
    world = World(queued_max_request_bytes=LIMIT, socket_request_max_bytes=2 * LIMIT)
    world.script.later(1)
    world.peer().send(frame(1, size=LIMIT))
    peer = world.peer()
    data = frame(2, size=100)
    for byte in data[:2]:
        buffer = peer.connection.get_buffer(-1)
        assert len(buffer) == 1
        buffer[0] = byte
        peer.is_paused = False
        peer.connection.buffer_updated(1)
        assert peer.is_paused
    peer.send(data[2:])
    await turn()
    assert (peer.is_paused, world.script.begun) == (True, [1])
    world.script.respond(1)
    await turn()
    assert peer.answers() == [2]
    world.listener.close()


async def test_a_request_that_came_whole_before_the_pause_begins() -> None:
    world = World()
    world.listener = Listener(world.script, world.config, world.metrics, rates=Rates(Admission(1.0)))
    peer = world.peer()
    for byte in frame(2):
        peer.connection.get_buffer(-1)[0] = byte
        peer.connection.buffer_updated(1)
    await asyncio.sleep(1.1)
    assert peer.answers() == [2]
    world.listener.close()
