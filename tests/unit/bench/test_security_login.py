"""A bare client's log-in: by SCRAM beside the server's own code, and refusals that are errors."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.raw_client import Reader, receive
from bench.security_login import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Login, LoginFailed, connect_often
from bmq.core.security.scram import (
    SCRAM_SHA_512,
    ScramServerMessages,
    credential_of_password,
    parse_client_final,
    parse_client_first,
)

PASSWORD = "of bench"
CREDENTIAL = credential_of_password(SCRAM_SHA_512, PASSWORD, 4096)
PROPERTIES = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bench",
    "sasl.password": PASSWORD,
}  # fmt: skip
AUTHENTICATION_FAILED = 58


def serve_one(connection: socket.socket, asked: list[int], *, knows: bool) -> None:
    """Answer what a client asks until it leaves; a server that does not know the user makes its signature up."""
    scram: ScramServerMessages | None = None
    with connection:
        while True:
            try:
                reader = Reader(receive(connection))
            except ConnectionError:
                return
            key = reader.take("h")
            asked.append(key)
            for kind in "hi":
                reader.take(kind)
            reader.string()
            body = struct.pack(">hi", 0, 0)
            if key == SASL_AUTHENTICATE:
                message, error, response = reader.blob(), 0, ""
                if scram is None:
                    scram = ScramServerMessages(SCRAM_SHA_512, parse_client_first(message), CREDENTIAL)
                    response = scram.first_message
                else:
                    proven = scram.final_message(parse_client_final(message))
                    error, response = (0, proven) if proven else (AUTHENTICATION_FAILED, "")
                    response = response if knows else "v=bm9uZQ=="
                body = struct.pack(">hhi", error, -1, len(response)) + response.encode()
            connection.sendall(struct.pack(">ii", 4 + len(body), 1) + body)


@contextmanager
def server(*, knows: bool = True) -> Iterator[tuple[str, list[int]]]:
    """Yield an address and the APIs that were asked there."""
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                connection, _ = listening.accept()
                if not connection.recv(1, socket.MSG_PEEK):  # the end of the test
                    connection.close()
                    return
                serve_one(connection, asked, knows=knows)

        serving = threading.Thread(target=accept)
        serving.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            socket.create_connection(listening.getsockname()).close()
            serving.join()


def test_a_client_without_a_log_in_asks_what_a_server_knows() -> None:
    with server() as (address, asked):
        Login(address, {}).connect().close()
    assert asked == [API_VERSIONS]


def test_a_log_in_is_proven_on_both_sides() -> None:
    with server() as (address, asked):
        Login(address, PROPERTIES).connect().close()
    assert asked == [API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, SASL_AUTHENTICATE]


def test_a_wrong_password_is_an_error() -> None:
    with server() as (address, _), pytest.raises(LoginFailed, match="SaslAuthenticate: error 58"):
        Login(address, PROPERTIES | {"sasl.password": "another"}).connect()


def test_a_server_that_does_not_know_the_user_is_an_error() -> None:
    with server(knows=False) as (address, _), pytest.raises(LoginFailed, match="does not prove"):
        Login(address, PROPERTIES).connect()


def test_so_many_connections_are_made_and_one_before() -> None:
    with server() as (address, asked):
        assert connect_often(address, PROPERTIES, count=5, threads=1) > 0
    assert asked.count(SASL_HANDSHAKE) == 6


def test_a_failure_of_one_connection_ends_the_measurement() -> None:
    with server() as (address, _), pytest.raises(LoginFailed):
        connect_often(address, PROPERTIES | {"sasl.password": "another"}, count=5, threads=1)
