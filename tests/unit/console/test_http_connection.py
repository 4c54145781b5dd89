"""The HTTP port under strangers: bounded connections and heads, few log lines, and only its own names."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bmq.console import http_connection
from bmq.console.http import Hosts, HttpServer
from bmq.console.security_headers import SECURITY_HEADERS
from bmq.console.state import ConsoleState
from bmq.core.aio.subscribers import no_op
from bmq.core.logging.limit import BURST
from bmq.core.net.departures import ended
from tests.harness.waiting import until
from tests.unit.console.states import state

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(
    *names: str, console: ConsoleState | None = None, look: Callable[[], None] = no_op
) -> AsyncIterator[HttpServer]:
    """Yield a server of `console` under these names."""
    server = HttpServer(console or state(), "127.0.0.1", 0, names, look=look)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: HttpServer) -> Streams:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def get(server: HttpServer, path: str, host: str = "localhost") -> bytes:
    """Request ``path`` over a new connection and return the status line."""
    reader, writer = await connect(server)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    line = await reader.readline()
    await reader.read()
    writer.close()
    return line


async def test_a_standstill_is_found_before_the_bytes_that_lay_in_a_socket_are_read() -> None:
    has_stood = False

    def look() -> None:
        if has_stood:
            server.give_clients_up()

    async with serving(look=look) as server:
        reader, writer = await connect(server)
        for has_stood in (False, True):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if not has_stood:
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                await reader.readuntil(b"\r\n\r\n")
        assert b"HTTP/1.1" not in await reader.read()
        assert server.connections.requests == 1
        writer.close()


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_after_a_standstill_a_request_is_not_served_if_its_client_has_gone(is_accepted: bool) -> None:
    """The client connected before, or while the process stood still: then only the kernel has accepted it."""
    has_stood = False

    def look() -> None:
        nonlocal has_stood
        if has_stood:
            has_stood = False
            closed.append(server.close_departed())

    closed: list[int] = []
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(look=look) as server:
        reader, writer = await connect(server)
        writer.write(request)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await reader.readuntil(b"\r\n\r\n")
        leaving = socket.create_connection(("127.0.0.1", server.port))
        if is_accepted:
            await until(lambda: len(server.connections) == 2)
        leaving.sendall(request)
        leaving.close()
        for _ in range(20_000 if is_accepted else 0):  # loopback delivers the end at once
            if ended([each.socket for each in server.connections._waiting if each.socket]):
                break
        has_stood = True
        if not is_accepted:
            look()
        writer.write(request)
        await reader.readuntil(b" 200 OK\r\n")
        await until(lambda: len(server.connections) == 1)
        assert closed == [int(is_accepted)]
        assert server.connections.requests == 2
        writer.close()


@pytest.mark.parametrize("loop", ["one large head", "many small pieces"])
async def test_a_head_has_a_bound(loop: str) -> None:
    """Send headers that never end: the connection is closed, whatever the size of the pieces; health responds."""
    async with serving() as server:
        reader, writer = await connect(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        size = 7_000 if loop == "one large head" else 700
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 4 * http_connection.HEAD_BYTES_MAX and not reader.at_eof():
                writer.write(b"X-%d: %s\r\n" % (sent, b"x" * size))
                await writer.drain()
                sent += size
                await asyncio.sleep(0)
            assert b" 200 " not in await reader.read()
        writer.close()
        assert b" 200 " in await get(server, "/healthz")


@pytest.mark.parametrize(("headers", "status"), [(90, b" 200 "), (110, b" 400 ")])
async def test_a_request_has_a_hundred_headers_at_most(headers: int, status: bytes) -> None:
    async with serving() as server:
        reader, writer = await connect(server)
        more = b"".join(b"X-%d: x\r\n" % number for number in range(headers))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n")
        assert status in await reader.readline()
        writer.close()


@pytest.mark.parametrize("line", [b"GET /healthz HTTP/1.1", b"GET /nowhere HTTP/1.1", b"NOT HTTP", b"GET / HTTP/9.9"])
async def test_every_response_has_the_headers_of_security_and_no_versions(line: bytes) -> None:
    async with serving() as server:
        reader, writer = await connect(server)
        writer.write(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
        fields = dict(each.split(b": ", 1) for each in head.split(b"\r\n")[1:])
        for name, value in SECURITY_HEADERS.items():
            assert fields[name.encode()] == value.encode()
        assert b"aiohttp" not in head
        writer.close()


async def test_a_body_behind_its_head_is_not_a_part_of_it() -> None:
    """Send head and body at once, the body larger than any head: the body's own bound refuses it."""
    async with serving() as server:
        reader, writer = await connect(server)
        body = b"{" + b" " * (http_connection.HEAD_BYTES_MAX + 1) + b"}"
        head = f"POST /api/v1/topics/orders/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        assert b" 201 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("size", [100_000, 130_000, 300_000, 1_900_000])
