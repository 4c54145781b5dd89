"""RPC connections with a layer, against a small server: calls go through, and what was tampered with ends them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import decode_varint, delimited
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.rpc import UNWRAP_ON_LOOP_BYTES_MAX
from bmq.storage.hdfs.rpc_frames import FRAME_BYTES_MAX, SASL_RESPONSE_ID, FrameBuffer
from bmq.storage.hdfs.sasl import PRIVACY, Protection
from tests.unit.storage.hdfs.fake_layer import SealedLayer
from tests.unit.storage.hdfs.fakes import STANDBY
from tests.unit.storage.hdfs.test_login import IMPATIENT, PATIENT, WHOLE, Password, SecureServer, send

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

LONG = b"f" * (2 * UNWRAP_ON_LOOP_BYTES_MAX)


class PrivatePassword(Password):
    """A log-in that ends with a layer, a new one for each connection."""

    async def evaluate(self, challenge: bytes) -> bytes | None:
        if not challenge:
            self.protection = Protection(PRIVACY, SealedLayer())
        return await super().evaluate(challenge)


def wrapped(token: bytes, *, call_id: int = SASL_RESPONSE_ID) -> bytes:
    header = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS)
    body = delimited(header) + delimited(pb.RpcSasl(state=pb.RpcSasl.WRAP, token=token))
    return len(body).to_bytes(4) + body


def plain_response(call_id: int, body: bytes = b"\x08\x01") -> bytes:
    """Return the frame of a response, by default of true."""
    header = delimited(pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS))
    frame = header + delimited(Body(body))
    return len(frame).to_bytes(4) + frame


@dataclass
class Body:
    data: bytes

    def SerializeToString(self) -> bytes:
        return self.data


Response = Callable[[SealedLayer, list[int]], "bytes | None"]
"""Returns the bytes to send after a call, or None; the list has the ids of the calls so far."""


@dataclass
class LayeredServer(SecureServer):
    """A server that wraps all that follows the log-in; ``respond`` makes the bytes that it sends after a call."""

    respond: Response = lambda layer, calls: wrapped(layer.wrap(plain_response(calls[-1])))
    tokens: list[bytes] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    is_called: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        layer, within, calls = SealedLayer(1 << 30), FrameBuffer(), list[int]()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await reader.readexactly(7) == b"hrpc\x09\x00\xdf"
            for step in self.script:
                await self._frame(reader)
                send(writer, step)
            while True:
                parts = split(await self._frame(reader))
                assert pb.RpcRequestHeader.FromString(parts[0]).call_id == -33, "nothing is sent in plain bytes"
                token = pb.RpcSasl.FromString(parts[1]).token
                self.tokens.append(token)
                within.feed(layer.unwrap(token))
                while (frame := within.next(FRAME_BYTES_MAX)) is not None:
                    header, *rest = split(frame)
                    call_id = pb.RpcRequestHeader.FromString(header).call_id
                    if call_id < 0:
                        self.contexts.append(pb.ConnectionContext.FromString(rest[0]))
                        continue
                    self.requests.append(rest[1])
                    self.is_called.set()
                    calls.append(call_id)
                    if (sent := self.respond(layer, calls)) is not None:
                        writer.write(sent)

    async def _frame(self, reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def split(frame: bytes) -> list[bytes]:
    """Return the delimited messages of a frame."""
    parts, position = [], 0
    while position < len(frame):
        size, position = decode_varint(frame, position)
        parts.append(frame[position : position + size])
        position += size
    return parts


@contextlib.asynccontextmanager
async def layered(*responses: Response, patient: bool = True) -> AsyncIterator[tuple[NameNode, list[LayeredServer]]]:
    """Yield a client and its servers, one for each way to respond."""
    servers = [LayeredServer(WHOLE, respond=response) for response in responses] or [LayeredServer(WHOLE)]
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for server in servers:
            listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            stack.push_async_callback(server.close)
            stack.callback(listening.close)
            addresses.append(("127.0.0.1", int(listening.sockets[0].getsockname()[1])))
        client = NameNode(addresses, PATIENT if patient else IMPATIENT, PrivatePassword())
        stack.push_async_callback(client.close)
        yield client, servers


async def test_context_and_calls_are_wrapped_and_a_long_request_is_split() -> None:
    async with layered() as (client, (server,)):
        assert all(await asyncio.gather(*(client.is_file_closed(f"/{n}") for n in range(20))))
        assert await client.is_file_closed("/" + "long" * 5000)
    assert server.connections == 1
    assert not server.contexts[0].HasField("user")
    assert len(server.requests) == 21
    assert len(server.requests[-1]) > 20_000
    assert max(map(len, server.tokens)) <= 1024


async def test_responses_are_split_and_joined_as_the_server_likes() -> None:
    def three_at_once(layer: SealedLayer, calls: list[int]) -> bytes | None:
        if len(calls) < 3:
            return None
        stream = b"".join(plain_response(call) for call in calls)
        return b"".join(wrapped(layer.wrap(part)) for part in (stream[:3], stream[3:30], stream[30:]))

    async with layered(three_at_once) as (client, (server,)):
        assert await asyncio.gather(*(client.is_file_closed(f"/{n}") for n in range(3))) == [True] * 3
    assert server.connections == 1


async def test_a_long_response_is_unwrapped_in_a_thread_and_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses behind the long one wait for it, and so does a request: a context is for one thread at a time."""
    begun, go_on = threading.Event(), threading.Event()
    threads: dict[int, list[int]] = {}
    unwrap = SealedLayer.unwrap

    def slowly(self: SealedLayer, token: bytes) -> bytes:
        if len(token) > UNWRAP_ON_LOOP_BYTES_MAX and threading.current_thread() is not threading.main_thread():
            begun.set()
            assert go_on.wait(30)
        threads.setdefault(len(token), []).append(threading.get_ident())
        return unwrap(self, token)

    monkeypatch.setattr(SealedLayer, "unwrap", slowly)
    long = pb.GetListingResponse(
        listing=pb.DirectoryListing(
            remaining=0,
            entries=[
                pb.FileInfo(
                    kind=pb.FileInfo.FILE, path=LONG, length=0, permission=pb.Permission(mode=0), owner="", group="",
                    modification_time=0, access_time=0,
                )
            ],
        )
    ).SerializeToString()  # fmt: skip

    def respond(layer: SealedLayer, calls: list[int]) -> bytes | None:
        if len(calls) == 1:
            return None
        if len(calls) == 2:
            responses = (plain_response(calls[0], long), plain_response(calls[1]))
            return b"".join(wrapped(layer.wrap(one)) for one in responses)
        return wrapped(layer.wrap(plain_response(calls[-1])))

    async with layered(respond) as (client, (server,)):
        listing = asyncio.ensure_future(client.listing("/", b""))
        await server.is_called.wait()
        second = asyncio.ensure_future(client.is_file_closed("/second"))
        await asyncio.to_thread(begun.wait, 30)
        third = asyncio.ensure_future(client.is_file_closed("/third"))
        await asyncio.sleep(0)
        assert not second.done()
        assert len(server.requests) == 2
        go_on.set()
        assert all([await second, await third])
        found = await listing
    assert found is not None
    assert found.entries[0].path == LONG
    (aside,) = [threads[length] for length in threads if length > UNWRAP_ON_LOOP_BYTES_MAX]
    assert threading.get_ident() not in aside
    assert server.connections == 1


