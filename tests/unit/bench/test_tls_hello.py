"""The choice of a TLS server is read from the bytes that it sends first."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from bench.tls_hello import KEPT_BYTES, Negotiated, Tap, server_hello
from tests.harness.certificates import Certificates

SUITE, RANDOM = 0x1302, bytes(32)
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def hello(*, group: int = 29, random: bytes = RANDOM, suite: int = SUITE) -> bytes:
    """Return the record of a ServerHello of TLS 1.3."""
    extensions = b"\0\x2b\0\2\3\4" + b"\0\x33\0\2" + group.to_bytes(2)
    message = b"\3\3" + random + b"\2ab" + suite.to_bytes(2) + b"\0" + len(extensions).to_bytes(2) + extensions
    body = b"\2" + len(message).to_bytes(3) + message
    return b"\x16\3\3" + len(body).to_bytes(2) + body


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def first_answer(made: Certificates, version: ssl.TLSVersion) -> bytes:
    """Return what OpenSSL, as the server, sends upon the first message of a client of this version."""
    context, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=made.trust)
    context.load_cert_chain(made.server)
    client.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    for side in (
        client.wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="localhost"),
        context.wrap_bio(to_server, to_client, server_side=True),
    ):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    return to_client.read()


def test_what_openssl_chose_is_read(made: Certificates) -> None:
    found = server_hello(first_answer(made, ssl.TLSVersion.TLSv1_3))
    assert found == Negotiated("TLSv1.3", "TLS_AES_256_GCM_SHA384", "x25519")
    assert str(found) == "TLSv1.3, TLS_AES_256_GCM_SHA384, x25519"


def test_an_earlier_version_is_told_from_it(made: Certificates) -> None:
    assert server_hello(first_answer(made, ssl.TLSVersion.TLSv1_2)).version == "TLSv1.2"


def test_a_request_for_another_key_exchange_is_passed_over() -> None:
    asked = hello(random=RETRY_RANDOM, group=23)
    changed = b"\x14\3\3\0\1\1"
    assert server_hello(asked + changed + hello(group=24)).group == "secp384r1"
    with pytest.raises(ValueError, match="no ServerHello in"):
        server_hello(asked)


def test_numbers_without_a_name_are_shown() -> None:
    found = server_hello(hello(group=4711, suite=0x1304))
    assert (found.suite, found.group) == ("0x1304", "4711")


@pytest.mark.parametrize("data", [b"\x16\3\3\0\4\1\0\0\0", b"\x16\3\3\0\0"])
def test_another_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="sent no ServerHello first"):
        server_hello(data)


@pytest.mark.slow
def test_a_tap_forwards_and_keeps_the_servers_first_bytes() -> None:
    response = b"a" * (KEPT_BYTES + 1) + b"end"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    assert connection.recv(5) == b"hello"
                    connection.sendall(response)

        serving = threading.Thread(target=serve)
        serving.start()
        with Tap(server.getsockname()) as tap:
            host, _, port = tap.address.rpartition(":")
            for _ in range(2):
                with socket.create_connection((host, int(port))) as client, client.makefile("rb") as stream:
                    client.sendall(b"hello")
                    assert stream.read() == response
            serving.join()
        assert tap.first == response[: len(tap.first)]
        assert KEPT_BYTES <= len(tap.first) <= len(response)


def test_the_file_of_certificates_is_of_the_kind_that_the_page_says(made: Certificates, tmp_path: Path) -> None:
    assert "EC PRIVATE KEY" in made.server.read_text()
