"""Connections to a datanode that begin with SASL's handshake: pipelines, reads on the loop and by a thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bmq.storage.filesystem import PipelineFailed, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread, read_replica
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import (
    OP_READ_BLOCK,
    OP_WRITE_BLOCK,
    STATUS_ACCESS_TOKEN,
    STATUS_SUCCESS,
    decode_varint,
    delimited,
)
from bmq.storage.hdfs.handshake import MAGIC, TokenRefused, TransferSecurity
from bmq.storage.hdfs.pipeline import HandshakeRefused, Pipeline, SetupTimedOut, TokenExpired
from bmq.storage.hdfs.pipeline_setup import Setup, members_of, open_pipeline
from bmq.storage.hdfs.settings import HdfsSettings
from tests.unit.storage.hdfs.test_block_tokens import CHALLENGE, checked

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

SETTINGS = HdfsSettings(probe_timeout_s=0.2, read_timeout_s=5.0, setup_timeout_s=5.0)
TOKEN = pb.Token(identifier=b"token", password=b"token", kind="HDFS_BLOCK_TOKEN", service="")
Open = Callable[[HdfsClient, pb.LocatedBlock], Awaitable[object]]


@dataclass
class SecureNode:
    """A datanode's transfer port: it plays ``refusal`` for the step ``refuses_at``, else responds with ``status``."""

    refuses_at: int = -1
    refusal: pb.Handshake | None = None
    challenge: bytes = CHALLENGE
    status: int = STATUS_ACCESS_TOKEN
    operations: list[int] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if await reader.readexactly(4) != MAGIC:
                writer.close()  # a probe of the IPC port
                return
            await read_message(reader)
            if self.refuses_at != 0:
                write(writer, pb.Handshake(status=pb.Handshake.SUCCESS, payload=self.challenge))
                _, proof = checked(pb.Handshake.FromString(await read_message(reader)).payload)
                if self.refuses_at != 1:
                    write(writer, pb.Handshake(status=pb.Handshake.SUCCESS, payload=proof))
                    self.operations.append((await reader.readexactly(3))[2])
                    await read_message(reader)
                    write(writer, pb.BlockOpResponse(status=self.status))
                    await reader.read()
            if self.refusal is not None:
                write(writer, self.refusal)
        writer.close()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    prefix = b""
    while not prefix or prefix[-1] & 0x80:
        prefix += await reader.readexactly(1)
    return await reader.readexactly(decode_varint(prefix, 0)[0])


def write(writer: asyncio.StreamWriter, message: pb.Handshake | pb.BlockOpResponse) -> None:
    data = delimited(message)
    writer.write(data[:3])  # in two pieces: messages end where they like
    writer.write(data[3:])


@asynccontextmanager
async def started(peer: SecureNode) -> AsyncIterator[tuple[HdfsClient, pb.LocatedBlock]]:
    """Start the datanode; yield a client and a block on it.  Its IPC port is the same, and responds to nothing."""
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HdfsClient.build(
        (("127.0.0.1", 1),), "h", SETTINGS, SimpleAuthenticator("alice"), TransferSecurity(("auth",))
    )
    block = pb.Block(pool="pool", id=1, generation=1, length=100)
    node = pb.Node(id=pb.NodeId(ip="127.0.0.1", host="dn", uuid="u", data_port=port, info_port=1, ipc_port=port))
    try:
        yield client, pb.LocatedBlock(block=block, offset=0, corrupt=False, token=TOKEN, nodes=[node])
    finally:
        await client.close()
        server.close()
        for writer in peer.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def write_block(client: HdfsClient, located: pb.LocatedBlock) -> Pipeline:
    setup = Setup(stage=pb.WriteBlock.SETUP_CREATE, block=located.block, token=located.token, client_name="h")
    return await open_pipeline(client, setup, members_of(located), base=0, length=0, chunk_bytes=512)


async def read_small(client: HdfsClient, located: pb.LocatedBlock) -> bytes:
    return await read_block(client, located, 0, 100, is_open=False)


async def read_large(client: HdfsClient, located: pb.LocatedBlock) -> bytes:
    return await read_block_by_thread(client, located, 0, 100, is_open=False)


ALL = [write_block, read_small, read_large]
EXPIRED = pb.Handshake(status=pb.Handshake.ERROR, message="expired", access_token_error=True)


async def test_the_operation_follows_the_handshake() -> None:
    peer = SecureNode(status=STATUS_SUCCESS)
    async with started(peer) as (client, located):
        pipeline = await write_block(client, located)
        assert peer.operations == [OP_WRITE_BLOCK]
        pipeline.abort()


@pytest.mark.parametrize("use", ALL)
@pytest.mark.parametrize("refuses_at", [0, 1, -1])
async def test_a_token_that_is_refused_puts_no_datanode_in_doubt(use: Open, refuses_at: int) -> None:
    """The handshake refuses it, or the operation."""
    peer = SecureNode(refuses_at=refuses_at, refusal=EXPIRED)
    async with started(peer) as (client, located):
        reported: list[object] = []
        client.bad_replicas.report = lambda *what: reported.append(what)  # type: ignore[method-assign]
        with pytest.raises(TokenExpired if use is write_block else StorageUnavailable):
            await use(client, located)
        assert client.suspected() == set()
        assert reported == []
        code = OP_WRITE_BLOCK if use is write_block else OP_READ_BLOCK
        assert peer.operations == ([code] if refuses_at < 0 else [])


async def test_a_fence_learns_that_the_token_was_refused() -> None:
    async with started(SecureNode(refuses_at=0, refusal=EXPIRED)) as (client, located):
        with pytest.raises(TokenRefused):
            await read_replica(client, located.nodes[0].id, located.block, TOKEN, 0, 10)


@pytest.mark.parametrize("use", ALL)
@pytest.mark.parametrize("refuses_at", [0, 1])
async def test_another_refusal_is_no_silence(use: Open, refuses_at: int) -> None:
    refusal = pb.Handshake(status=pb.Handshake.ERROR, message="no")
    async with started(SecureNode(refuses_at=refuses_at, refusal=refusal)) as (client, located):
        with pytest.raises(HandshakeRefused if use is write_block else StorageUnavailable, match="refuses the hands"):
            await use(client, located)
        assert client.suspected() == set()


@pytest.mark.parametrize("use", ALL)
async def test_a_connection_that_ends_in_the_handshake_is_lost(use: Open) -> None:
    async with started(SecureNode(refuses_at=0)) as (client, located):
        with pytest.raises(PipelineFailed if use is write_block else StorageUnavailable) as caught:
            await use(client, located)
        assert not isinstance(caught.value, HandshakeRefused | SetupTimedOut)


@pytest.mark.parametrize("use", ALL)
async def test_a_level_that_is_not_built_is_refused_by_its_name(use: Open) -> None:
    peer = SecureNode(challenge=CHALLENGE.replace(b'"auth"', b'"auth-conf"'))
    async with started(peer) as (client, located):
        with pytest.raises(Unsupported, match=r"demands dfs\.data\.transfer\.protection=privacy"):
            await use(client, located)
        assert client.suspected() == set()
        assert peer.operations == []
