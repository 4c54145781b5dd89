"""The HTTP port under clients that send or read slowly, or not at all, or ask for too much at once.

On the loop that `bmq serve` runs on: closing differs between loops when there are bytes left to send.
"""

from __future__ import annotations

import asyncio
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from bmq.console import exposition, http_connection, queries
from bmq.console.http import HttpServer
from bmq.console.http_connection import HttpConnection
from bmq.console.listing import Order, Page
from bmq.console.state import ConsoleState, GroupsFacts
from tests.harness.waiting import until
from tests.unit.console.states import state
from tests.unit.console.test_http_connection import connect, get, serving

pytestmark = [pytest.mark.slow, pytest.mark.loops("uvloop")]

SIZE = 8 << 20
"""Of a response: more than the kernel keeps for a socket whose reader wants little."""
METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = (
    b"POST /api/v1/cluster/balance HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


@pytest.fixture
def large_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "render", lambda taken: b"x" * SIZE)


@contextmanager
def asked(server: HttpServer, *requests: bytes) -> Iterator[list[socket.socket]]:
    """Yield a connection for each of these requests; nothing is read from it."""
    with ExitStack() as stack:
        made = []
        for request in requests:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request)
            made.append(client)
        yield made


def left_for(client: socket.socket) -> int:
    """Return how many bytes come until the connection's end."""
    got = 0
    while piece := client.recv(1 << 16):
        got += len(piece)
    return got


def with_gate(gate: asyncio.Event) -> ConsoleState:
    """Return a state whose list of groups waits for the gate."""
    console = state()

    async def groups(search: str, order: Order, page: Page, visible: Callable[[str], bool] | None) -> GroupsFacts:
        await gate.wait()
        return await console.groups(search, order, page, visible)

    return replace(console, groups=groups)


@pytest.mark.parametrize("end", [b"", b"Connection: close\r\n"])
@pytest.mark.usefixtures("large_metrics")
async def test_who_does_not_read_a_response_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(http_connection, "SEND_S", 0.05)
    monkeypatch.setattr(http_connection, "SEND_BYTES_A_SECOND", SIZE * 20)

    async with serving() as server:
        with asked(server, METRICS[:-2] + end + b"\r\n") as (client,):
            await until(lambda: server.connections.requests == 1)
            await until(lambda: server.open_connections == 0)
            assert left_for(client) < SIZE
        assert (len(server.connections), server.connections.sending_bytes) == (0, 0)


@pytest.mark.usefixtures("large_metrics")
async def test_who_reads_slowly_gets_the_whole_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time grows with the response: this one takes longer than a small one may."""
    monkeypatch.setattr(http_connection, "SEND_S", 0.05)
    monkeypatch.setattr(http_connection, "SEND_BYTES_A_SECOND", SIZE // 20)

    async with serving() as server:
        with asked(server, METRICS) as (client,):
            await until(lambda: server.connections.sending_bytes == SIZE)
            await asyncio.sleep(4 * http_connection.SEND_S)
            client.setblocking(False)
            loop, got = asyncio.get_running_loop(), 0
            while got < SIZE:
                got += len(await loop.sock_recv(client, 1 << 16))


@pytest.mark.usefixtures("large_metrics")
async def test_who_does_not_read_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill all connections with clients that do not read: the next ones close them, whatever they have not read."""
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 5)

    async with serving() as server:
        with asked(server, *[METRICS] * 5):
            await until(lambda: server.connections.sending_bytes == 5 * SIZE)
            with asked(server, *[METRICS] * 5):
                for _ in range(3):
                    assert b" 200 " in await get(server, "/healthz")
                await until(lambda: server.open_connections <= 5)
                assert server.connections.sending_bytes <= 5 * SIZE


