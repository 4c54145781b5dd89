"""A client of the Kafka protocol for tests of security: one request at a time, over TCP or TLS, with SASL.

Its side of the mechanisms is written here a second time, from the RFCs, and shares no code with the server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

from bmq.core.wire import messages as m
from bmq.core.wire.header import is_flexible, response_is_flexible
from tests.unit.server.rights_table import response_class

RESPONSE_S = 10.0
"""Whatever is asked has its response, or the end of its connection, within this time: nothing hangs."""
Tokens = Generator[bytes, bytes, None]
"""A client's side of a mechanism: yields its tokens, and is sent the server's."""
Login = tuple[str, Callable[[], Tokens]]
"""A mechanism's name, and what begins its exchange."""


class Ended(Exception):
    """The server has closed the connection, or not accepted it."""


class Denied(Exception):
    """The server has refused a log-in, in a response."""


class WireClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def exchange(self, frame: bytes) -> bytes:
        """Send a frame, and return the next one.  Raises Ended."""
        try:
            async with asyncio.timeout(RESPONSE_S):
                self.writer.write(struct.pack(">i", len(frame)) + frame)
                await self.writer.drain()
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
            raise Ended(str(error)) from None

    async def raw(self, key: int, version: int, body: bytes = b"") -> bytes:
        """Send a request with a body of bytes, and return the response behind its correlation id.  Raises Ended."""
        head = struct.pack(">hhihs", key, version, 7, 1, b"w")
        response = await self.exchange(head + (b"\0" if is_flexible(key, version) else b"") + body)
        assert struct.unpack_from(">i", response) == (7,)
        return response[4:]

    async def ask(self, version: int, message: Any) -> Any:
        """Send a request, and return the response's message.  Raises Ended."""
        key = message.API_KEY
        body = await self.raw(key, version, bytes(message.encode(version=version)))
        return response_class(message).decode(body[1 if response_is_flexible(key, version) else 0 :], version=version)

    async def log_in(self, login: Login, tokens_max: int = 100) -> int:
        """Authenticate; return the session's length in milliseconds, 0 for no end.

        ``tokens_max``: how many tokens are sent at most.  Raises Denied, Ended.
        """
        mechanism, begin = login
        handshake = await self.ask(1, m.SaslHandshakeRequest(mechanism=mechanism))
        if handshake.error_code:
            raise Denied(f"SaslHandshake: {handshake.error_code}")
        exchange, lifetime_ms = begin(), 0
        token = next(exchange)
        for _ in range(tokens_max):
            response = await self.ask(2, m.SaslAuthenticateRequest(auth_bytes=token))
            if response.error_code:
                raise Denied(response.error_message)
            lifetime_ms = response.session_lifetime_ms
            try:
                token = exchange.send(response.auth_bytes)
            except StopIteration:
                break
        return int(lifetime_ms)

    async def read_end(self, time_s: float) -> None:
        """Read until the server closes.  Raises TimeoutError if it does not."""
        async with asyncio.timeout(time_s):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while await self.reader.read(1 << 16):
                    pass


@asynccontextmanager
async def connected(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[WireClient]:
    """Yield a connection to a port of this machine.  Raises Ended."""
    try:
        async with asyncio.timeout(RESPONSE_S):
            name = "localhost" if context else None
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    except (OSError, ssl.SSLError) as error:
        raise Ended(str(error)) from None
    try:
        yield WireClient(reader, writer)
    finally:
        writer.transport.abort()


# ---------------------------------------------------------------------------------------------------- the mechanisms


def plain(user: str, password: str) -> Login:
    def tokens() -> Tokens:
        yield f"\0{user}\0{password}".encode()

    return "PLAIN", tokens


def oauth(token: str) -> Login:
    def tokens() -> Tokens:
        if (yield f"n,,\1auth=Bearer {token}\1\1".encode()):  # the reason of a refusal (RFC 7628, 3.2.3)
            yield b"\1"

    return "OAUTHBEARER", tokens


def scram(bits: int, user: str, password: str, *, is_token: bool = False) -> Login:
    """Return a log-in by SCRAM (RFC 5802); ``is_token``: of a delegation token."""
    digest = f"sha{bits}"

    def tokens() -> Tokens:
        first = f"n={user},r=fyko+d2lbbFgONRv9qkxdawL{',tokenauth=true' if is_token else ''}"
        challenge = (yield f"n,,{first}".encode()).decode()
        given = dict(part.split("=", 1) for part in challenge.split(","))
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), base64.b64decode(given["s"]), int(given["i"]))
        key = hmac.digest(salted, b"Client Key", digest)
        final = f"c=biws,r={given['r']}"
        signature = hmac.digest(hashlib.new(digest, key).digest(), f"{first},{challenge},{final}".encode(), digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        signed = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
        expected = hmac.digest(
            hmac.digest(salted, b"Server Key", digest), f"{first},{challenge},{final}".encode(), digest
        )
        assert signed == b"v=" + base64.b64encode(expected), "the server does not know the password"

    return f"SCRAM-SHA-{bits}", tokens


def upsertion(user: str, bits: int, password: str, iterations: int = 4096) -> Any:
    """Return AlterUserScramCredentials' row that gives a user a password."""
    salt = f"salt of {user}".encode()
    return m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism={256: 1, 512: 2}[bits], iterations=iterations, salt=salt,
        salted_password=hashlib.pbkdf2_hmac(f"sha{bits}", password.encode(), salt, iterations),
    )  # fmt: skip