async def test_a_connection_that_ends_while_a_thread_unwraps_drops_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    unwrap = SealedLayer.unwrap

    def slowly(self: SealedLayer, token: bytes) -> bytes:
        if len(token) > UNWRAP_ON_LOOP_BYTES_MAX:
            begun.set()
            assert go_on.wait(30)
        return unwrap(self, token)

    monkeypatch.setattr(SealedLayer, "unwrap", slowly)
    async with layered(lambda layer, calls: wrapped(layer.wrap(plain_response(calls[-1], LONG)))) as (client, _):
        call = asyncio.ensure_future(client.is_file_closed("/x"))
        await asyncio.to_thread(begun.wait, 30)
        await client.close()
        with pytest.raises(StorageUnavailable, match="was closed"):
            await call
        go_on.set()


async def test_a_connection_ends_if_its_thread_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused connection without an unwrapped message would keep every later call waiting."""
    loop, real = asyncio.get_running_loop(), asyncio.get_running_loop().run_in_executor

    def run(executor: Any, function: Any, *arguments: Any) -> asyncio.Future[Any]:
        if getattr(function, "__name__", "") != "unwrap":
            return real(executor, function, *arguments)
        cancelled: asyncio.Future[Any] = loop.create_future()
        cancelled.cancel()
        monkeypatch.undo()
        return cancelled

    monkeypatch.setattr(loop, "run_in_executor", run)
    long = iter([(LONG,)])
    respond: Response = lambda layer, calls: wrapped(layer.wrap(plain_response(calls[-1], *next(long, ()))))  # noqa: E731
    async with layered(respond) as (client, (server,)):
        assert await client.is_file_closed("/x")
    assert server.connections == 2, "the call went out again"


def flipped(token: bytes, at: int) -> bytes:
    return token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]


TAMPERED: dict[str, Response] = {
    "flipped": lambda layer, calls: wrapped(flipped(layer.wrap(plain_response(calls[-1])), -1)),
    "flipped number": lambda layer, calls: wrapped(flipped(layer.wrap(plain_response(calls[-1])), 7)),
    "repeated": lambda layer, calls: 2 * wrapped(layer.wrap(plain_response(calls[-1] + 1))),
    "dropped": lambda layer, calls: wrapped([layer.wrap(b"x"), layer.wrap(plain_response(calls[-1]))][1]),
    "moved": lambda layer, calls: b"".join(
        map(wrapped, reversed([layer.wrap(plain_response(call)) for call in (calls[-1], calls[-1])]))
    ),
    "flipped and long": lambda layer, calls: wrapped(flipped(layer.wrap(plain_response(calls[-1], LONG)), -1)),
    "in plain bytes": lambda layer, calls: plain_response(calls[-1]),
    "of a call": lambda layer, calls: wrapped(layer.wrap(plain_response(calls[-1])), call_id=calls[-1]),
    "of 2 GB": lambda layer, calls: ((1 << 31) - 1).to_bytes(4),
    "of 4 GB": lambda layer, calls: b"\xff\xff\xff\xff",
    "of 2 GB within": lambda layer, calls: wrapped(layer.wrap(((1 << 31) - 1).to_bytes(4))),
    "garbage within": lambda layer, calls: wrapped(layer.wrap(b"\0\0\0\3\xff\xff\xff")),
}


@pytest.mark.parametrize("how", TAMPERED)
async def test_what_was_tampered_with_ends_the_connection_and_the_call_goes_to_another(how: str) -> None:
    async with layered(TAMPERED[how], LayeredServer.respond) as (client, (bad, good)):
        assert await client.is_file_closed("/x")
    assert (bad.connections, good.connections) == (1, 1)


async def test_an_end_by_tampering_is_told_with_its_reason() -> None:
    async with layered(TAMPERED["flipped"], patient=False) as (client, _):
        with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1:\d+: a wrong checksum"):
            await client.is_file_closed("/x")
    async with layered(TAMPERED["in plain bytes"], patient=False) as (client, _):
        with pytest.raises(StorageUnavailable, match=r"a response to call \d+ outside of the layer"):
            await client.is_file_closed("/x")
    async with layered(TAMPERED["garbage within"], patient=False) as (client, _):
        with pytest.raises(
            StorageUnavailable, match=r"127\.0\.0\.1:\d+ .*a frame of 3 bytes that ends within a message"
        ):
            await client.is_file_closed("/x")


async def test_an_exception_within_the_layer_is_an_exception() -> None:
    def standby(layer: SealedLayer, calls: list[int]) -> bytes:
        header = pb.RpcResponseHeader(
            call_id=calls[-1], status=pb.RpcResponseHeader.ERROR, exception_class=STANDBY, error_message="standby"
        )
        frame = delimited(header)
        return wrapped(layer.wrap(len(frame).to_bytes(4) + frame))

    async with layered(standby, LayeredServer.respond) as (client, (_, active)):
        assert await client.is_file_closed("/x")
    assert active.connections == 1
