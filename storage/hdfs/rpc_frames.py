"""The frames of an RPC connection, and the wrapped ones of a connection with a layer.  Pure.

A frame is a length of four bytes, and as many bytes.  Above the level authentication every frame after the log-in
carries a message of the mechanism's layer (``sasl.py``), in both directions (SaslRpcClient, Server.wrapWithSasl)::

    length, header with call id -33, RpcSasl(WRAP, token)       token = wrap(bytes of the stream within)

The bytes within are a stream of frames again.  The server says how long a message may be, so a long request is split
over several messages.  A message may have several frames, or a part of a frame.
"""

from __future__ import annotations

import struct

from google.protobuf.message import Message

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import WireError, decode_varint, delimited
from bmq.storage.hdfs.sasl import SASL_CALL_ID, RpcLayer
from bmq.storage.hdfs.security_layer import LayerBroken

SASL_RESPONSE_ID = SASL_CALL_ID & 0xFFFFFFFF
RPC_PROTOBUF = 2
FRAME_BYTES_MAX = 128 << 20
"""Longest frame: ipc.maximum.data.length and ipc.maximum.response.length are 128 MB.  A longer one is garbage."""
_LENGTH = struct.Struct(">I")


def framed(*messages: Message) -> bytes:
    """Return the frame of these messages."""
    body = b"".join(delimited(message) for message in messages)
    return _LENGTH.pack(len(body)) + body


def sasl_frame(message: pb.RpcSasl) -> bytes:
    """Return the frame of a client's message of the log-in or of the layer."""
    header = pb.RpcRequestHeader(rpc_kind=RPC_PROTOBUF, rpc_op=0, call_id=SASL_CALL_ID, client_id=b"", retry_count=-1)
    return framed(header, message)


class FrameBuffer:
    """The bytes of a stream that are not taken yet, cut into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0

    def __len__(self) -> int:
        return len(self._buffer) - self._start

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def next(self, bytes_max: int) -> bytes | None:
        """Return the next frame without its length, None while it is not complete.

        Raises WireError if the frame is longer than ``bytes_max``.
        """
        if len(self) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._start)
        if length > bytes_max:
            raise WireError(f"a frame of {length} bytes")
        begin = self._start + _LENGTH.size
        if len(self._buffer) - begin < length:
            return None
        self._start = begin + length
        frame = bytes(memoryview(self._buffer)[begin : self._start])
        if not len(self):
            self._buffer.clear()
            self._start = 0
        return frame


class WrappedFrames:
    """Both directions of a connection with a layer: ``wrap`` each request, ``receive`` the result of ``unwrap``."""

    def __init__(self, layer: RpcLayer) -> None:
        self._layer = layer
        self._within = FrameBuffer()

    def wrap(self, frame: bytes) -> bytes:
        """Return the bytes to send for a frame.  Raises LayerBroken."""
        step = self._layer.message_bytes_max
        return b"".join(self._wrapped(frame[start : start + step]) for start in range(0, len(frame), step))

    def unwrap(self, token: bytes) -> bytes:
        """Return the bytes within the next message of the layer; any thread may.  Raises LayerBroken."""
        try:
            return self._layer.unwrap(token)
        except ValueError as error:
            raise LayerBroken(str(error)) from error

    def receive(self, plain: bytes) -> None:
        """Take the bytes that were within a message."""
        self._within.feed(plain)

    def next(self) -> bytes | None:
        """Return the next frame within, None while it is not complete.  Raises WireError if the frame is too long."""
        return self._within.next(FRAME_BYTES_MAX)

    def _wrapped(self, plain: bytes) -> bytes:
        try:
            token = self._layer.wrap(plain)
        except ValueError as error:
            raise LayerBroken(str(error)) from error
        return sasl_frame(pb.RpcSasl(state=pb.RpcSasl.WRAP, token=token))


def wrapped_token(frame: bytes) -> bytes:
    """Return the layer's message that a frame of the server carries.

    Raises WireError or DecodeError if it carries none: whoever sends plain frames now is not the server of the log-in.
    """
    part, position = next_part(frame, 0)
    header = pb.RpcResponseHeader.FromString(part)
    if header.call_id != SASL_RESPONSE_ID or header.status != pb.RpcResponseHeader.SUCCESS:
        raise WireError(f"a response to call {header.call_id} outside of the layer")
    part, position = next_part(frame, position)
    message = pb.RpcSasl.FromString(part)
    if message.state != pb.RpcSasl.WRAP or position != len(frame):
        raise WireError("a message of a log-in after its end")
    return message.token


def next_part(frame: bytes, start: int) -> tuple[bytes, int]:
    """Return the delimited message that begins at ``start`` of a server's frame, and the position after it.

    Raises WireError if the frame ends before the message does.
    """
    length, begin = decode_varint(frame, start)
    end = begin + length
    if begin < 0 or end > len(frame):
        raise WireError(f"a frame of {len(frame)} bytes that ends within a message")
    return frame[begin:end], end
