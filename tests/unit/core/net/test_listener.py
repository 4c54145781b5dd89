"""Client connections (core/net/listener.py) over loopback sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.waiting import until
from tests.unit.core.net.world import PRODUCE, Script, World, frame

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio", "uvloop")]

PAUSES_SINCE = (3, 12, 9) if sys.version_info < (3, 13) else (3, 13, 1)


@asynccontextmanager
async def listening(**settings: Any) -> AsyncIterator[World]:
    world = World(**settings)
    await world.listener.start("127.0.0.1", 0)
    yield world
    await world.listener.drain(5)
    assert world.metrics.request_bytes_held == 0
    assert world.metrics.connections == 0


async def connect(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", world.listener.port, limit=1 << 26)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Read the next response and return its number and size."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    body = await reader.readexactly(size)
    return struct.unpack_from(">i", body)[0], size


async def test_addresses_have_their_own_dispatch_and_share_limits() -> None:
    """Two listeners of one process: each is answered by its own endpoint, and `max.connections` is of both."""

    async with listening(max_connections=2) as world:
        other = Script()
        port = await world.listener.start("127.0.0.1", 0, dispatch=other)
        assert port != world.listener.port
        first, first_writer = await connect(world)
        second, second_writer = await asyncio.open_connection("127.0.0.1", port)
        first_writer.write(frame(1))
        second_writer.write(frame(2))
        assert (await read_response(first))[0] == 1
        assert (await read_response(second))[0] == 2
        assert (world.script.begun, other.begun) == ([1], [2])
        third, third_writer = await connect(world)
        assert await third.read() == b""  # closed: two are connected already
        assert world.metrics.connections_refused == 1
        for writer in (first_writer, second_writer, third_writer):
            writer.close()


async def test_pipelined_requests_and_large_frames() -> None:
    async with listening() as world:
        reader, writer = await connect(world)
        slow = range(0, 300, 7)
        world.script.later(*slow)
        for number in range(300):
            size = 20 << 20 if number == 150 else (8, 500, 100_000)[number % 3]
            writer.write(frame(number, key=PRODUCE if number % 2 else 18, size=size))

        async def answer_slowly() -> None:
            for number in slow:
                await until(lambda number=number: number in world.script.begun)  # type: ignore[misc]
                world.script.respond(number, size=70_000)

        helper = asyncio.ensure_future(answer_slowly())
        for number in range(300):
            assert await read_response(reader) == (number, 70_000 if number in slow else 4)
        await helper
        assert len(world.script.frames[150]) == 20 << 20
        writer.close()
        await writer.wait_closed()


async def test_answers_are_released_when_the_kernel_has_them(request: pytest.FixtureRequest) -> None:
    if "asyncio" in request.node.name and (3, 12) <= sys.version_info < PAUSES_SINCE:
        pytest.skip("this Python's own loop does not tell that writelines() was too much (CVE-2024-12254)")

    async with listening() as world:
        world.script.later(1)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.listener.port))
        await loop.sock_sendall(sock, frame(1) + frame(2))
        await until(lambda: world.script.begun == [1])
        world.script.respond(1, size=32 << 20)
        (connection,) = world.listener.connections
        await until(lambda: not connection._is_reading)
        assert world.script.released == []
        assert world.script.begun == [1]
        left = 4 + (32 << 20) + 8
        while left:
            left -= len(await loop.sock_recv(sock, 1 << 20))
        assert world.script.released == [1, 2]
        sock.close()


async def test_a_client_that_leaves_is_noticed() -> None:
    async with listening() as world:
        world.script.later(1)
        _, writer = await connect(world)
        writer.write(frame(1) + frame(2))
        await until(lambda: world.script.begun == [1])
        writer.close()
        await until(lambda: world.script.answers[1].cancelled())
        await until(lambda: not world.listener.connections)
        assert world.script.begun == [1]


async def test_malformed_and_refused_requests_close_the_connection() -> None:
    async with listening(max_connections=2) as world:
        kept = await connect(world)
        reader, writer = await connect(world)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await until(lambda: len(world.listener.connections) == 1)
        second, third = await connect(world), await connect(world)
        assert await third[0].read() == b""
        kept[1].write(frame(1))
        assert await read_response(kept[0]) == (1, 4)
        for _, each in (kept, second, third):
            each.close()


async def test_drain_over_sockets() -> None:
    async with listening() as world:
        world.script.later(1)
        port = world.listener.port
        reader, writer = await connect(world)
        writer.write(frame(1))
        await until(lambda: world.script.begun == [1])
        draining = asyncio.ensure_future(world.listener.drain(30))
        await asyncio.sleep(0)
        world.script.respond(1, size=1 << 20)
        assert await read_response(reader) == (1, 1 << 20)
        assert await reader.read() == b""
        await draining
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
