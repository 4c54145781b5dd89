"""Stand-ins for HDFS's servers: a NameNode and datanodes that speak Hadoop RPC, and datanodes that refuse blocks."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.aio.backoff import Backoff
from bmq.storage.filesystem import CreateOptions, Lease, PipelineFailed
from bmq.storage.hdfs import block_allocation
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.block_allocation import LeasedFile, append_file, open_new_block
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import decode_varint, delimited
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.pipeline import HandshakeRefused, SetupTimedOut, TokenExpired
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.transfer_encryption import TransferEncryption

SETTINGS = HdfsSettings(call_timeout_s=0.3, call_deadline_s=2.0, backoff_s=Backoff(0.01, 0.05))
STANDBY = "org.apache.hadoop.ipc.StandbyException"


Answer = Callable[["Call"], "bytes | str | None"]
"""The response's bytes, an exception class (": " and a text may follow), or None: no answer at all."""


@dataclass
class Call:
    method: str
    call_id: int
    retry_count: int
    client_id: bytes
    request: bytes


@dataclass
class FakeNameNode:
    """A NameNode that responds to every call with ``answer``, and keeps all of them."""

    answer: Answer
    calls: list[Call] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    user: str = ""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await reader.readexactly(7) == b"hrpc\x09\x00\x00"
            frame = await read_frame(reader)
            self.user = pb.ConnectionContext.FromString(frame[1]).user.effective_user
            while True:
                header, call, request = await read_frame(reader)
                rpc = pb.RpcRequestHeader.FromString(header)
                method = pb.CallHeader.FromString(call).method
                self.calls.append(Call(method, rpc.call_id, rpc.retry_count, rpc.client_id, request))
                self.respond(writer, rpc.call_id, self.answer(self.calls[-1]))
                async with self.heard:
                    self.heard.notify_all()

    async def wait_calls(self, count: int) -> None:
        async with self.heard:
            await self.heard.wait_for(lambda: len(self.calls) >= count)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def respond(self, writer: asyncio.StreamWriter, call_id: int, reply: bytes | str | None) -> None:
        if reply is None:
            return
        response = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS)
        if isinstance(reply, str):
            status = pb.RpcResponseHeader.FATAL if "AccessControl" in reply else pb.RpcResponseHeader.ERROR
            exception_class, _, text = reply.partition(": ")
            response = pb.RpcResponseHeader(
                call_id=call_id,
                status=status,
                exception_class=exception_class,
                error_message=f"{text or 'no'}\n\tat x.y",
            )
        body = delimited(response)
        if isinstance(reply, bytes):
            body += bytes([len(reply)]) + reply
        frame = struct.pack(">I", len(body)) + body
        writer.write(frame[:3])  # in two pieces: frames end where they like
        writer.write(frame[3:])


def unencrypted() -> TransferEncryption:
    """Return the demand of a NameNode that never demands encryption."""

    async def ask() -> bool:
        return False

    async def ask_key() -> None:
        return None

    return TransferEncryption(ask, ask_key)


async def read_frame(reader: asyncio.StreamReader) -> list[bytes]:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    parts = []
    position = 0
    while position < length:
        size, position = decode_varint(frame, position)
        parts.append(frame[position : position + size])
        position += size
    return parts


@contextlib.asynccontextmanager
async def namenode(*answers: Answer, dead: int = 0) -> AsyncIterator[tuple[NameNode, list[FakeNameNode]]]:
    """Yield a client and its fake NameNodes, one for each answer, after ``dead`` addresses where nothing listens."""
    fakes = [FakeNameNode(response) for response in answers]
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
            fake.port = server.sockets[0].getsockname()[1]
            stack.push_async_callback(fake.close)
            stack.callback(server.close)
        unused = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        dead_port = unused.sockets[0].getsockname()[1]
        unused.close()
        await unused.wait_closed()
        addresses = [("127.0.0.1", dead_port)] * dead + [("127.0.0.1", fake.port) for fake in fakes]
        client = NameNode(addresses, SETTINGS, SimpleAuthenticator("alice"))
        try:
            yield client, fakes
        finally:
            await client.close()


MISSING = "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException: Replica not found for pool:1"
NOT_REGISTERED = "org.apache.hadoop.ipc.RetriableException: Datanode not registered. Try again later."
WAITS_FOR_RECOVERY = -1


def answering(what: str | int | None) -> Answer:
    """Return a datanode's response to getReplicaVisibleLength: a length, an error's class, or, for None, no response at
    all."""
    if what is None or isinstance(what, str):
        return lambda _call: what
    length = what & (1 << 64) - 1
    return lambda _call: pb.GetReplicaVisibleLengthResponse(length=length).SerializeToString()


