"""A port that takes connections with TLS and without: the first byte decides, and who sends none is no burden."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from bmq.core.net import plain_or_tls
from bmq.core.net.plain_or_tls import PlainOrTls
from tests.harness.waiting import until

pytestmark = pytest.mark.loops("asyncio", "uvloop")


class Echo(asyncio.BufferedProtocol):
    """A protocol that sends its name, then what it gets."""

    def __init__(self, name: bytes, *, closes: bool = False) -> None:
        self._name = name
        self._closes = closes
        self._buffer = bytearray(1 << 10)
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport.write(self._name)
        if self._closes:
            self._transport.close()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert not self._closes, "nothing is given to a closed protocol"
        self._transport.write(bytes(self._buffer[:nbytes]))


@asynccontextmanager
async def listening(timeout_s: float = 60, *, closes: bool = False) -> AsyncIterator[tuple[PlainOrTls, int]]:
    port = PlainOrTls(lambda: Echo(b"plain ", closes=closes), lambda: Echo(b"tls "), timeout_s)
    server = await asyncio.get_running_loop().create_server(port, "127.0.0.1", 0)
    try:
        yield port, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(port.undecided):
            connection.close()


@pytest.mark.parametrize(("sent", "expected"), [(b"\0\0\0\1x", b"plain \0\0\0\1x"), (b"\x16\3\1", b"tls \x16\3\1")])
@pytest.mark.parametrize("is_slow", [False, True])
async def test_the_first_byte_decides_and_no_byte_is_lost(sent: bytes, expected: bytes, is_slow: bool) -> None:
    async with listening() as (port, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: len(port.undecided) == 1)
        for part in [bytes([each]) for each in sent] if is_slow else [sent]:
            writer.write(part)
            await writer.drain()
        assert await reader.readexactly(len(expected)) == expected
        assert not port.undecided
        writer.close()


async def test_who_sends_nothing_is_closed_in_time() -> None:
    async with listening(0.05) as (port, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert not port.undecided
        writer.close()


async def test_who_leaves_before_a_byte_leaves_nothing() -> None:
    async with listening() as (port, number):
        _, writer = await asyncio.open_connection("127.0.0.1", number)
        await until(lambda: len(port.undecided) == 1)
        writer.close()
        await until(lambda: not port.undecided)


async def test_those_that_send_nothing_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_or_tls, "UNDECIDED_MAX", 3)
    async with listening() as (port, number):
        first, *others = [await asyncio.open_connection("127.0.0.1", number) for _ in range(4)]
        assert await asyncio.wait_for(first[0].read(), 60) == b""
        await until(lambda: len(port.undecided) == 3)
        for reader, writer in others:
            writer.write(b"\0")
            assert await reader.readexactly(7) == b"plain \0"
            writer.close()
        first[1].close()


async def test_a_connection_that_its_listener_closes_gets_no_byte() -> None:
    async with listening(closes=True) as (_, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"\0")
        assert await reader.read() == b"plain "
        writer.close()
