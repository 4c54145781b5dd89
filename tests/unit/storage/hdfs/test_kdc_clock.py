"""The clock of a KDC: the request, and errors in DER as a KDC sends them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs.kdc_clock import RESPONSE_BYTES_MAX, clock_request, kdc_ahead_s, time_of

ERROR = bytes.fromhex(
    "7e393037a003020105a10302011ea411180f32303233313131343232313332305aa505020301e240a60302010ea9031b0152"
    "aa073005a003020102"
)
"""KRB-ERROR 14 of 2023-11-14 22:13:20.123456."""
NOW = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


@contextlib.contextmanager
def kdc(response: bytes) -> Iterator[tuple[str, int]]:
    """Yield the address of a server that answers one request with these bytes, and closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def respond() -> None:
        connection, _ = listening.accept()
        with connection:
            (length,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))
            connection.recv(length, socket.MSG_WAITALL)
            connection.sendall(response)

    thread = threading.Thread(target=respond)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        thread.join()
        listening.close()


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def test_the_time_of_an_error() -> None:
    assert time_of(ERROR) == NOW


@pytest.mark.parametrize("ahead_s", [0.0, 360.5, -360.0])
def test_the_difference_of_the_clocks(ahead_s: float) -> None:
    with kdc(framed(ERROR)) as address:
        ours = NOW - timedelta(seconds=ahead_s)
        assert kdc_ahead_s(address, "bmq/host", "R", 10.0, now=ours) == pytest.approx(ahead_s)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (b"", OSError),
        (framed(ERROR)[:-1], OSError),
        (framed(b"\x6b\x00"), ValueError),
        (struct.pack(">I", RESPONSE_BYTES_MAX + 1), ValueError),
        (framed(b"HTTP/1.1 400"), ValueError),
    ],
)
def test_a_server_without_a_time_is_an_error(response: bytes, kind: type[Exception]) -> None:
    with kdc(response) as address, pytest.raises(kind):
        kdc_ahead_s(address, "bmq", "R", 10.0)


def test_a_request_has_the_names_and_lengths_of_any_size() -> None:
    request = clock_request("bmq/" + "h" * 300, "EXAMPLE.ORG")
    assert request[0] == 0x6A
    assert b"h" * 300 in request
    assert request.count(b"EXAMPLE.ORG") == 2


@given(st.binary(max_size=80), st.integers(0, len(ERROR)))
def test_any_bytes_are_a_time_or_an_error(data: bytes, cut: int) -> None:
    for body in (data, ERROR[:cut] + data):
        with contextlib.suppress(ValueError):
            time_of(body)
