"""The HTTP port with TLS: requests, the log-in's cookie, and handshakes that fail, hang or are too many."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme

from bmq.console import tls_acceptor
from bmq.console.access.config import NOBODY_ASKED, AccessConfig
from bmq.console.http import HttpBindError, HttpServer
from tests.harness.waiting import until
from tests.unit.console.access.users import PASSWORDS, Users
from tests.unit.console.states import state

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio", "uvloop")]
CA = trustme.CA()


class Certificate:
    """A certificate that can be replaced."""

    def __init__(self) -> None:
        self.replace()

    def replace(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        CA.issue_cert("localhost", "127.0.0.1").configure_cert(self.context)


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context


@asynccontextmanager
async def serving(access: AccessConfig = NOBODY_ASKED) -> AsyncIterator[tuple[HttpServer, Certificate]]:
    certificate = Certificate()
    server = HttpServer(state(), "127.0.0.1", 0, access=access, certificate=certificate)
    await server.start()
    try:
        yield server, certificate
    finally:
        await server.stop()


async def serial_of(server: HttpServer) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client_context())
    shown = writer.get_extra_info("peercert")
    writer.close()
    return int(shown["serialNumber"], 16)


async def test_requests_are_served_and_the_cookie_is_for_tls_alone() -> None:
    async with serving(Users().config()) as (server, _):
        assert server.url == f"https://127.0.0.1:{server.port}"
        connector = aiohttp.TCPConnector(ssl=client_context())
        async with aiohttp.ClientSession(server.url, connector=connector) as session:
            body = {"user": "alice", "password": PASSWORDS["alice"]}
            async with session.post("/api/v1/login", json=body) as response:
                assert response.status == 200
                name, *parts = response.headers["Set-Cookie"].split("; ")
                assert name.startswith(f"__Host-bmq-{server.port}=")
                assert "Secure" in parts
            cookie = {"Cookie": name}
            async with session.get("/api/v1/me", headers=cookie) as response:
                assert (await response.json())["principal"] == "User:alice"


async def test_a_client_that_resets_its_connection_at_once_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (server, _):
        acceptor = server._tls
        assert acceptor is not None
        client = socket.create_connection(("127.0.0.1", server.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        await until(lambda: acceptor.failed == 1)
        assert acceptor.handshakes == 0
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == []


async def test_plain_requests_and_wrong_bytes_get_nothing() -> None:
    async with serving() as (server, _):
        for sent in (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01" + b"x" * 300, b"\0" * 4000):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            with contextlib.suppress(ConnectionError):  # an end as good
                assert b"HTTP/1.1 200" not in await reader.read()
            writer.close()
        assert server._tls is not None
        await until(lambda: server._tls is not None and server._tls.failed == 3)
        assert await serial_of(server)


async def test_new_connections_get_the_new_certificate() -> None:
    async with serving() as (server, certificate):
        before = await serial_of(server)
        assert await serial_of(server) == before
        certificate.replace()
        assert await serial_of(server) != before


async def test_handshakes_that_hang_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 0.05)
    async with serving() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):  # an end as good
            assert await reader.read() == b""
        writer.close()
        await until(lambda: server._tls is not None and server._tls.handshakes == 0)


async def test_hanging_handshakes_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "HANDSHAKES_MAX", 5)
    async with serving() as (server, _):
        hanging = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        await until(lambda: server._tls is not None and server._tls.failed == 15)
        assert server._tls is not None
        assert server._tls.handshakes <= 5
        assert await serial_of(server)
        for _, writer in hanging:
            writer.close()


async def test_an_address_in_use_is_told() -> None:
    async with serving() as (server, _):
        other = HttpServer(state(), "127.0.0.1", server.port, certificate=Certificate())
        with pytest.raises(HttpBindError, match="already in use"):
            await other.start()
