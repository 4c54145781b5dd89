"""Internal connections on virtual time: a network in memory whose kernels have a size, and a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener
from bmq.core.net.request import Buffer, Client, Response
from bmq.core.net.strangers import Strangers
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse
from bmq.core.rpc.message_fields import Bytes, Text
from bmq.core.rpc.peer import PeerSettings
from bmq.core.rpc.peers import ConnectionKind, Peer, PeerLost, Peers
from bmq.core.rpc.server import InternalCall, InternalEndpoint
from bmq.core.security.shared_secret import NO_SECRET, SharedSecret

KERNEL_BYTES = 256 << 10
"""What one side's kernel keeps of bytes that its process has not read."""
LATENCY_S = 0.001
PORT = 9093
ECHO = InternalKey.LOG_LEVELS
"""The key of the API of these tests: any that the process does not serve by itself."""


@dataclass(frozen=True)
class Host:
    host: str = "b"
    port: int = PORT


@dataclass(frozen=True)
class FakeMember:
    incarnation: str = "b-1"
    internal: Host = Host()
    has_tls: bool = False


class End(asyncio.Transport):
    """One side of a connection: transport of its protocol, and its kernel's receive buffer."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__()
        self.other: End
        self.protocol: Any = None
        self.host = host
        self.writes = 0
        self._network = network
        self._inbox = bytearray()
        self._unsent = bytearray()
        self._is_paused = self._is_blocked = self._is_gone = self._is_woken = False

    # The transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.other.host, 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: Any) -> None:
        self.writes += 1
        if not self._is_gone:
            self._unsent += data
            self._push()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        assert not self._is_paused
        self._is_paused = True

    def resume_reading(self) -> None:
        assert self._is_paused
        self._is_paused = False
        self.wake()

    def is_closing(self) -> bool:
        return self._is_gone

    def close(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self.protocol.connection_lost, None)
            loop.call_later(LATENCY_S, self.other.close)

    def abort(self) -> None:
        self.close()

    # The network

    def _push(self) -> None:
        room = KERNEL_BYTES - len(self.other._inbox)
        if room > 0 and self._unsent:
            self.other._inbox += self._unsent[:room]
            del self._unsent[:room]
            self.other.wake()
        if bool(self._unsent) != self._is_blocked:
            self._is_blocked = not self._is_blocked
            (self.protocol.pause_writing if self._is_blocked else self.protocol.resume_writing)()

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_later(LATENCY_S, self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False
        while self._inbox and not self._is_paused and not self._is_gone and self.host not in self._network.stopped:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(self._inbox))
            buffer[:count] = self._inbox[:count]
            del self._inbox[:count]
            self.protocol.buffer_updated(count)
        if not self.other._is_gone:
            self.other._push()


class Network:
    """A network in the place of the running loop's ``create_connection``, ``create_server`` and ``getaddrinfo``."""

    def __init__(self) -> None:
        self.stopped: set[str] = set()
        self.ends: list[End] = []  # servers' sides, oldest first
        self.attempts: list[float] = []  # times of connection attempts
        self._listening: dict[tuple[str, int], Callable[[], Any]] = {}
        loop: Any = asyncio.get_running_loop()
        loop.create_connection = self.create_connection
        loop.create_server = self.create_server
        loop.getaddrinfo = self.getaddrinfo

    async def create_server(self, make: Callable[[], Any], host: str, port: int, **_: Any) -> Any:
        self._listening[host, port] = make

        class Socket:
            def getsockname(_) -> tuple[str, int]:
                return host, port

        class Server:
            sockets = (Socket(),)

            def close(_) -> None:
                self._listening.pop((host, port), None)

        return Server()

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> Any:
        return [(None, None, None, "", (host, port))]

    async def create_connection(self, make: Callable[[], Any], host: str, port: int) -> Any:
        self.attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(LATENCY_S)
        serve = self._listening.get((host, port))
        if serve is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        ours, theirs = End(self, "a"), End(self, host)
        ours.other, theirs.other = theirs, ours
        ours.protocol, theirs.protocol = make(), serve()
        theirs.protocol.connection_made(theirs)
        ours.protocol.connection_made(ours)
        self.ends.append(theirs)
        return ours, ours.protocol

    def stop(self, host: str) -> None:
        """Stop a host as SIGSTOP does: its kernel continues to take bytes, its process does nothing."""
        self.stopped.add(host)

    def resume(self, host: str) -> None:
        self.stopped.remove(host)
        for end in self.ends:
            end.wake()

    def cut(self) -> None:
        """Break all connections."""
        for end in self.ends:
            end.close()