@contextlib.asynccontextmanager
async def datanodes(known: int, *answers: str | int | None) -> AsyncIterator[tuple[HdfsClient, pb.LocatedBlock]]:
    """Yield an open block of which the NameNode has ``known`` bytes, with a replica on a datanode for each answer."""
    settings = HdfsSettings(probe_timeout_s=0.2, read_timeout_s=0.2)
    client = HdfsClient.build((("127.0.0.1", 1),), "h", settings, SimpleAuthenticator("alice"))
    located = pb.LocatedBlock(
        block=pb.Block(pool="pool", id=1, generation=1, length=known),
        offset=0,
        corrupt=False,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        for number, response in enumerate(answers):
            fake = FakeNameNode(answering(response))
            server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
            stack.push_async_callback(fake.close)
            stack.callback(server.close)
            node = located.nodes.add()
            node.id.CopyFrom(
                pb.NodeId(
                    ip="127.0.0.1",
                    host="dn",
                    uuid=str(number),
                    data_port=number + 1,
                    info_port=1,
                    ipc_port=server.sockets[0].getsockname()[1],
                )
            )
        yield client, located


class PlayedHdfs:
    """A NameNode that gives up to three of its nodes, and datanodes that refuse: by number."""

    def __init__(self, client: HdfsClient, nodes: Sequence[pb.Node], block: pb.Block) -> None:
        self.names = [node_name(node.id) for node in nodes]
        self.full: set[int] = set()
        self.slow: set[int] = set()
        self.shut: set[int] = set()
        """These let no client in."""
        self.updated: list[int] | None = None
        """The datanodes of the last ``updatePipeline``."""
        self.tokens_refused: dict[int, int] = {}
        """How many tokens a datanode does not take, by its number."""
        self.known_full: set[int] = set()
        """The NameNode has heard of these by a heartbeat, and does not give them."""
        self.blocks_held = 0
        self.fences = 0
        self._client = client
        self._nodes = nodes
        self._block = block
        setattr(client.namenode, "add_block", self.add_block)  # noqa: B010  (mypy: no plain assignment to a method)
        setattr(client.namenode, "abandon_block", self.abandon_block)  # noqa: B010

    async def add_block(self, path: str, holder: str, file_id: int, exclude: Sequence[pb.Node]) -> pb.LocatedBlock:
        excluded = {node_name(node.id) for node in exclude}
        located = pb.LocatedBlock(block=self._block, offset=0, corrupt=False)
        located.token.CopyFrom(pb.Token(identifier=b"", password=b"", kind="", service=""))
        free = [n for n, name in enumerate(self.names) if name not in excluded and n not in self.known_full]
        located.nodes.extend(self._nodes[n] for n in free[:3])
        self.blocks_held += 1
        return located

    async def abandon_block(self, *_: object) -> None:
        self.blocks_held -= 1

    async def replica_chunk_bytes(self, *_: object) -> int:
        return 512

    async def fence_path(self, *_: object) -> None:
        self.fences += 1

    async def open_pipeline(self, client: HdfsClient, setup: object, members: Sequence[Any], **_: object) -> Any:
        for member in members:
            number = self.names.index(member.name)
            if number in self.slow:
                raise SetupTimedOut("no answer in 5 s", suspects=(member.name,))
            if self.tokens_refused.get(number, 0):
                self.tokens_refused[number] -= 1
                raise TokenExpired("another token is needed", suspects=(member.name,))
            if number in self.shut and member is members[0]:
                raise HandshakeRefused("another cipher", suspects=(member.name,))
            if number in self.full:
                raise PipelineFailed("connection lost", suspects=(member.name,))
        return SimpleNamespace(nodes=tuple(member.name for member in members))

    async def open(self, *, all_copies: bool = True) -> list[int]:
        """Open a file of three copies; return the numbers of its datanodes."""
        lease = Lease(paths=("/f",), holder="h", file_id=1)
        file = LeasedFile(
            path="/f", lease=lease, block_bytes=1 << 20, replication=3, chunk_bytes=512, all_copies=all_copies
        )
        appender: Any = await open_new_block(self._client, file, base=0, advised=set())
        return [self.names.index(name) for name in appender.nodes]

    async def append(self, replicas: int, *, all_copies: bool = False) -> list[int]:
        """Open a closed file with a block on the first datanodes again; return the numbers of its datanodes."""
        block = pb.Block()
        block.CopyFrom(self._block)
        block.length = 100
        located = pb.LocatedBlock(block=block, offset=0, corrupt=False)
        located.token.CopyFrom(pb.Token(identifier=b"", password=b"", kind="", service=""))
        located.nodes.extend(self._nodes[:replicas])
        info = pb.FileInfo(
            kind=pb.FileInfo.FILE, path=b"", length=100, permission=pb.Permission(mode=0o644), owner="o", group="g",
            modification_time=0, access_time=0, file_id=1, block_size=1 << 20, replication=replicas,
        )  # fmt: skip

        async def append(*_: object) -> pb.AppendResponse:
            return pb.AppendResponse(block=located, file=info)

        async def update_block_for_pipeline(*_: object) -> pb.LocatedBlock:
            return located

        async def update_pipeline(
            holder: str, old: pb.Block, new: pb.Block, nodes: Sequence[pb.NodeId], storages: Sequence[str]
        ) -> None:
            self.updated = [self.names.index(node_name(node)) for node in nodes]

        for call in (append, update_block_for_pipeline, update_pipeline):
            setattr(self._client.namenode, call.__name__, call)
        appender: Any = await append_file(self._client, "/f", "/f", CreateOptions(all_copies=all_copies))
        return [self.names.index(name) for name in appender.nodes]


@asynccontextmanager
async def played_hdfs(monkeypatch: pytest.MonkeyPatch, *answers: int | None) -> AsyncIterator[PlayedHdfs]:
    """Yield HDFS with a datanode for each of ``answers``; None: it responds to no probe."""
    async with datanodes(0, *answers) as (client, located):
        hdfs = PlayedHdfs(client, located.nodes, located.block)
        monkeypatch.setattr(block_allocation, "open_pipeline", hdfs.open_pipeline)
        monkeypatch.setattr(block_allocation, "HdfsAppender", lambda client, pipeline, **_: pipeline)
        monkeypatch.setattr(block_allocation, "replica_chunk_bytes", hdfs.replica_chunk_bytes)
        monkeypatch.setattr(block_allocation, "fence_path", hdfs.fence_path)
        yield hdfs
