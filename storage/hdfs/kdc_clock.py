"""The clock of a KDC, by its answer to a request that it must refuse (RFC 4120, 5.4.1 and 5.9.1).

The request has no proof of a key, and asks for an unknown encryption.  The KDC answers by an error with its own time.
It counts no failed log-in.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from datetime import UTC, datetime

RESPONSE_BYTES_MAX = 64 << 10
_AS_REQUEST, _ERROR = 10, 30
_TILL = b"20370913024805Z"  # as Java's client: the KDC shortens it
_NO_ENCRYPTION = 9999
_NT_PRINCIPAL, _NT_SERVICE = 1, 2
_TIME, _MICROSECONDS = 4, 5  # fields of KRB-ERROR


def kdc_ahead_s(
    address: tuple[str, int], principal: str, realm: str, timeout_s: float, *, now: datetime | None = None
) -> float:
    """Return how many seconds the clock of the KDC at ``address`` is ahead of this machine's, or of ``now``.

    Blocks.  Raises OSError if the KDC does not respond, ValueError if its response has no time.
    """
    request = clock_request(principal, realm)
    with socket.create_connection(address, timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">I", len(request)) + request)
        (length,) = struct.unpack(">I", _receive(connection, 4))
        if length > RESPONSE_BYTES_MAX:
            raise ValueError(f"a response of {length} bytes")
        body = _receive(connection, length)
    return (time_of(body) - (now or datetime.now(UTC))).total_seconds()


def clock_request(principal: str, realm: str) -> bytes:
    """Return an AS-REQ for a ticket of ``principal`` (without its realm) in an unknown encryption."""
    body = b"".join(
        (
            _field(0, _tagged(0x03, b"\x00" + bytes(4))),  # no options
            _field(1, _name(_NT_PRINCIPAL, principal.split("/"))),
            _field(2, _text(realm)),
            _field(3, _name(_NT_SERVICE, ["krbtgt", realm])),
            _field(5, _tagged(0x18, _TILL)),
            _field(7, _number(1)),
            _field(8, _sequence(_number(_NO_ENCRYPTION))),
        )
    )
    request = _field(1, _number(5)) + _field(2, _number(_AS_REQUEST)) + _field(4, _sequence(body))
    return _tagged(0x60 | _AS_REQUEST, _sequence(request))


def time_of(response: bytes) -> datetime:
    """Return the time in a KRB-ERROR.  Raises ValueError if the bytes are another message."""
    tag, content, _ = _element(response, 0)
    if tag != 0x60 | _ERROR:
        raise ValueError(f"the response is message {tag & 0x1F}, and not an error with a time")
    tag, content, _ = _element(content, 0)
    values = dict(_fields(content))
    if tag != 0x30 or _TIME not in values:
        raise ValueError("an error without a time")
    time_tag, text, _ = _element(values[_TIME], 0)
    if time_tag != 0x18:
        raise ValueError("an error with a malformed time")
    found = datetime.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    micros = _element(values[_MICROSECONDS], 0)[1] if _MICROSECONDS in values else b""
    return found.replace(microsecond=min(int.from_bytes(micros), 999_999))


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise OSError("the connection ended before the response")
        data += piece
    return data


# ---- DER


def _tagged(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(size))) + size + content


def _field(number: int, content: bytes) -> bytes:
    return _tagged(0xA0 | number, content)


def _sequence(content: bytes) -> bytes:
    return _tagged(0x30, content)


def _number(value: int) -> bytes:
    return _tagged(0x02, value.to_bytes(value.bit_length() // 8 + 1, signed=True))


def _text(value: str) -> bytes:
    return _tagged(0x1B, value.encode())


def _name(kind: int, parts: list[str]) -> bytes:
    return _sequence(_field(0, _number(kind)) + _field(1, _sequence(b"".join(_text(part) for part in parts))))


def _element(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Return tag, content and end of the element at ``position``.  Raises ValueError if it is not whole."""
    if len(data) < position + 2:
        raise ValueError("a message that ends early")
    tag, length = data[position], data[position + 1]
    position += 2
    if length & 0x80:
        size = length & 0x7F
        if not 1 <= size <= 3:
            raise ValueError("a message with a malformed length")
        length = int.from_bytes(data[position : position + size])
        position += size
    if position + length > len(data):
        raise ValueError("a message that ends early")
    return tag, data[position : position + length], position + length


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        tag, content, position = _element(data, position)
        yield tag & 0x1F, content
