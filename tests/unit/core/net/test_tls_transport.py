"""TLS connections of a listener: over loopback sockets on both loops, and without sockets where a kernel's room counts.

Shown: requests and responses pass in order and whole at every size; both directions pause; closed handshakes say why,
once, and bound nothing else; a connection counts from its accept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from bmq.core.aio.subscribers import no_op
from bmq.core.config import NodeConfig
from bmq.core.logging.fields import fields_of
from bmq.core.net import newcomers
from bmq.core.net.admission import Admission
from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.exchanges import UNANSWERED_MAX
from bmq.core.net.frames import SHARED_BYTES
from bmq.core.net.listener import Listener
from bmq.core.net.tls_transport import PIECE_BYTES, TlsTransport
from bmq.core.security.listener_settings import security_of
from bmq.core.security.principal import ANONYMOUS, user
from bmq.core.security.session import Session
from bmq.core.security.tls import ServerTls
from tests.harness.certificates import Certificates
from tests.harness.waiting import until
from tests.unit.core.net.test_admission import Rates
from tests.unit.core.net.world import NO_ACKS, PRODUCE, World, frame, turn

SESSION = Session(listener="OUT", protocol="SSL")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def tls(made: Certificates, **settings: str) -> ServerTls:
    config = NodeConfig(
        ssl_keystore_location=str(made.server),
        ssl_truststore_location=str(made.trust),
        **settings,  # type: ignore[arg-type]
    )
    return ServerTls(security_of("OUT", "SSL", config, ()))


def client_context(made: Certificates, *, has_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.trust))
    if has_certificate:
        context.load_cert_chain(made.client)
    return context


@asynccontextmanager
async def listening(server: ServerTls, **settings: Any) -> AsyncIterator[World]:
    world = World(**settings)
    await world.listener.start("127.0.0.1", 0, session=SESSION, tls=server)
    yield world
    await world.listener.drain(5)
    assert world.metrics.request_bytes_held == 0
    assert world.metrics.connections == 0


async def connect(world: World, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", world.listener.port, limit=1 << 26, ssl=context, server_hostname="localhost"
    )


async def read_response(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Read the next response and return its number and size."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    body = await reader.readexactly(size)
    return struct.unpack_from(">i", body)[0], size


def only(world: World) -> ClientConnection:
    (connection,) = world.listener.connections
    return connection


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        str(fields_of(record)["error"])
        for record in caplog.records
        if record.message == "closing a connection: its TLS handshake failed"
    ]


async def _closed(reader: asyncio.StreamReader) -> None:
    """Read to the end of a connection that the other side may reset."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while await reader.read(1 << 16):
            pass


# ---------------------------------------------------------------------------------------------- without a socket


class Raw(asyncio.Transport):
    """A socket's transport that keeps what is written and delivers nothing by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.when_written: Callable[[], object] = no_op
        self.is_closed = False
        self.is_paused = False
        self.when_resumed: Callable[[], object] = no_op

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data
        self.when_written()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self.when_resumed()

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.close()


class SecureClient:
    """A client of a ``TlsTransport`` whose bytes come in the pieces, and at the times, that the test chooses."""

    def __init__(self, world: World, made: Certificates) -> None:
        self.raw = Raw()
        self.connection = ClientConnection(world.listener)
        self.connection.session = SESSION
        self.transport = TlsTransport(world.listener, tls(made), 10, lambda: self.connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = client_context(made).wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.transport.connection_made(self.raw)
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                self.deliver()
                self._incoming.write(bytes(self.raw.written))
                self.raw.written.clear()
            else:
                break
        self.deliver()

    def deliver(self, data: bytes = b"") -> None:
        """Encrypt ``data``, and deliver all that is encrypted."""
        if data:
            self._ssl.write(data)
        while cipher := self._outgoing.read(PIECE_BYTES):
            self.transport.get_buffer(-1)[: len(cipher)] = cipher
            self.transport.buffer_updated(len(cipher))


def without_response(number: int, size: int) -> bytes:
    return frame(number, key=PRODUCE, version=NO_ACKS, size=size)


async def test_the_sockets_end_comes_behind_all_that_lies_undecrypted(made: Certificates) -> None:
    """uvloop reads the socket's end before it calls what ``resume_reading`` has scheduled."""
    world = World()
    client = SecureClient(world, made)
    first, later = UNANSWERED_MAX, SHARED_BYTES // 128  # more are not read before they are responded to
    count = first + 2 * later
    world.script.later(*range(count))
    client.deliver(b"".join(without_response(number, 8) for number in range(first)))
    for begin in (first, first + later):  # each fills the receive buffer, so that nothing tells that it was the last
        client.deliver(b"".join(without_response(number, 124) for number in range(begin, begin + later)))
    await turn(5)
    assert client.raw.is_paused
    assert len(world.script.begun) == first
    loop = asyncio.get_running_loop()

    def end() -> None:
        client.raw.when_resumed = no_op
        assert client.transport.eof_received()

    client.raw.when_resumed = lambda: loop.call_soon(end)  # in the turn that decrypts, before it
    while not client.raw.is_closed:
        running = [each for each in world.script.begun if not world.script.answers[each].done()]
        assert running
        world.script.respond(*running)
        await turn(20)
    assert world.script.begun == list(range(count))


