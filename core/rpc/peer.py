"""A connection to another process of the cluster: calls out in order, responses back in any order.

Calls made while the kernel does not take everything wait here, in order.  The peer has certainly seen nothing of these
calls.  ``PeerLost.was_sent`` reports this to a caller whose call must not be repeated.  Nothing here awaits: the
callers bound their outstanding calls (credit), and past ``calls_max`` or ``bytes_max`` a call fails at once.

Responses are always read, whether their caller still waits or not: they are as large as was requested, up to
``response_bytes_max``.  A response is memory of its own, and ``call`` returns a view of it.  A caller that keeps a
small part of a large response copies the part, or keeps all of it (rule 8).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import cast

from bmq.core.aio.standstill import Standstill
from bmq.core.aio.subscribers import Subscribers, no_op
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.net.frames import FrameReader
from bmq.core.net.request import Buffer
from bmq.core.net.strangers import HELLO_BOUND, HELLO_BYTES_MAX
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.liveness import Liveness, LivenessVerdict
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse, PingRequest, Unregistered
from bmq.core.security.shared_secret import NO_SECRET, NOT_SHOWN, CallerAuthenticator, SharedSecret
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import response_is_flexible
from bmq.core.wire.primitives import CUT_SHORT, skip_tags

_WRITE_MAX = 64 << 10
"""Small calls that have waited for the kernel go out together, up to this size."""
NO_TAGS = b"\0"
"""A request header without tagged fields."""
_FENCED = frozenset({InternalKey.SHARD_APPEND, InternalKey.SHARD_CONFIRM, ApiKey.FETCH})
"""Calls without harm after a standstill.  A shard's log refuses an append of a former coordinator, and a fetch changes
nothing.  After a failed append the coordinator would load the shard again."""
_HEAD = struct.Struct(">ihhi")
_ID = struct.Struct(">i")
_ID_MASK = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """Settings of a connection.  Times are in seconds."""

    connect_timeout_s: float = 3.0
    """From the first packet to the response to Hello."""
    ping_s: float = 1.0
    ping_timeout_s: float = 2.0
    stuck_s: float = 65.0
    """See ``core.rpc.liveness``.  Longer than a produce may take: a peer with too many of them reads no more until
    then."""
    calls_max: int = 100_000
    """Calls without a response.  Credit and sessions keep far below: this stops a caller without either."""
    bytes_max: int = 256 << 20
    """Bytes of those calls."""
    response_bytes_max: int = 128 << 20
    """Bytes of one response: fetch.max.bytes twice."""


class ConnectionKind(Enum):
    """The purpose of a connection; connections of one kind do not hold up those of another."""

    PRODUCE = "produce"
    TAIL = "tail"
    CONTROL = "control"


class Evidence(Enum):
    """The evidence of a call about the other side's process."""

    NONE = "this process could not even try: it has no file descriptor left, or its resolver has no result"
    SILENCE = "nothing came back: the process has ended, stands still or is cut off, or this one is"
    REFUSED = (
        "its host, or a firewall, refuses the connection: the process has ended, or its port is closed to this one"
    )
    REPLACED = "another process of BMQ responds at its address: it has ended"
    LIFE = "it responded, be it that it refuses this process"


class PeerLost(Exception):
    """The failure of a call: there will be no response.

    ``was_sent`` False: certainly nothing of the call reached the peer.
    """

    def __init__(self, why: str, *, was_sent: bool, evidence: Evidence = Evidence.SILENCE) -> None:
        super().__init__(why)
        self.was_sent = was_sent
        self.evidence = evidence


class NotAccepted(PeerLost):
    """A connection that was not made: one of both processes does not accept the other's secret or certificate."""


class ClosedAtOnce(PeerLost):
    """A connection that the other side closed before it had responded: it may speak TLS, or may just have ended."""


class PeerBusy(PeerLost):
    """A refused call: one connection may have no more in progress, or this process has just stood still.

    It was not sent, and the connection goes on.
    """


class NotShown(Exception):
    """A process that does not have this cluster's secret: this one does not use it."""


class _Call:
    """A call without a response yet.  ``frame`` is None once the kernel has it."""

    __slots__ = ("frame", "future", "size")

    def __init__(self, future: asyncio.Future[memoryview], frame: list[Buffer], size: int) -> None:
        self.future = future
        self.frame: list[Buffer] | None = frame
        self.size = size


