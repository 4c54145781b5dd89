"""One Hadoop RPC connection (``hrpc``, version 9; ipc.Client and ipc.Server).

Calls are sent at once; responses come in any order and have the call id of their call.  Frames are a 4-byte length and
delimited messages: request header, call header, request; response header, response.  The connection does not retry: a
call that it could not finish raises ``RpcConnectionLost``, and the caller may repeat it with the same call id.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from bmq.core.descriptors import FAILURES
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import Authenticator
from bmq.storage.hdfs.data_transfer import WireError, decode_varint, delimited
from bmq.storage.hdfs.errors import RemoteError

NAMENODE_PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
DATANODE_PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"

_PREAMBLE = b"hrpc\x09\x00"
_CONTEXT_CALL_ID = -3
_RPC_PROTOBUF = 2
_PROTOCOL_VERSION = 1
_LENGTH = struct.Struct(">I")
# ipc.maximum.data.length is 128 MB: a longer frame is not a response but garbage.
FRAME_BYTES_MAX = 128 << 20

Response = TypeVar("Response", bound=Message)


class RpcConnectionLost(Exception):
    """The connection ended, or broke the protocol, before the response.  Never leaves this package."""


class RpcConnection(asyncio.Protocol):
    """A connection to one server, for one protocol and one user.  Open it with ``connect``."""

    def __init__(self, protocol: str, authenticator: Authenticator, client_id: bytes, name: str) -> None:
        self.name = name
        self._protocol = protocol
        self._authenticator = authenticator
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._lost: Exception | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        protocol: str,
        authenticator: Authenticator,
        client_id: bytes,
        timeout_s: float,
    ) -> RpcConnection:
        """Open a connection.  Raises RpcConnectionLost if the server does not accept it within ``timeout_s``."""
        loop = asyncio.get_running_loop()
        name = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(protocol, authenticator, client_id, name), host, port
                )
        except (OSError, TimeoutError) as error:
            FAILURES.note(error)
            raise RpcConnectionLost(f"cannot connect to {name}: {str(error) or 'timed out'}") from error
        return connection

    def __repr__(self) -> str:
        return f"RpcConnection({self.name}, calls={len(self._calls)}, open={self.is_open})"

    @property
    def is_open(self) -> bool:
        """True until the connection ends."""
        return self._transport is not None and self._lost is None

    @property
    def is_idle(self) -> bool:
        """True while no call waits for its response."""
        return not self._calls

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        call_id: int,
        retry_count: int,
        timeout_s: float,
    ) -> Response:
        """Send a call, and return its response.

        Raises RemoteError if the response is an exception, RpcConnectionLost if the connection ends first,
        TimeoutError after ``timeout_s``; a response that comes later is dropped.
        """
        if self._lost is not None or self._transport is None:
            raise RpcConnectionLost(str(self._lost or f"{self.name} is closed"))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._transport.write(self._frame(method, request, call_id, retry_count))
            async with asyncio.timeout(timeout_s):
                body = await future
        finally:
            self._calls.pop(call_id, None)
        try:
            return response_type.FromString(body)
        except DecodeError as error:
            raise RpcConnectionLost(
                f"{self.name} sent another message than the response to {method}: {error}"
            ) from error

    def close(self) -> None:
        """Close the connection; calls that wait for a response raise RpcConnectionLost."""
        self._fail(RpcConnectionLost(f"{self.name} was closed"))

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        header = pb.RpcRequestHeader(
            rpc_kind=_RPC_PROTOBUF, rpc_op=0, call_id=_CONTEXT_CALL_ID, client_id=self._client_id, retry_count=-1
        )
        user = pb.ConnectionContext.User(effective_user=self._authenticator.user)
        context = pb.ConnectionContext(user=user, protocol=self._protocol)
        body = delimited(header) + delimited(context)
        self._transport.write(_PREAMBLE + bytes([self._authenticator.auth_byte]) + _LENGTH.pack(len(body)) + body)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > FRAME_BYTES_MAX:
                    raise WireError(f"a frame of {length} bytes")
                if len(buffer) - start - 4 < length:
                    break
                self._take_frame(bytes(buffer[start + 4 : start + 4 + length]))
                start += 4 + length
        except (WireError, DecodeError) as error:
            self._fail(RpcConnectionLost(f"{self.name} does not speak Hadoop RPC: {error}"))
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(RpcConnectionLost(f"{self.name} closed the connection" + (f": {exc}" if exc else "")))

    # ---- within

    def _frame(self, method: str, request: Message, call_id: int, retry_count: int) -> bytes:
        header = pb.RpcRequestHeader(
            rpc_kind=_RPC_PROTOBUF, rpc_op=0, call_id=call_id, client_id=self._client_id, retry_count=retry_count
        )
        call = pb.CallHeader(method=method, protocol=self._protocol, version=_PROTOCOL_VERSION)
        body = delimited(header) + delimited(call) + delimited(request)
        return _LENGTH.pack(len(body)) + body

    def _take_frame(self, frame: bytes) -> None:
        length, position = decode_varint(frame, 0)
        header = pb.RpcResponseHeader.FromString(frame[position : position + length])
        position += length
        future = self._calls.get(header.call_id)
        if header.status == pb.RpcResponseHeader.FATAL:
            self._fail(RemoteError(header.exception_class, header.error_message))
        elif future is None or future.done():
            return  # its caller has given up
        elif header.status == pb.RpcResponseHeader.SUCCESS:
            length, position = decode_varint(frame, position)
            future.set_result(frame[position : position + length])
        else:
            future.set_exception(RemoteError(header.exception_class, header.error_message))

    def _fail(self, error: Exception) -> None:
        if self._lost is None:
            self._lost = error
        if self._transport is not None:
            self._transport.abort()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: no warning if the caller was cancelled