@pytest.mark.parametrize("by_response", [True, False])
async def test_a_client_that_has_gone_and_reads_nothing_is_read_to_its_end(
    made: Certificates, by_response: bool
) -> None:
    world = World()
    client = SecureClient(world, made)
    if by_response:
        client.raw.when_written = client.transport.pause_writing
        client.deliver(frame(1))
        client.raw.when_written = no_op
    else:  # by bytes of TLS itself, without an event of the connection
        client.transport.pause_writing()
    await turn()
    assert client.raw.is_paused
    client.connection.depart()
    await turn()
    assert not client.raw.is_paused
    client.deliver(frame(2) + without_response(3, 8))
    assert world.script.begun == ([1, 3] if by_response else [3])
    client.transport.eof_received()
    await turn()
    assert client.raw.is_closed


@pytest.mark.parametrize("has_left", [True, False])
async def test_a_client_that_has_gone_and_reads_nothing_is_drained_at_once(made: Certificates, has_left: bool) -> None:
    world = World()
    client = SecureClient(world, made)
    client.raw.when_written = client.transport.pause_writing
    client.deliver(frame(1))
    if has_left:
        client.connection.depart()
    client.connection.drain()
    await turn()
    assert client.raw.is_closed is has_left
    client.connection.close()


# ------------------------------------------------------------------------------------------------------- sockets


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_requests_of_every_size_pass_both_ways(made: Certificates) -> None:
    sizes = [8, 9, 100, 16_383, 16_384, 16_385, PIECE_BYTES, PIECE_BYTES + 1, 1 << 20, 8 << 20]
    async with listening(tls(made)) as world:
        reader, writer = await connect(world, client_context(made))
        for number, size in enumerate(sizes):
            world.script.later(number)
            writer.write(frame(number, key=PRODUCE, size=size))
        for number, size in enumerate(sizes):
            await until(partial(_has_begun, world, number))
            assert len(world.script.frames[number]) == size
            world.script.respond(number, size=size)
        assert [await read_response(reader) for _ in sizes] == list(enumerate(sizes))
        connection = only(world)
        assert (connection.session.listener, connection.session.protocol) == ("OUT", "SSL")
        assert connection.session.principal == ANONYMOUS
        writer.close()
        await until(lambda: not world.listener.connections)
    assert world.metrics.tls_handshakes_failed == 0


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_a_client_that_does_not_read_pauses_both_directions_and_loses_nothing(made: Certificates) -> None:
    async with listening(tls(made)) as world:
        reader, writer = await connect(world, client_context(made))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        world.script.later(1)
        writer.write(frame(1) + b"".join(frame(number) for number in range(2, 50)))
        await until(lambda: 1 in world.script.begun)
        world.script.respond(1, size=32 << 20)
        await until(lambda: "blocked" in repr(only(world)))
        transport = only(world)._transport
        assert isinstance(transport, TlsTransport)
        assert transport.get_write_buffer_size() > 16 << 20
        assert len(transport._outgoing.read()) == 0, "what the kernel does not take is not encrypted"
        assert world.script.begun == [1]
        assert world.script.released == []
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await read_response(reader) == (1, 32 << 20)
        assert [(await read_response(reader))[0] for _ in range(48)] == list(range(2, 50))
        assert world.script.released[0] == 1
        writer.close()


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_a_client_that_sends_more_than_is_begun_is_not_read_from(made: Certificates) -> None:
    """Hold 300 requests: reading stops, and goes on where it stopped once they are answered."""
    async with listening(tls(made)) as world:
        world.script.later(0)
        reader, writer = await connect(world, client_context(made))
        sent = asyncio.create_task(_send(writer, b"".join(frame(number, size=10_000) for number in range(5_000))))
        await until(lambda: not only(world)._is_reading)
        held = len(only(world)._requests.waiting)
        assert UNANSWERED_MAX - 1 <= held < 400, "what came with one read may be more than the bound"
        transport = only(world)._transport
        assert isinstance(transport, TlsTransport)
        assert transport._incoming.pending <= PIECE_BYTES
        world.script.respond(0)
        assert [(await read_response(reader))[0] for _ in range(5_000)] == list(range(5_000))
        await sent
        writer.close()