@dataclass(frozen=True, slots=True)
class EchoResponse(InternalResponse):
    message: Text = ""
    result: Text = ""


@dataclass(frozen=True, slots=True)
class EchoRequest(InternalRequest[EchoResponse]):
    """A request of a size."""

    KEY = ECHO

    method: Text
    padding: Bytes = b""


class World:
    """The process ``b``, and the connections of process ``a``.

    Echo responds as ``answers[method]`` says: at once with the method's name, or by a future, or by an error.
    """

    def __init__(
        self, settings: PeerSettings | None = None, own: str = "b-1", *,
        secret: SharedSecret = NO_SECRET, callers_secret: SharedSecret = NO_SECRET, **config: Any,
    ) -> None:  # fmt: skip
        self.network = Network()
        self.begun: list[str] = []
        self.answers: dict[str, Any] = {}
        self.broken: list[tuple[str, str]] = []
        self.calls: list[InternalCall] = []
        self.is_serving = True
        self.metrics = PortCounters()
        self.strangers = Strangers()
        self.endpoint = InternalEndpoint(
            own, "test", LoopClock(), is_serving=lambda: self.is_serving, secret=secret, on_known=self.strangers.known
        )
        self.endpoint.register(EchoRequest, self._echo)
        self.config = NodeConfig(**config)
        self.peers = Peers("a-1", "test", settings=settings, secret=callers_secret)
        self.peers.subscribe_broken(lambda incarnation, why: self.broken.append((incarnation, why)))

    async def listen(self) -> None:
        self.listener = Listener(self.endpoint, self.config, self.metrics, in_order=False, strangers=self.strangers)
        await self.listener.start("b", PORT)

    async def __aenter__(self) -> World:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.peers.close()
        self.listener.close()
        await asyncio.sleep(1)
        assert self.metrics.request_bytes_held == 0
        assert self.metrics.connections == 0
        assert len(self.strangers) == 0

    def _echo(self, body: memoryview, call: InternalCall) -> Any:
        request = EchoRequest.decode(body)
        self.begun.append(request.method)
        self.calls.append(call)
        response = self.answers.get(request.method, request.method)
        return response if isinstance(response, asyncio.Future) else self.reply(response)

    @staticmethod
    def reply(response: Any) -> list[Buffer]:
        if isinstance(response, Exception):
            raise response
        return EchoResponse(ErrorCode.NONE, "", str(response)).encode()

    def later(self, *methods: str) -> None:
        for method in methods:
            self.answers[method] = asyncio.get_running_loop().create_future()

    def answer(self, *methods: str) -> None:
        for method in methods:
            self.answers[method].set_result(self.reply(method))


class Kafka:
    """A dispatch of Kafka's APIs."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def __call__(self, frame: memoryview, client: Client) -> Response:
        self.frames.append(bytes(frame))
        return Response((bytes(frame[4:8]), b"\0", b"kafka"))

    def is_pipelined(self, frame: memoryview) -> bool:
        raise AssertionError("all are, between processes")

    def expects_response(self, frame: memoryview) -> bool:
        return True

    def may_park(self, frame: memoryview) -> bool:
        return False


def echo(method: str, size: int = 0) -> Sequence[Buffer]:
    return EchoRequest(method, bytes(size)).encode()


def result(body: memoryview) -> str:
    return EchoResponse.decode(body).result


B = FakeMember()


async def up(world: World, kind: ConnectionKind = ConnectionKind.CONTROL) -> Peer:
    return await world.peers.reach(B, kind, 5)


async def lost(future: asyncio.Future[memoryview]) -> PeerLost:
    with pytest.raises(PeerLost) as caught:
        await future
    return caught.value


async def ask(world: World, method: str, timeout_s: float = 5) -> str:
    return (await world.peers.ask(B, EchoRequest(method), timeout_s)).result


@dataclass(frozen=True, slots=True)
class LaterRequest(InternalRequest[EchoResponse]):
    """A request of an API that only a later version serves."""

    KEY = cast(InternalKey, 10_999)