class Peer(asyncio.BufferedProtocol):
    """The protocol of one socket.  ``core.rpc.peers`` creates it, says Hello, and lends it while it ``is_up``.

    Needs a loop that reads into the buffer in the call that gets it, as ``core.net.client_connection`` does.
    """

    def __init__(
        self,
        own: str,
        incarnation: str,
        kind: ConnectionKind,
        settings: PeerSettings,
        shared: memoryview,
        standstill: Standstill | None = None,
    ) -> None:
        """``standstill`` refuses a call that began before the process stood still; None refuses none."""
        self.incarnation = incarnation
        self.kind = kind
        self.is_up = False
        self.is_lost = False
        self.was_closed = False
        """True if this side closed it: it is lost, not broken."""
        self.why = ""
        """The reason for which it is lost."""
        self.is_refused_by_tls = False
        """True if it is lost because the other side does not accept this process's certificate."""
        self.has_received = False
        self.protocol = -1
        """The version of the internal protocol that both sides speak, -1 before Hello."""
        self.refused_by = ""
        """The incarnation that has refused Hello, or that this process refuses."""
        self.unregistered: Unregistered | None = None
        """Set if the peer has refused Hello because the store has no member key of this process."""
        self.bytes_under_way = 0
        self._settings = settings
        self._standstill = standstill
        self._loop = asyncio.get_running_loop()
        self._liveness = Liveness(self._loop.time(), settings.ping_s, settings.ping_timeout_s, settings.stuck_s)
        self._frames = FrameReader(shared, HELLO_BYTES_MAX, HELLO_BOUND)
        self._transport: asyncio.Transport | None = None
        self._is_blocked = False  # the kernel does not take all that was written
        self._calls: dict[int, _Call] = {}
        self._unsent: deque[_Call] = deque()
        self._pings = 0  # among the calls
        self._last_id = 0
        name = own.encode()
        self._client_id = struct.pack(">h", len(name)) + name
        self._on_lost = Subscribers[[]]()

    def __repr__(self) -> str:
        state = "up" if self.is_up else f"lost: {self.why}" if self.is_lost else "greeting"
        return (
            f"<Peer {self.incarnation} {self.kind.value} {state} calls={len(self._calls)}"
            f" bytes={self.bytes_under_way} unsent={len(self._unsent)}>"
        )

    # ------------------------------------------------------------------------------------------------- for callers

    def call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]:
        """Send a call.  Return its future: the body of the response, or PeerLost if there will be none.

        Calls are sent in their order.  The version must have tagged fields, and the request must have a response.  The
        buffers of ``body`` must not change until then: what the kernel does not take at once is not copied.

        A call right after a standstill fails with PeerBusy: it may be a client's, and the client is given up first.
        Calls of ``_FENCED`` are sent all the same.
        """
        standstill = self._standstill
        is_late = standstill is not None and standstill.now() > standstill.deadline and standstill.is_unnoticed
        if is_late and api_key not in _FENCED:
            why = f"{self.incarnation}: this process has just stood still"
            return self._refused(PeerBusy(why, was_sent=False, evidence=Evidence.NONE))
        if self.is_up:
            return self._call(api_key, api_version, body, header_tags)
        return self._refused(PeerLost(f"{self.incarnation}: {self.why or 'not up yet'}", was_sent=False))

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` once when the connection is lost, at once if it is.  Return a function that unsubscribes it."""
        if self.is_lost:
            call()
            return no_op
        return self._on_lost.add(call)

    def close(self) -> None:
        """Close at once; calls without a response fail with PeerLost.  Idempotent."""
        if not self.is_lost:
            self.was_closed = True
            self._lose("closed by this side")

    # ------------------------------------------------------------------------------------------- for ``core.rpc.peers``

    async def hello(self, cluster: str, own: str, protocols: tuple[int, int], secret: SharedSecret = NO_SECRET) -> None:
        """Say Hello; after this the connection is up.

        Raises RequestError if the peer refuses, NotShown if it does not prove this process's secret, PeerLost if the
        connection is lost, FormatError if the response is malformed.
        """
        authenticator = CallerAuthenticator(secret, cluster, own, self.incarnation)
        greeting = HelloRequest(protocols, cluster, own, self.incarnation, authenticator.nonce)
        response = await self._say(greeting)
        if response.nonce and (proof := authenticator.evaluate_challenge(response.nonce)) is not None:
            response = await self._say(replace(greeting, proof=proof))
        self.refused_by = response.incarnation
        is_judged = response.error in (ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if is_judged and not authenticator.verifies(response.proof):
            raise NotShown(NOT_SHOWN)  # its refusal counts no more: anybody at its address could end a membership
        if response.error is not ErrorCode.NONE:
            self.unregistered = response.unregistered if is_judged else None
            raise RequestError(response.error, response.message)
        if self.is_lost:
            raise PeerLost(self.why, was_sent=True)
        self.refused_by = ""
        self.is_up = True
        self.protocol = response.protocol
        self._frames.limit(self._settings.response_bytes_max)

    async def _say(self, greeting: HelloRequest) -> HelloResponse:
        return HelloResponse.decode(await self._call(InternalKey.HELLO, 0, greeting.encode()))

    @property
    def alive_at(self) -> float:
        """The time of the last sign of life."""
        return self._liveness.alive

    @property
    def is_busy(self) -> bool:
        """True if calls other than pings have no response yet."""
        return len(self._calls) > self._pings

    def vouch(self, at: float) -> None:
        """Note a sign of life of the same process at the time ``at``, on another connection."""
        self._liveness.vouched(at)

    def tick(self, now: float) -> None:
        """Send a ping if the peer is silent, or give the connection up if it has been silent for too long."""
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size() if self._is_blocked else 0
        verdict = self._liveness.tick(now, unsent)
        if verdict is LivenessVerdict.LOST:
            self._lose("no sign of life: it does not respond to a ping" if not unsent else "it takes no more bytes")
        elif verdict is LivenessVerdict.PING and not self._is_blocked:
            ping = self._call(InternalKey.PING, 0, PingRequest().encode())
            self._pings += 1
            ping.add_done_callback(self._on_pinged)

    # ----------------------------------------------------------------------------------------------------- sending

    def _call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]:
        assert api_key >= InternalKey.HELLO or response_is_flexible(api_key, api_version)
        settings = self._settings
        if len(self._calls) >= settings.calls_max or self.bytes_under_way >= settings.bytes_max:
            text = f"{self.incarnation}: {len(self._calls)} calls, {self.bytes_under_way} bytes are under way"
            return self._refused(PeerBusy(text, was_sent=False))
        self._last_id = number = (self._last_id + 1) & _ID_MASK
        size = _HEAD.size - 4 + len(self._client_id) + len(header_tags) + sum(map(len, body))
        head = _HEAD.pack(size, api_key, api_version, number) + self._client_id + header_tags
        future: asyncio.Future[memoryview] = self._loop.create_future()
        call = self._calls[number] = _Call(future, [head, *body], size)
        self.bytes_under_way += size
        self._unsent.append(call)
        self._write()
        return future

    def _refused(self, error: PeerLost) -> asyncio.Future[memoryview]:
        future: asyncio.Future[memoryview] = self._loop.create_future()
        future.set_exception(error)
        return future

    def _write(self) -> None:
        """Pass waiting calls to the kernel, in order, until it does not take all."""
        assert self._transport is not None
        while self._unsent and not self._is_blocked and not self.is_lost:
            buffers: list[Buffer] = []
            size = 0
            while self._unsent and size < _WRITE_MAX:
                call = self._unsent.popleft()
                assert call.frame is not None
                buffers += call.frame
                size += call.size
                call.frame = None
            if size <= _WRITE_MAX:
                self._transport.write(b"".join(buffers))
            else:
                self._transport.writelines(buffers)

    # ------------------------------------------------------------------------------------------ transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._transport = stream
        # Blocked as soon as the kernel does not take everything: what waits here is certainly not sent.  The loops' TLS
        # blocks at the bound, not above it.
        stream.set_write_buffer_limits(high=0 if transport.get_extra_info("ssl_object") is None else 1)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.is_lost:
            stream.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_lost:
            return
        self.has_received = True
        self._liveness.received(self._loop.time())
        for frame in self._frames.received(nbytes):
            self._on_response(frame)
        if self._frames.error:
            self._lose(f"it sent bytes that are not a response: {self._frames.error}")

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._liveness.drained(self._loop.time())
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_refused_by_tls = isinstance(exc, ssl.SSLError)
        self._lose(str(exc) if exc is not None else "it has closed the connection")

    def _on_response(self, frame: memoryview) -> None:
        (number,) = _ID.unpack_from(frame)
        call = self._calls.pop(number, None)
        if call is None or call.frame is not None:
            self._lose(f"it responded to a call {number} that was never sent")
            return
        self.bytes_under_way -= call.size
        try:
            start = skip_tags(frame, _ID.size)
        except (*CUT_SHORT, FormatError) as error:
            self._lose(f"it sent bytes that are not a response: {error}")
            start = 0
        if call.future.done():
            return  # its caller does not wait any more
        if self.is_lost:
            call.future.set_exception(PeerLost(f"{self.incarnation}: {self.why}", was_sent=True))
        else:
            call.future.set_result(frame[start:])

    def _lose(self, why: str) -> None:
        """Send and read nothing more, and fail the calls.  Idempotent."""
        if self.is_lost:
            return
        self.is_lost, self.is_up, self.why = True, False, why
        if self._transport is not None:
            self._transport.abort()
        calls, self._calls = self._calls, {}
        self._unsent.clear()
        self._frames.drop()
        self.bytes_under_way = 0
        for call in calls.values():
            if not call.future.done():
                call.future.set_exception(PeerLost(f"{self.incarnation}: {why}", was_sent=call.frame is None))
        self._on_lost.notify_last()

    def _on_pinged(self, ping: asyncio.Future[memoryview]) -> None:
        """Consume a ping's result: its arrival is noted as all bytes are, and its absence by the next tick."""
        self._pings -= 1
        if not ping.cancelled():
            ping.exception()