def _has_begun(world: World, number: int) -> bool:
    return number in world.script.begun


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


@pytest.mark.loops("asyncio", "uvloop")
async def test_a_clients_certificate_gives_its_principal(made: Certificates) -> None:
    server = tls(made, ssl_client_auth="requested", ssl_principal_mapping_rules="RULE:CN=(\\w+),.*/$1/")
    async with listening(server) as world:
        reader, writer = await connect(world, client_context(made, has_certificate=True))
        writer.write(frame(1))
        await read_response(reader)
        assert only(world).session == Session(principal=user("alice"), listener="OUT", protocol="SSL")
        (event,) = world.audit.events
        assert (event.act, event.outcome.value, str(event.session.principal)) == ("LOGIN", "allowed", "User:alice")
        writer.close()
        await until(lambda: not world.listener.connections)
        reader, writer = await connect(world, client_context(made))
        writer.write(frame(1))
        await read_response(reader)
        assert only(world).session == SESSION
        writer.close()


@pytest.mark.loops("asyncio", "uvloop")
async def test_the_clients_end_of_tls_closes_and_a_closed_listener_says_it(made: Certificates) -> None:
    async with listening(tls(made)) as world:
        reader, writer = await connect(world, client_context(made))
        writer.write(frame(1))
        await read_response(reader)
        only(world).close()
        assert await reader.read() == b"", "close_notify came: an end of TLS, not a cut"
        writer.close()


@pytest.mark.loops("asyncio", "uvloop")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(1), "plain bytes at a TLS port: the client needs security.protocol=SSL"),
        (b"GET / HTTP/1.1\r\n\r\n", "plain bytes at a TLS port"),
        (b"\x16\x03\x01\x02\x00" + b"\xff" * 600, ""),
        (b"\x16" + b"\xff" * 70_000, ""),
    ],
)
async def test_bytes_that_are_not_tls_give_one_line(
    made: Certificates, caplog: pytest.LogCaptureFixture, data: bytes, said: str
) -> None:
    async with listening(tls(made)) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
        writer.write(data)
        await _closed(reader)
        await until(lambda: not world.listener.connections)
        writer.close()
    (line,) = failures(caplog)
    assert said in line
    assert [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info] == []
    assert world.metrics.tls_handshakes_failed == 1