@pytest.mark.parametrize("pieces", ["all at once", "a head in two pieces"])
async def test_a_large_body_may_come_with_its_head(size: int, pieces: str) -> None:
    async with serving() as server:
        reader, writer = await connect(server)
        head = b"POST /api/v1/topics/orders/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size
        if pieces != "all at once":
            writer.write(head[:-1])
            await until(lambda: any(connection._head_bytes for connection in server.connections._waiting))
            head = head[-1:]
        writer.write(head + b"{" + b" " * (size - 2) + b"}")
        assert b" 201 " in await reader.readline()
        await reader.read()
        writer.close()


async def test_half_a_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send nothing, half a head, or half of a connection's second request: the server closes after HEAD_S."""
    monkeypatch.setattr(http_connection, "HEAD_S", 0.05)

    async with serving() as server:
        for sent in (b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "):
            reader, writer = await connect(server)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
        reader, writer = await connect(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await reader.readline()
        await reader.readuntil(b"}")
        writer.write(b"GET /heal")
        assert await reader.read() == b""
        writer.close()
        assert len(server.connections) == 0


async def test_an_idle_connection_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a head does not run while none is being sent."""
    monkeypatch.setattr(http_connection, "HEAD_S", 0.5)

    async with serving() as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            await reader.readuntil(b"}")
            ended = await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=1.0)
            for task in ended[1]:
                task.cancel()
                await asyncio.wait([task])
            assert not ended[0]
        writer.close()


async def test_strangers_who_hold_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 5)

    async with serving() as server:
        held = [await connect(server) for _ in range(20)]
        for _ in range(10):
            assert b" 200 " in await get(server, "/healthz")
        assert len(server.connections) <= 5
        assert server.connections.refused >= 15
        for _, writer in held:
            writer.close()


async def test_malformed_requests_are_lines_and_not_tracebacks(
    caplog: pytest.LogCaptureFixture, server_log: io.StringIO
) -> None:
    caplog.set_level(logging.DEBUG, "bmq")
    caplog.set_level(logging.DEBUG, "aiohttp")

    async with serving() as server:
        for _ in range(60):
            reader, writer = await connect(server)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX \x1b[2J: 1\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
    records = [record for record in caplog.records if record.name.startswith(("bmq.console", "aiohttp"))]
    assert records
    assert all(record.exc_info is None for record in records)
    written = server_log.getvalue()
    assert 1 <= written.count("malformed HTTP") <= BURST
    assert "\x1b" not in written


async def test_another_sites_name_reads_nothing() -> None:
    async with serving() as server:
        for host in ("localhost", "LOCALHOST:9080", "127.0.0.1:1", "[::1]:9080", "10.0.0.7"):
            assert b" 200 " in await get(server, "/api/v1/topics", host), host
        for host in ("evil.example", "evil.example:9080", "localhost.evil.example", "a@localhost", ""):
            assert b" 421 " in await get(server, "/api/v1/topics", host), host
            assert b" 421 " in await get(server, "/metrics", host), host
            assert b" 200 " in await get(server, "/healthz", host), host


async def test_names_that_are_given_are_allowed() -> None:
    async with serving("Console.Example") as server:
        assert b" 200 " in await get(server, "/api/v1/topics", "console.example:80")
        assert b" 421 " in await get(server, "/api/v1/topics", "evil.example")


@pytest.mark.parametrize("host", ["[:::::]", "[1.2]:80", "[::1", "[]", "a b", "a@b"])
async def test_a_host_that_is_none_is_refused(host: str) -> None:
    async with serving() as server:
        assert b" 421 " in await get(server, "/api/v1/topics", host)


@pytest.mark.parametrize(
    ("listen", "names", "is_allowed"),
    [
        ("127.0.0.1", (), False),
        ("localhost", (), False),
        ("::1", (), False),
        ("0.0.0.0", (), True),
        ("10.0.0.7", (), True),
        ("10.0.0.7", ("console.example",), False),
        ("127.0.0.1", ("*",), True),
    ],
)
def test_where_any_name_is_allowed(listen: str, names: tuple[str, ...], is_allowed: bool) -> None:
    assert Hosts(listen, names).allow("bmq.default.svc:9080") is is_allowed
