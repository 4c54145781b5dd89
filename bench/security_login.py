"""Connections as Kafka's clients make them, up to where requests may be sent, in a client of a few bytes.

TCP, then TLS, then ApiVersions, then SaslHandshake and the two messages of SCRAM (RFC 5802), as far as the listener
asks for them.  No TLS session is resumed.  The salted password is computed once for each salt, as the RFC allows: a
client's PBKDF2 is no cost of the server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from bench import raw_client
from bench.raw_client import Address, Reader, receive, request, string
from bmq.core.security.scram import BY_NAME, random_text

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
_BINDING = base64.b64encode(b"n,,").decode()


class LoginFailed(Exception):
    """A refusal of the server, or a server that does not prove that it knows the user."""


class Login:
    """The way into one listener, by the names of librdkafka's settings."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        (self._address,) = raw_client.addresses_of(bootstrap)
        protocol = properties.get("security.protocol", "PLAINTEXT")
        self._tls: ssl.SSLContext | None = None
        if protocol in ("SSL", "SASL_SSL"):
            self._tls = ssl.create_default_context(cafile=properties["ssl.ca.location"])
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._properties = properties if protocol.startswith("SASL") else None

    def connect(self) -> socket.socket:
        """Return a connection on which requests may be sent.  Raises OSError, and LoginFailed if it is refused."""
        connection = connected(self._address, self._tls)
        try:
            error = _ask(connection, API_VERSIONS, 0, b"").take("h")
            if error:
                raise LoginFailed(f"ApiVersions: error {error}")
            if self._properties is not None:
                log_in(connection, self._properties)
        except BaseException:
            connection.close()
            raise
        return connection


def connected(address: Address, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a connection, encrypted if there is a context.  Raises OSError."""
    connection = raw_client.connect(address)
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_hostname=address[0])
    except BaseException:
        connection.close()
        raise


def log_in(connection: socket.socket, properties: Mapping[str, str]) -> None:
    """Authenticate by SCRAM.  Raises LoginFailed if the server refuses, or does not know the user's keys itself."""
    mechanism, user = BY_NAME[properties["sasl.mechanism"]], properties["sasl.username"]
    error = _ask(connection, SASL_HANDSHAKE, 1, string(mechanism.name)).take("h")
    if error:
        raise LoginFailed(f"SaslHandshake: error {error}")
    nonce = random_text()
    bare = f"n={user},r={nonce}"
    first = _authenticate(connection, f"n,,{bare}")
    told = _fields(first)
    if not told["r"].startswith(nonce):
        raise LoginFailed("the server's nonce does not begin with the client's")
    salted = _salted(mechanism.hash_name, properties["sasl.password"], told["s"], int(told["i"]))
    without_proof = f"c={_BINDING},r={told['r']}"
    message = f"{bare},{first},{without_proof}".encode()
    client_key = mechanism.hmac(salted, b"Client Key")
    signature = mechanism.hmac(mechanism.hash(client_key), message)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    final = _fields(_authenticate(connection, f"{without_proof},p={proof}"))
    wanted = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), message)
    if not hmac.compare_digest(base64.b64decode(final.get("v", "")), wanted):
        raise LoginFailed("the server does not prove that it knows the user")


def connect_often(bootstrap: str, properties: Mapping[str, str], *, count: int, threads: int) -> float:
    """Connect and close so many times, ``threads`` at a time; return the connections a second.

    Raises what the first failure was.
    """
    login = Login(bootstrap, properties)
    login.connect().close()  # the client's own first time
    left, lock = [count], threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not left[0]:
                    return
                left[0] -= 1
            login.connect().close()

    with ThreadPoolExecutor(threads) as pool:
        begun = time.monotonic()
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result()
        return count / (time.monotonic() - begun)


def _authenticate(connection: socket.socket, message: str) -> str:
    data = message.encode()
    reader = _ask(connection, SASL_AUTHENTICATE, 0, struct.pack(">i", len(data)) + data)
    error, text = reader.take("h"), reader.string()
    if error:
        raise LoginFailed(f"SaslAuthenticate: error {error}: {text}")
    return reader.blob().decode()


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> Reader:
    connection.sendall(request(key, version, body))
    reader = Reader(receive(connection))
    reader.take("i")  # correlation id
    return reader


@cache
def _salted(hash_name: str, password: str, salt: str, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(salt), iterations)


def _fields(message: str) -> dict[str, str]:
    """Return the attributes of a SCRAM message, ``a=…,b=…``."""
    return {name: value for name, _, value in (each.partition("=") for each in message.split(","))}