async def test_tls_at_a_plain_port_gives_one_line(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    hello = ssl.MemoryBIO()
    client = client_context(made).wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    world = World()
    peer = world.peer()
    peer.send(hello.read())
    assert peer.is_gone
    (record,) = caplog.records
    assert "TLS spoken to a plain port" in str(fields_of(record)["error"])
    world.listener.close()


@pytest.mark.loops("asyncio", "uvloop")
async def test_a_client_without_a_certificate_is_told_so_in_the_log(
    made: Certificates, caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Certificates.make(tmp_path_factory.mktemp("other"))
    stranger = client_context(made)
    stranger.load_cert_chain(other.client)
    distrusting = ssl.create_default_context(cafile=str(other.trust))
    async with listening(tls(made, ssl_client_auth="required")) as world:
        for context in (client_context(made), stranger, distrusting):
            try:
                reader, writer = await connect(world, context)
                await _closed(reader)
                writer.close()
            except (ssl.SSLError, ConnectionError):
                continue
        await until(lambda: not world.listener.connections)
    assert [line if "has left" in line else line.partition(":")[0] for line in failures(caplog)] == [
        "the client has shown no certificate, which ssl.client.auth=required asks for",
        "the client's certificate is not accepted",
        "the client has left: it may not trust this listener's certificate, or want another version or suite",
    ]
    events = world.audit.events
    assert [(each.act, each.outcome.value) for each in events] == [("HANDSHAKE", "failed")] * 3
    assert [each.reason for each in events] == failures(caplog)


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_silent_and_slow_handshakes_end_and_others_are_served(
    made: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open connections that say nothing, or half a hello: they count, and are closed in time; a client is served."""
    monkeypatch.setattr(newcomers, "KEPT_S", 0.0)
    async with listening(tls(made), tls_handshake_ms=1_000, max_connections=21) as world:
        silent = [await asyncio.open_connection("127.0.0.1", world.listener.port) for _ in range(20)]
        for number, (_, writer) in enumerate(silent):
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[:number])
        await until(lambda: len(world.listener.connections) == 20)
        reader, writer = await connect(world, client_context(made))
        writer.write(frame(1))
        assert await read_response(reader) == (1, 4)
        late, late_writer = await connect(world, client_context(made))
        late_writer.write(frame(2))
        assert await read_response(late) == (2, 4)
        assert await silent[-1][0].read() == b"", "it has lost its place to a client"
        assert world.metrics.connections_refused == 1
        await until(lambda: len(world.listener.connections) == 2)
        assert set(failures(caplog)) == {"the TLS handshake was not done within 1 s"}
        assert world.metrics.tls_handshakes_failed == 19
        writer.write(frame(3))
        assert await read_response(reader) == (3, 4)
        for _, each in (*silent, (reader, writer), (late, late_writer)):
            each.close()


async def test_the_time_of_a_handshake_begins_after_the_wait_for_a_rate(made: Certificates) -> None:
    server, wait_s = tls(made), 4.9
    world = World(tls_handshake_ms=4_000)
    world.listener = Listener(world.script, world.config, world.metrics, rates=Rates(Admission(wait_s)))

    def begin() -> ClientConnection:
        connection = ClientConnection(world.listener)
        connection.session = SESSION
        return connection

    raw = Raw()
    secured = TlsTransport(world.listener, server, 4.0, begin)
    secured.connection_made(raw)
    await asyncio.sleep(wait_s + 3.9)
    assert (raw.is_closed, world.metrics.tls_handshakes_failed) == (False, 0)
    await asyncio.sleep(0.2)
    assert (raw.is_closed, world.metrics.tls_handshakes_failed) == (True, 1)
    world.listener.close()


@pytest.mark.loops("asyncio", "uvloop")
async def test_a_connection_that_only_opens_leaves_no_line(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Open and close, as the health checks of load balancers do."""
    async with listening(tls(made)) as world:
        _, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
        await until(lambda: len(world.listener.connections) == 1)
        writer.close()
        await until(lambda: not world.listener.connections)
    assert caplog.records == []


@pytest.mark.loops("asyncio", "uvloop")
async def test_new_connections_get_a_changed_certificate(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = Certificates.make(tmp_path_factory.mktemp("changing"))
    server = tls(made)
    async with listening(server) as world:
        first, first_writer = await connect(world, client_context(made))
        made.issue_server()
        assert server.reload()
        second, second_writer = await connect(world, client_context(made))
        certificates = [
            writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            for writer in (first_writer, second_writer)
        ]
        assert certificates[0] != certificates[1]
        for number, (reader, writer) in enumerate(((first, first_writer), (second, second_writer))):
            writer.write(frame(number))
            assert (await read_response(reader))[0] == number
            writer.close()


def _send_a_record_that_nobody_has_encrypted(port: int, context: ssl.SSLContext) -> None:
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as sock:
        socket.socket.send(sock, b"\x17\x03\x03\x00\x40" + bytes(64))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            sock.recv(1)


def _record(secret: bytes, number: int, kind: int, content: bytes) -> bytes:
    """Return a record of TLS 1.3 with TLS_AES_256_GCM_SHA384, the ``number``-th of its side."""

    def expanded(label: bytes, size: int) -> bytes:
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(secret)

    nonce = int.from_bytes(expanded(b"tls13 iv", 12)) ^ number
    plain = content + bytes([kind])
    head = b"\x17\x03\x03" + struct.pack(">H", len(plain) + 16)
    return head + AESGCM(expanded(b"tls13 key", 32)).encrypt(nonce.to_bytes(12), plain, head)


def _shake_hands(port: int, context: ssl.SSLContext, keys: Path) -> tuple[socket.socket, bytes]:
    """Return a connection whose handshake is done, and the secret of the client's records."""
    context.keylog_filename = str(keys)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    raw = socket.create_connection(("127.0.0.1", port), timeout=10)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(1 << 16))
    raw.sendall(outgoing.read())
    assert client.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
    (line,) = [each for each in keys.read_text().splitlines() if each.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
    return raw, bytes.fromhex(line.split()[2])


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.loops("asyncio", "uvloop")
async def test_half_a_message_of_tls_closes_the_connection_and_gives_its_response_back(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_later: bool
) -> None:
    """OpenSSL encrypts nothing then; without the bounds' release every such response would shrink them."""
    async with listening(tls(made)) as world:
        world.script.later(1)
        if not is_later:
            world.script.respond(1)
        raw, secret = await asyncio.to_thread(
            _shake_hands, world.listener.port, client_context(made), tmp_path / "keys"
        )
        with raw, caplog.at_level(logging.WARNING):
            key_update = b"\x18\0\0\1"  # without its one byte
            request = _record(secret, 0, 0x17, frame(1, key=PRODUCE))
            raw.sendall(request + _record(secret, 1, 0x16, key_update))
            await until(partial(_has_begun, world, 1))
            if is_later:
                world.script.respond(1)
            await until(lambda: not world.listener.connections)
        assert world.script.released == [1]
    (line,) = caplog.records
    assert "a message of TLS itself is not complete" in str(fields_of(line)["error"])


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_garbage_of_every_kind_harms_nobody_else(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Send changed hellos, and changed records after a handshake: a well-behaved client is served all the time."""
    chance = random.Random(11)
    outgoing = ssl.MemoryBIO()
    hello_client = client_context(made).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello_client.do_handshake()
    hello = outgoing.read()
    async with listening(tls(made), tls_handshake_ms=2_000) as world:
        good, good_writer = await connect(world, client_context(made))
        for number in range(150):
            data = bytearray(hello)
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            del data[chance.randrange(len(data) // 2, len(data) + 1) :]
            sock = socket.create_connection(("127.0.0.1", world.listener.port))
            sock.sendall(data)
            if chance.random() < 0.5:
                sock.sendall(chance.randbytes(chance.randrange(1, 100_000)))
            if number % 10 == 0:
                good_writer.write(frame(number))
                assert (await read_response(good))[0] == number
            sock.close()
        await until(lambda: len(world.listener.connections) == 1)
        await asyncio.to_thread(_send_a_record_that_nobody_has_encrypted, world.listener.port, client_context(made))
        await until(lambda: len(world.listener.connections) == 1)
        good_writer.write(frame(1_000))
        assert (await read_response(good))[0] == 1_000
        good_writer.close()
    assert world.metrics.connections_malformed == 1
    assert [record for record in caplog.records if record.levelno > logging.WARNING or record.exc_info] == []
