"""Connections to a datanode that begin with SASL's handshake: pipelines, reads on the loop and by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

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
    encode_varint,
)
from bmq.storage.hdfs.handshake import MAGIC, MESSAGE_BYTES_MAX, TokenRefused, TransferSecurity
from bmq.storage.hdfs.pipeline import HandshakeRefused, Pipeline, ProtectionRefused, SetupTimedOut, TokenExpired
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
    floods: bytes = b""
    """Sent again and again in place of the response."""
    speaks_first: bytes = b""
    behind: bytes = b""
    """Sent in one piece with the last message, which is then as long as a single read of it was."""
    drips_s: float = 0.0
    """The pause after each byte of an endless first message."""
    operations: list[int] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(self.speaks_first)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if await reader.readexactly(4) != MAGIC:
                writer.close()  # a probe of the IPC port
                return
            await read_message(reader)
            if self.drips_s:
                writer.write(b"\xff\x3f")
                while True:
                    writer.write(b"\x01")
                    await writer.drain()
                    await asyncio.sleep(self.drips_s)
            if self.refuses_at != 0:
                write(writer, pb.Handshake(status=pb.Handshake.SUCCESS, payload=self.challenge))
                _, proof = checked(pb.Handshake.FromString(await read_message(reader)).payload)
                if self.refuses_at != 1:
                    if self.behind:
                        writer.write(long_message(proof) + self.behind)
                        await reader.read()
                    write(writer, pb.Handshake(status=pb.Handshake.SUCCESS, payload=proof))
                    self.operations.append((await reader.readexactly(3))[2])
                    await read_message(reader)
                    while self.floods:
                        writer.write(self.floods)
                        await writer.drain()
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


def long_message(proof: bytes) -> bytes:
    """Return the last message of a handshake, with an unknown field that makes it 8 KB with its length."""
    body = pb.Handshake(status=pb.Handshake.SUCCESS, payload=proof).SerializeToString()
    rest = MESSAGE_BYTES_MAX - 2 - len(body) - 3
    body += b"\xa2\x06" + encode_varint(rest - 1) + bytes(rest - 1)
    message = encode_varint(len(body)) + body
    assert len(message) == MESSAGE_BYTES_MAX
    return message


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
@pytest.mark.parametrize("byte", [b"\xff", b"\x80"])
async def test_a_length_without_an_end_ends_the_connection(use: Open, byte: bytes) -> None:
    async with started(SecureNode(floods=byte * 65536)) as (client, located):
        with pytest.raises(PipelineFailed if use is write_block else StorageUnavailable, match="a length"):
            await use(client, located)


@pytest.mark.parametrize("use", ALL)
async def test_a_handshake_byte_by_byte_has_a_limit(use: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A datanode that goes on for hours holds no thread and no caller."""
    monkeypatch.setattr(sys.modules[__name__], "SETTINGS", replace(SETTINGS, read_timeout_s=0.5, setup_timeout_s=0.5))
    async with started(SecureNode(drips_s=0.01)) as (client, located):
        with pytest.raises(SetupTimedOut if use is write_block else StorageUnavailable):
            await use(client, located)


@pytest.mark.parametrize("use", ALL)
@pytest.mark.parametrize(
    "first", [pb.BlockOpResponse(status=STATUS_SUCCESS), pb.Handshake(status=pb.Handshake.SUCCESS)]
)
async def test_a_datanode_that_speaks_first_is_not_let_in(use: Open, first: pb.BlockOpResponse | pb.Handshake) -> None:
    async with started(SecureNode(speaks_first=delimited(first))) as (client, located):
        with pytest.raises(PipelineFailed if use is write_block else StorageUnavailable, match="broke off the rules"):
            await use(client, located)


async def test_a_response_before_the_handshake_opens_no_pipeline() -> None:
    """The bytes come in the turn in which the connection is made."""
    peer = SecureNode()
    async with started(peer) as (client, located):
        made = Pipeline.connection_made

        def speak(pipeline: Pipeline, transport: asyncio.BaseTransport) -> None:
            made(pipeline, transport)
            pipeline.data_received(delimited(pb.BlockOpResponse(status=STATUS_SUCCESS)))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Pipeline, "connection_made", speak)
            with pytest.raises(PipelineFailed, match="a message before this client's first"):
                await write_block(client, located)
        assert peer.operations == []


async def test_bytes_behind_the_last_message_are_not_taken_for_protected_ones() -> None:
    """Bytes in the clear, from somebody on the way, would be read before the protection begins."""
    async with started(SecureNode(behind=delimited(pb.BlockOpResponse(status=STATUS_SUCCESS)))) as (client, located):
        with pytest.raises(StorageUnavailable, match="bytes behind its message"):
            await read_small(client, located)


@pytest.mark.parametrize("use", ALL)
async def test_a_connection_that_ends_in_the_handshake_is_lost(use: Open) -> None:
    async with started(SecureNode(refuses_at=0)) as (client, located):
        with pytest.raises(PipelineFailed if use is write_block else StorageUnavailable) as caught:
            await use(client, located)
        assert not isinstance(caught.value, HandshakeRefused | SetupTimedOut)


@pytest.mark.parametrize("use", ALL)
async def test_a_level_that_is_not_built_is_refused_by_its_name(use: Open) -> None:
    """The only datanode is all of them.  A pipeline's caller may have others."""
    peer = SecureNode(challenge=CHALLENGE.replace(b'"auth"', b'"auth-conf"'))
    async with started(peer) as (client, located):
        with pytest.raises(
            ProtectionRefused if use is write_block else Unsupported,
            match=r"demands dfs\.data\.transfer\.protection=privacy",
        ):
            await use(client, located)
        assert client.suspected() == set()
        assert peer.operations == []
