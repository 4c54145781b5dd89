"""One Hadoop RPC connection (``hrpc``, version 9; ipc.Client and ipc.Server).

Calls are sent at once; responses come in any order and have the call id of their call.  Frames are a 4-byte length and
delimited messages: request header, call header, request; response header, response.  With a log-in the messages of
``sasl.py`` come between the preamble and the connection context, and above the level authentication all that follows
is wrapped (``rpc_frames.py``).  The connection does not retry: a call that it could not finish raises
``RpcConnectionLost``, and the caller may repeat it with the same call id.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from bmq.core.descriptors import FAILURES
from bmq.storage.filesystem import CannotLogIn
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import Authenticator, SaslClient, SaslLogin
from bmq.storage.hdfs.data_transfer import WireError
from bmq.storage.hdfs.errors import INVALID_TOKEN, TRY_AGAIN, TRY_ANOTHER_NAMENODE, ConnectionEnded, RemoteError
from bmq.storage.hdfs.rpc_frames import (
    FRAME_BYTES_MAX,
    RPC_PROTOBUF,
    SASL_RESPONSE_ID,
    FrameBuffer,
    WrappedFrames,
    framed,
    next_part,
    sasl_frame,
    wrapped_token,
)
from bmq.storage.hdfs.sasl import (
    MESSAGE_BYTES_MAX,
    SIMPLE,
    Effect,
    LoggedIn,
    LoginFailed,
    LoginRefused,
    LoginTimedOut,
    MechanismStep,
    Send,
)
from bmq.storage.hdfs.security_layer import LayerBroken
from bmq.storage.logins import DNS, KDC, LOGINS

NAMENODE_PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientProtocol"
DATANODE_PROTOCOL = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"

_PREAMBLE = b"hrpc\x09\x00"
_CONTEXT_CALL_ID = -3
_PROTOCOL_VERSION = 1
UNWRAP_ON_LOOP_BYTES_MAX = 256 << 10
"""Longest wrapped message that is unwrapped on the loop.

