"""Transitions of a NameNode to active or standby, by Hadoop's own RPC.

`hdfs haadmin` does the same in three seconds of JVM start, longer than the failover it would be part of. The messages
are four fields deep and are encoded by hand: a test service shares no code with the client that it is there to test.
"""

import getpass
import socket
import struct
import uuid

PROTOCOL = b"org.apache.hadoop.ha.HAServiceProtocol"
PROTOCOL_VERSION = 1
RPC_KIND_PROTOBUF = 2
RPC_FINAL_PACKET = 0
CONNECTION_CONTEXT_CALL = -3
CALL = 0
TIMEOUT_S = 30.0  # becoming active replays the other's edits first


class HaError(Exception):
    """The NameNode refused, with its exception's class and text, or does not answer."""


def transition_to_active(host: str, port: int) -> None:
    """Make this NameNode the writer; the journal's epoch shuts the former one out, no other fencing is needed."""
    _call(host, port, b"transitionToActive")


def transition_to_standby(host: str, port: int) -> None:
    """Make this NameNode hand over."""
    _call(host, port, b"transitionToStandby")


def _call(host: str, port: int, method: bytes) -> None:
    client = uuid.uuid4().bytes
    user = _field(2, _field(1, getpass.getuser().encode()))
    hello = b"hrpc" + bytes([9, 0, 0])  # version 9, default service class, no authentication
    context = _frame(_header(CONNECTION_CONTEXT_CALL, client), user + _field(3, PROTOCOL))
    request_by_user = _field(1, _number(1, 0))  # HAStateChangeRequestInfoProto.reqSource
    names = _field(1, method) + _field(2, PROTOCOL) + _number(3, PROTOCOL_VERSION)
    request = _frame(_header(CALL, client), names, request_by_user)
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
            connection.sendall(hello + context + request)
            (length,) = struct.unpack(">I", _read(connection, 4))
            response = _read(connection, length)
    except OSError as error:
        raise HaError(f"{method.decode()} at {host}:{port}: {error}") from error
    size, start = _varint(response, 0)
    fields = _fields(response[start : start + size])
    if fields.get(2, 0) != 0:  # RpcResponseHeaderProto: status, exceptionClassName, errorMsg
        raise HaError(f"{method.decode()} at {host}:{port}: {fields.get(4)!r} {fields.get(5)!r}")


def _header(call: int, client: bytes) -> bytes:
    zigzag = (call << 1) ^ (call >> 31)
    return _number(1, RPC_KIND_PROTOBUF) + _number(2, RPC_FINAL_PACKET) + _number(3, zigzag) + _field(4, client)


def _frame(*messages: bytes) -> bytes:
    body = b"".join(_encode_varint(len(message)) + message for message in messages)
    return struct.pack(">I", len(body)) + body


def _field(number: int, data: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _encode_varint(number << 3) + _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _fields(message: bytes) -> dict[int, int | bytes]:
    found: dict[int, int | bytes] = {}
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        value, position = _varint(message, position)
        if key & 7 == 2:
            found[key >> 3] = message[position : position + value]
            position += value
        else:
            assert key & 7 == 0, f"wire type {key & 7} in a response header"
            found[key >> 3] = value
    return found


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("closed by the NameNode")
        data += piece
    return data