@pytest.mark.usefixtures("large_metrics")
async def test_unsent_responses_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ones that have been sent for longest are given up."""
    monkeypatch.setattr(http_connection, "SENDING_BYTES_MAX", 3 * SIZE)

    async with serving() as server:
        with asked(server, *[METRICS] * 3) as first:
            await until(lambda: server.connections.sending_bytes == 3 * SIZE)
            with asked(server, *[METRICS] * 3):
                await until(lambda: server.connections.dropped == 3)
                await until(lambda: server.open_connections == 3)
                assert server.connections.sending_bytes == 3 * SIZE
                assert all(left_for(client) < SIZE for client in first)


async def test_slow_bodies_make_room_for_others(monkeypatch: pytest.MonkeyPatch, server_log: io.StringIO) -> None:
    """Each has begun a request, whose body does not come."""
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", 5)

    async with serving() as server:
        with asked(server, *[POST] * 5):
            await until(lambda: server.connections.requests == 5)
            for _ in range(10):
                assert b" 200 " in await get(server, "/healthz")
            await until(lambda: server.open_connections <= 5)
    assert server_log.getvalue() == ""


async def test_slow_bodies_keep_nobody_from_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUESTS_MAX", 3)

    async with serving() as server:
        with asked(server, *[POST] * 4):
            await until(lambda: server.connections.requests == 4)
            assert b" 200 " in await get(server, "/api/v1/cluster")
            assert server.open_connections == 4


async def test_slow_bodies_make_room_for_other_bodies(monkeypatch: pytest.MonkeyPatch, server_log: io.StringIO) -> None:
    monkeypatch.setattr(http_connection, "BODIES_MAX", 2)

    async with serving() as server:
        with asked(server, *[POST] * 5) as clients:
            await until(lambda: server.connections.requests == 5)
            await until(lambda: server.open_connections == 2)
            clients[-1].sendall(b" " * 98 + b"}")
            clients[-1].setblocking(False)
            response = await asyncio.get_running_loop().sock_recv(clients[-1], 100)
            assert response.startswith(b"HTTP/1.1 200 ")
    assert server_log.getvalue() == ""


async def test_a_body_that_comes_while_the_api_is_busy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUESTS_MAX", 1)
    gate = asyncio.Event()

    async with serving(console=with_gate(gate)) as server:
        reader, writer = await connect(server)
        writer.write(POST)
        await until(lambda: server.connections.requests == 1)
        waiting = asyncio.create_task(get(server, "/api/v1/groups"))
        await until(lambda: server.connections.requests == 2)
        writer.write(b" " * 98 + b"}")
        assert b" 503 " in await reader.readline()
        gate.set()
        assert b" 200 " in await waiting
        for _ in range(3):
            assert b" 200 " in await get(server, "/api/v1/cluster")
        writer.close()


async def test_who_leaves_within_a_body_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response to it has nowhere to go."""
    timers, ended = list[asyncio.TimerHandle | None](), asyncio.Event()
    finish = HttpConnection.finish_response

    async def finish_response(self: HttpConnection, *args: Any) -> Any:
        try:
            return await finish(self, *args)
        finally:
            timers.append(self._deadline)
            ended.set()

    monkeypatch.setattr(HttpConnection, "finish_response", finish_response)

    async with serving() as server:
        with asked(server, POST):
            await until(lambda: server.connections.requests == 1)
        await ended.wait()
        await until(lambda: server.open_connections == 0)
    assert timers == [None]


async def test_who_leaves_within_a_body_is_no_fault_of_ours(server_log: io.StringIO) -> None:
    async with serving() as server:
        with asked(server, POST):
            await until(lambda: server.connections.requests == 1)
        await until(lambda: server.open_connections == 0)
    assert server_log.getvalue() == ""


async def test_a_slow_body_is_refused_and_the_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BODY_TIMEOUT_S", 0.05)

    async with serving() as server:
        reader, writer = await connect(server)
        writer.write(POST)
        assert b" 408 " in await reader.readline()
        await reader.readuntil(b'"}')
        writer.write(b" " * 99 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_health_and_metrics_are_answered_while_the_api_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that take long leave room for those that say how the process is."""
    monkeypatch.setattr(http_connection, "REQUESTS_MAX", 3)
    gate = asyncio.Event()

    async with serving(console=with_gate(gate)) as server:
        waiting = [asyncio.create_task(get(server, "/api/v1/groups")) for _ in range(3)]
        await until(lambda: server.connections.requests == 3)
        reader, writer = await connect(server)
        writer.write(b"GET /api/v1/cluster HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        response = await reader.read()
        assert b" 503 " in response.partition(b"\r\n")[0]
        assert b'"error": "busy"' in response
        writer.close()
        for path in ("/healthz", "/readyz", "/metrics"):
            assert b" 200 " in await get(server, path)
        gate.set()
        assert all(b" 200 " in line for line in await asyncio.gather(*waiting))
        assert b" 200 " in await get(server, "/api/v1/cluster")


async def test_scrapes_that_wait_for_each_other_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold SCRAPES_MAX scrapes, which are rendered one at a time: the next is refused (503), other paths respond."""
    monkeypatch.setattr(http_connection, "SCRAPES_MAX", 2)
    gate = threading.Event()
    render = exposition.render

    def slowly(taken: exposition.Numbers) -> bytes:
        assert gate.wait(30)
        return render(taken)

    monkeypatch.setattr(exposition, "render", slowly)

    async with serving() as server:
        waiting = [asyncio.create_task(get(server, "/metrics")) for _ in range(2)]
        await until(lambda: server.connections.requests == 2)
        assert b" 503 " in await get(server, "/metrics")
        assert b" 200 " in await get(server, "/healthz")
        gate.set()
        assert all(b" 200 " in line for line in await asyncio.gather(*waiting))
