"""Calls between processes over loopback sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener
from bmq.core.net.request import Client, Response
from bmq.core.rpc.peer import PeerSettings
from bmq.core.rpc.peers import ConnectionKind, PeerLost, Peers
from bmq.core.rpc.server import InternalEndpoint
from tests.unit.core.rpc.world import FakeMember, Host

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio", "uvloop")]

MB = 1 << 20


class Echo:
    """A handler of Kafka's Produce that returns what was sent, in two buffers; while ``holds`` is set, only on
    ``release``."""

    def __init__(self) -> None:
        self.held: list[tuple[memoryview, asyncio.Future[Response]]] = []
        self.holds = False

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        if not self.holds:
            return self._response_to(frame)
        self.held.append((frame, asyncio.get_running_loop().create_future()))
        return self.held[-1][1]

    def release(self) -> None:
        for frame, future in reversed(self.held):
            future.set_result(self._response_to(frame))

    def _response_to(self, frame: memoryview) -> Response:
        body = frame[8 + 2 + len("a-1") + 1 :]
        return Response((bytes(frame[4:8]) + b"\0", body[:10], body[10:]))

    def is_pipelined(self, frame: memoryview) -> bool:
        return True

    def expects_response(self, frame: memoryview) -> bool:
        return True

    def may_park(self, frame: memoryview) -> bool:
        return False


class Loopback:
    def __init__(self) -> None:
        self.echo = Echo()
        self.endpoint = InternalEndpoint("b-1", "test", LoopClock(), is_serving=lambda: True)
        self.endpoint.register_kafka(self.echo)
        self.listener = Listener(self.endpoint, NodeConfig(), PortCounters(), in_order=False)
        self.peers = Peers("a-1", "test", settings=PeerSettings(ping_s=0.2, ping_timeout_s=30, connect_timeout_s=30))

    async def start(self) -> None:
        await self.listener.start("127.0.0.1", 0)
        self.member = FakeMember("b-1", Host("127.0.0.1", self.listener.port))


@asynccontextmanager
async def loopback() -> AsyncIterator[Loopback]:
    world = Loopback()
    await world.start()
    try:
        yield world
    finally:
        await world.peers.close()
        world.listener.close()


async def test_large_and_small_calls_keep_their_bytes() -> None:
    async with loopback() as world:
        peer = await world.peers.reach(world.member, ConnectionKind.PRODUCE, 30)
        bodies = [os.urandom(size) for size in (3, 70_000, 60 * MB, 5, 3 * MB, 200_000, 8)]
        calls = [peer.call(0, 13, [body[:1], memoryview(body)[1:]]) for body in bodies]
        answers = await asyncio.gather(*calls)
        assert all(response == body for response, body in zip(answers, bodies, strict=True))
        assert peer.bytes_under_way == 0
        assert (await world.peers.probe(world.member, 30)).is_serving


async def test_many_calls_answered_in_reverse() -> None:
    async with loopback() as world:
        world.echo.holds = True
        peer = await world.peers.reach(world.member, ConnectionKind.PRODUCE, 30)
        bodies = [os.urandom(3 + number % 50_000) for number in range(0, 500_000, 997)]
        calls = [peer.call(0, 13, [body]) for body in bodies]
        while len(world.echo.held) < len(bodies):  # noqa: ASYNC110  # what a socket does announces itself to nobody
            await asyncio.sleep(0.001)
        order: list[int] = []
        for number, call in enumerate(calls):
            call.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
        world.echo.release()
        assert await asyncio.gather(*calls) == bodies
        assert order == list(range(len(bodies) - 1, -1, -1))


async def test_a_server_that_goes() -> None:
    async with loopback() as world:
        world.echo.holds = True
        peer = await world.peers.reach(world.member, ConnectionKind.PRODUCE, 30)
        broken: list[str] = []
        world.peers.subscribe_broken(lambda incarnation, why: broken.append(incarnation))
        call = peer.call(0, 13, [b"1"])
        world.listener.close()
        with pytest.raises(PeerLost):
            await call
        assert broken == ["b-1"]
        with pytest.raises(PeerLost, match=r"refused|111"):
            await world.peers.probe(world.member, 30)


SERVER = """
import asyncio
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener

async def main():
    endpoint = InternalEndpoint("b-1", "test", LoopClock(), is_serving=lambda: True)
    listener = Listener(endpoint, NodeConfig(), PortCounters(), in_order=False)
    await listener.start("127.0.0.1", 0)
    print(listener.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_process_that_stands_still() -> None:
    """Stop a process by SIGSTOP: its kernel continues to take bytes, so only missing responses show it."""
    async with loopback():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        peers = Peers("a-1", "test", settings=PeerSettings(ping_s=0.2, ping_timeout_s=0.4, connect_timeout_s=30))
        try:
            member = FakeMember("b-1", Host("127.0.0.1", int(await process.stdout.readline())))
            peer = await peers.reach(member, ConnectionKind.CONTROL, 30)
            gone = asyncio.Event()
            peer.on_lost(gone.set)
            process.send_signal(signal.SIGSTOP)
            await gone.wait()
            assert peer.why == "no sign of life: it does not respond to a ping"
            with pytest.raises(PeerLost, match=r"does not answer in 0\.2 s"):
                await peers.probe(member, 0.2)
            process.send_signal(signal.SIGCONT)
            assert (await peers.reach(member, ConnectionKind.CONTROL, 30)).is_up
        finally:
            process.kill()
            await process.wait()
            await peers.close()