At the level privacy 64 KB take 0.7 ms, 256 KB 2.5 ms, and 1 MB 15 ms (AES-256, one core of 2024).
"""

Response = TypeVar("Response", bound=Message)


_log = logging.getLogger(__name__)


class RpcConnectionLost(Exception):
    """The connection ended, or broke the protocol, before the response.  Never leaves this package."""


class RpcConnection(asyncio.Protocol):
    """A connection to a server, for a protocol and a user.  Open it with ``connect``."""

    def __init__(self, protocol: str, authenticator: Authenticator, client_id: bytes, name: str) -> None:
        self.name = name
        self._address = ""
        self._protocol = protocol
        self._authenticator = authenticator
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer()
        self._wrapped: WrappedFrames | None = None
        self._unwrapping: asyncio.Future[bytes] | None = None
        self._held: list[bytes] = []
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._lost: Exception | None = None
        self._is_logging_in = authenticator.login is not None
        self.level = ""
        """The protection of calls after a log-in, in Hadoop's words; empty without a log-in."""

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
        login_timeout_s: float = 0.0,
        response_timeout_s: float = 0.0,
    ) -> RpcConnection:
        """Open a connection, and log in if the identity needs it.

        ``login_timeout_s`` bounds the log-in, 0 for ``timeout_s``, and ``response_timeout_s`` each response of the
        server within the log-in, 0 for no bound of its own.  Raises RpcConnectionLost if the server does not
        accept the connection within ``timeout_s``, and LoginFailed if the log-in fails.  Raises RemoteError if the
        server is a standby, asks for a later call, or does not take the token.
        """
        connection = await cls.connect_only(
            host, port, protocol=protocol, authenticator=authenticator, client_id=client_id, timeout_s=timeout_s
        )
        if authenticator.login is not None:
            try:
                await connection._log_in(authenticator.login, host, login_timeout_s or timeout_s, response_timeout_s)
            except BaseException:
                connection.close()
                raise
        return connection

    @classmethod
    async def connect_only(
        cls, host: str, port: int, *, protocol: str, authenticator: Authenticator, client_id: bytes, timeout_s: float
    ) -> RpcConnection:
        """Open a connection without the log-in that the identity may need.  Raises RpcConnectionLost as ``connect``."""
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

        Raises RemoteError if the response is an exception, and ConnectionEnded or RpcConnectionLost if the connection
        ends first, with or without an exception of the server.  Raises TimeoutError after ``timeout_s``; a response
        that comes later is dropped.
        """
        if self._lost is not None or self._transport is None:
            raise RpcConnectionLost(str(self._lost or f"{self.name} is closed"))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(self._frame(method, request, call_id, retry_count))
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

    async def ask_offers(self) -> None:
        """Have the server tell its offers of a log-in, or refuse.

        No credentials are needed, so this shows whether a server lives.  Raises RpcConnectionLost if the connection
        ends first.  The connection is of no further use.
        """
        try:
            await self._exchange(pb.RpcSasl(state=pb.RpcSasl.NEGOTIATE))
        except RemoteError:
            return  # a refusal is a response

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        preamble = _PREAMBLE + bytes([self._authenticator.auth_byte])
        if self._is_logging_in:
            self._transport.write(preamble)
        else:
            self._transport.write(preamble + self._context(SIMPLE))

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(RpcConnectionLost(f"{self.name} closed the connection" + (f": {exc}" if exc else "")))

    # ---- within

    async def _log_in(self, login: SaslLogin, host: str, timeout_s: float, response_timeout_s: float) -> None:
        """Carry out the effects of the negotiation's machine, and send the connection context."""
        await login.refresh()
        negotiation = login.negotiate(self.name)
        client: SaslClient | None = None
        effect: Effect = negotiation.start()
        is_naming = False
        try:
            async with asyncio.timeout(timeout_s):
                while not isinstance(effect, LoggedIn):
                    if isinstance(effect, Send):
                        async with asyncio.timeout(response_timeout_s or None):
                            response = await self._exchange(effect.message)
                        effect = negotiation.receive(response)
                        continue
                    if effect.offer is not None:
                        is_naming = True
                        names = await self._names(login, timeout_s)
                        is_naming = False
                        client = login.client(
                            effect.offer.method, host, names, effect.offer.protocol, effect.offer.server_id
                        )
                    assert client is not None, "the first challenge comes with the offer"
                    proof = await client.evaluate(effect.challenge)
                    effect = negotiation.evaluated(proof, is_complete=client.is_complete)
        except TimeoutError as error:
            if is_naming:
                text = f"cannot log in as {login}: no name of {self._address} within {timeout_s:g} s (reverse DNS)"
                raise LoginFailed(text, CannotLogIn, is_final=False, reason=DNS) from error
            if isinstance(effect, MechanismStep):
                text = f"cannot log in as {login}: no response of the KDC within {timeout_s:g} s ({LOGINS.since})"
                raise LoginFailed(text, CannotLogIn, is_final=False, reason=KDC) from error
            text = f"no log-in at {self.name} within {min(timeout_s, response_timeout_s or timeout_s):g} s"
            raise LoginTimedOut(text) from error
        except RemoteError as error:
            if error.short_class in TRY_ANOTHER_NAMENODE | TRY_AGAIN | {INVALID_TOKEN}:
                raise
            raise LoginRefused(f"{self.name} refuses the log-in by {login}: {error}{_login_hint(error)}") from error
        if effect.method == SIMPLE:
            _log.warning("HDFS at %s is not secure: the fall-back to simple authentication is used", self.name)
        assert self._transport is not None
        self._is_logging_in = False
        if effect.last is not None:
            self._transport.write(sasl_frame(effect.last))
        if effect.method != SIMPLE and client is not None:
            self.level = client.protection.level
            if client.protection.layer is not None:
                self._wrapped = WrappedFrames(client.protection.layer)
        self._send(self._context(effect.method))

    async def _exchange(self, message: pb.RpcSasl) -> bytes:
        """Send a message of the log-in, and return the server's next one."""
        if self._lost is not None or self._transport is None:
            raise RpcConnectionLost(str(self._lost or f"{self.name} is closed"))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[SASL_RESPONSE_ID] = future
        try:
            self._transport.write(sasl_frame(message))
            return await future
        finally:
            self._calls.pop(SASL_RESPONSE_ID, None)

    async def _names(self, login: SaslLogin, timeout_s: float) -> tuple[str, ...]:
        """Return the names of the server's address that the log-in compares."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not peer:
            return ()
        self._address = peer[0]
        return await login.names(peer, timeout_s)

    def _context(self, method: str) -> bytes:
        """Return the connection context after a log-in by ``method``."""
        header = pb.RpcRequestHeader(
            rpc_kind=RPC_PROTOBUF, rpc_op=0, call_id=_CONTEXT_CALL_ID, client_id=self._client_id, retry_count=-1
        )
        context = pb.ConnectionContext(protocol=self._protocol)
        if user := self._authenticator.effective_user(method):
            context.user.effective_user = user
        return framed(header, context)

    def _frame(self, method: str, request: Message, call_id: int, retry_count: int) -> bytes:
        header = pb.RpcRequestHeader(
            rpc_kind=RPC_PROTOBUF, rpc_op=0, call_id=call_id, client_id=self._client_id, retry_count=retry_count
        )
        call = pb.CallHeader(method=method, protocol=self._protocol, version=_PROTOCOL_VERSION)
        return framed(header, call, request)

    def _send(self, frame: bytes) -> None:
        """Send a frame, wrapped if the connection has a layer; the connection ends if the layer fails."""
        assert self._transport is not None
        if self._wrapped is None:
            self._transport.write(frame)
        elif self._unwrapping is not None:
            self._held.append(frame)  # a mechanism's context is for one thread at a time
        else:
            try:
                self._transport.write(self._wrapped.wrap(frame))
            except LayerBroken as error:
                self._fail(RpcConnectionLost(f"{self.name}: {error}"))

    def _take_frames(self) -> None:
        """Take all complete frames in order; the frames behind a long wrapped frame wait until it is unwrapped."""
        bytes_max = MESSAGE_BYTES_MAX if self._is_logging_in else FRAME_BYTES_MAX
        try:
            while self._lost is None and self._unwrapping is None:
                frame = self._frames.next(bytes_max)
                if frame is None:
                    return
                if self._wrapped is None:
                    self._take_frame(frame)
                else:
                    self._take_token(self._wrapped, wrapped_token(frame))
        except (WireError, DecodeError) as error:
            self._fail(RpcConnectionLost(f"{self.name} does not speak Hadoop RPC: {error}"))
        except LayerBroken as error:
            self._fail(RpcConnectionLost(f"{self.name}: {error}"))

    def _take_token(self, wrapped: WrappedFrames, token: bytes) -> None:
        if len(token) <= UNWRAP_ON_LOOP_BYTES_MAX:
            self._take_plain(wrapped, wrapped.unwrap(token))
            return
        assert self._transport is not None
        self._transport.pause_reading()
        self._unwrapping = asyncio.get_running_loop().run_in_executor(None, wrapped.unwrap, token)
        self._unwrapping.add_done_callback(self._unwrapped)

    def _unwrapped(self, unwrapping: asyncio.Future[bytes]) -> None:
        """Take the result of the thread, send the requests that waited for the thread, and go on reading."""
        self._unwrapping = None
        held, self._held = self._held, []
        if unwrapping.cancelled():
            self._fail(RpcConnectionLost(f"{self.name}: the threads of this process have ended"))
            return
        if self._lost is not None:
            unwrapping.exception()  # retrieved: the connection had ended before
            return
        assert self._wrapped is not None
        assert self._transport is not None
        try:
            self._take_plain(self._wrapped, unwrapping.result())
        except (WireError, DecodeError, LayerBroken) as error:
            self._fail(RpcConnectionLost(f"{self.name}: {error}"))
            return
        for frame in held:
            self._send(frame)
        self._transport.resume_reading()
        self._take_frames()

    def _take_plain(self, wrapped: WrappedFrames, plain: bytes) -> None:
        wrapped.receive(plain)
        while (frame := wrapped.next()) is not None:
            self._take_frame(frame)

    def _take_frame(self, frame: bytes) -> None:
        part, position = next_part(frame, 0)
        header = pb.RpcResponseHeader.FromString(part)
        future = self._calls.get(header.call_id)
        if header.status == pb.RpcResponseHeader.FATAL:
            ended = _remote_error(header)
            self._fail(ConnectionEnded(ended.exception_class, ended.first_line))
        elif future is None or future.done():
            if self._is_logging_in:
                raise WireError(f"a response to call {header.call_id} in the middle of a log-in")
            return  # its caller has given up
        elif header.status == pb.RpcResponseHeader.SUCCESS:
            body, _ = next_part(frame, position)
            future.set_result(body)
        else:
            future.set_exception(_remote_error(header))

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


def _remote_error(header: pb.RpcResponseHeader) -> RemoteError:
    return RemoteError(_as_text(header.exception_class), _as_text(header.error_message))


def _as_text(text: str | bytes) -> str:
    """Return a server's text; a string that is not UTF-8 comes out of its message as bytes."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def _login_hint(error: RemoteError) -> str:
    """Return what to check for a refusal whose text does not say it."""
    if "GSS initiate failed" in error.first_line or "Failure unspecified" in error.first_line:
        return " (the NameNode's log has the reason: its keytab, its clock, or the ticket's encryption)"
    return ""
