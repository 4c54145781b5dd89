"""Pipelines and reads through AES/CTR and SASL's frames, with a datanode that seals and opens on its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bmq.storage.filesystem import CorruptData, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread
from bmq.storage.hdfs.channel import AesCtr, Channel, Frames
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import (
    OP_WRITE_BLOCK,
    STATUS_SUCCESS,
    chunk_crcs,
    decode_varint,
    delimited,
    pack_crcs,
    packet_head,
)
from bmq.storage.hdfs.digest_md5 import DigestMd5, parse
from bmq.storage.hdfs.encryption_keys import EncryptionKeys, Key, password_of, user_of
from bmq.storage.hdfs.handshake import MAGIC, TransferSecurity
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.pipeline_setup import Setup, members_of, open_pipeline
from bmq.storage.hdfs.security_layer import SecurityLayer
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.transfer_encryption import PAUSE_S, TransferEncryption

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

SETTINGS = HdfsSettings(probe_timeout_s=0.5, read_timeout_s=5.0, setup_timeout_s=5.0)
TOKEN = pb.Token(identifier=b"token", password=b"token", kind="HDFS_BLOCK_TOKEN", service="")
CHALLENGE = b'realm="0",nonce="n",qop="%s",charset=utf-8,cipher="%s",algorithm=md5-sess'
TOKEN_USER = "dG9rZW4="
BLOCK = os.urandom(700_000)
CHUNK_BYTES = 512
PACKET_BYTES = 64 << 10
LEVELS = {
    "aes": ("auth-conf", "rc4"),
    "integrity": ("auth-int", ""),
    "3des": ("auth-conf", "3des"),
    "rc4": ("auth-conf", "rc4"),
}
AES_KEYS = (b"i" * 16, b"I" * 16, b"o" * 16, b"O" * 16)
Fault = Callable[[int, bytes], bytes]


@dataclass
class ProtectedNode:
    """A datanode's transfer port: it stores what is written, and serves ``BLOCK``.

    ``fault`` changes the sealed bytes of its n-th piece.  ``unknown`` has the keys' users that it refuses.
    """

    level: str
    fault: Fault = lambda _, sealed: sealed
    unknown: set[str] = field(default_factory=set)
    only: str = ""
    """The only user whose connection it does not close."""
    reason: str = ""
    """Text of the error that other users than ``only`` get before the end of their connections."""
    users: list[str] = field(default_factory=list)
    password: str = TOKEN_USER
    written: bytearray = field(default_factory=bytearray)
    connections: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if await reader.readexactly(4) == MAGIC and (channel := await self._log_in(reader, writer)) is not None:
                self.connections += 1
                wire = Wire(reader, writer, channel, self.fault)
                while True:
                    code = (await wire.read(3))[2]
                    await wire.read_message()
                    await (self._store(wire) if code == OP_WRITE_BLOCK else self._send(wire))
        writer.close()

    async def _log_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel | None:
        plain = Wire(reader, writer, Plain(), lambda _, sealed: sealed)
        await plain.read_message()
        qop, ciphers = LEVELS[self.level]
        challenge = CHALLENGE % (qop.encode(), ciphers.encode())
        plain.write(delimited(pb.Handshake(status=pb.Handshake.SUCCESS, payload=challenge)))
        message = pb.Handshake.FromString(await plain.read_message())
        directives = parse(message.payload)
        (user,), (cnonce,), (uri,) = directives["username"], directives["cnonce"], directives["digest-uri"]
        self.users.append(user)
        if self.only and user != self.only:
            if self.reason:
                plain.write(delimited(pb.Handshake(status=pb.Handshake.ERROR, message=self.reason)))
            return None
        if user in self.unknown:
            plain.write(delimited(pb.Handshake(status=pb.Handshake.ERROR_UNKNOWN_KEY, message="unknown key")))
            return None
        chosen = directives.get("cipher", [""])[0]
        digest = DigestMd5(user, self.password, uri, levels=(qop,), cipher=chosen, cnonce=cnonce)
        assert digest.evaluate(challenge) == message.payload, "another password"
        layer = SecurityLayer(digest._session_key, chosen, is_server=True)
        options = []
        if self.level == "aes":
            assert [option.suite for option in message.cipher_option] == [2], "AES/CTR is offered"
            key, counter, out_key, out_counter = AES_KEYS
            wrapped, out_wrapped = layer.wrap(key), layer.wrap(out_key)
            options.append(
                pb.CipherOption(suite=2, in_key=wrapped, in_iv=counter, out_key=out_wrapped, out_iv=out_counter)
            )
        proof = b"rspauth=" + digest._proof.encode()
        plain.write(delimited(pb.Handshake(status=pb.Handshake.SUCCESS, payload=proof, cipher_option=options)))
        return AesCtr(out_key, out_counter, key, counter) if options else Frames(layer)

    async def _store(self, wire: Wire) -> None:
        wire.write(delimited(pb.BlockOpResponse(status=STATUS_SUCCESS)))
        while True:
            length, header_bytes = struct.unpack(">IH", await wire.read(6))
            header = pb.PacketHeader.FromString(await wire.read(header_bytes))
            body = await wire.read(length - 4)
            data = body[len(body) - header.data_length :]
            assert pack_crcs(chunk_crcs(data, CHUNK_BYTES)) == body[: len(body) - len(data)]
            if data:  # neither a heartbeat nor the last packet
                self.written[header.offset :] = data
            wire.write(delimited(pb.PipelineAck(seqno=header.seqno, reply=[STATUS_SUCCESS])))

    async def _send(self, wire: Wire) -> None:
        checksum = pb.Checksum(type=2, chunk_bytes=CHUNK_BYTES)
        info = pb.BlockOpResponse.ReadInfo(checksum=checksum, chunk_offset=0)
        wire.write(delimited(pb.BlockOpResponse(status=STATUS_SUCCESS, read_info=info)))
        for seqno, start in enumerate(range(0, len(BLOCK), PACKET_BYTES)):
            data = BLOCK[start : start + PACKET_BYTES]
            crcs = pack_crcs(chunk_crcs(data, CHUNK_BYTES))
            wire.write(packet_head(seqno, start, len(data), len(crcs), last=False, sync=False) + crcs + data)
        wire.write(packet_head(len(BLOCK) // PACKET_BYTES + 1, len(BLOCK), 0, 0, last=True, sync=False))
        await wire.read_message()


class Plain:
    """No protection."""

    def seal(self, parts: list[bytes]) -> list[bytes]:
        return parts

    def open(self, data: bytes) -> bytes:
        return data


class Wire:
    """A datanode's end of a connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channel: Channel | Plain, fault: Fault
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._channel = channel
        self._fault = fault
        self._opened = b""
        self._pieces = 0

    async def read(self, size: int) -> bytes:
        while len(self._opened) < size:
            data = await self._reader.read(100_000)
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            self._opened += self._channel.open(data)
        data, self._opened = self._opened[:size], self._opened[size:]
        return data

    async def read_message(self) -> bytes:
        prefix = b""
        while not prefix or prefix[-1] & 0x80:
            prefix += await self.read(1)
        return await self.read(decode_varint(prefix, 0)[0])

    def write(self, data: bytes) -> None:
        sealed = self._fault(self._pieces, b"".join(self._channel.seal([data])))
        self._pieces += 1
        self._writer.write(sealed[:5])  # in two pieces: frames end where they like
        self._writer.write(sealed[5:])


@asynccontextmanager
async def started(peer: ProtectedNode) -> AsyncIterator[tuple[HdfsClient, pb.LocatedBlock]]:
    """Start the datanode; yield a client and the block on it."""
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transfer = TransferSecurity(("auth-conf", "auth-int"))
    client = HdfsClient.build((("127.0.0.1", 1),), "h", SETTINGS, SimpleAuthenticator("alice"), transfer)
    block = pb.Block(pool="pool", id=1, generation=1, length=len(BLOCK))
    node = pb.Node(id=pb.NodeId(ip="127.0.0.1", host="dn", uuid="u", data_port=port, info_port=1, ipc_port=port))
    try:
        yield client, pb.LocatedBlock(block=block, offset=0, corrupt=False, token=TOKEN, nodes=[node])
    finally:
        await client.close()
        server.close()
        await asyncio.wait_for(asyncio.gather(*peer.tasks, return_exceptions=True), 10)


async def open_writer(client: HdfsClient, located: pb.LocatedBlock) -> Pipeline:
    setup = Setup(stage=pb.WriteBlock.SETUP_CREATE, block=located.block, token=located.token, client_name="h")
    return await open_pipeline(client, setup, members_of(located), base=0, length=0, chunk_bytes=CHUNK_BYTES)


def sizes() -> Iterator[int]:
    """Give sizes of pieces, some for a thread and some for the loop."""
    for size in (1, 300_000, 10, 65_537, 7, 1_500_000, 65_536, 3):
        yield from (size, 11)


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_written_arrives_in_order(level: str) -> None:
    peer = ProtectedNode(level)
    async with started(peer) as (client, located):
        pipeline = await open_writer(client, located)
        sent = b""
        flushes = []
        for size in sizes():
            data = os.urandom(size)
            pipeline.write(data)
            flushes.append(pipeline.flush(sync=False))
            sent += data
        await asyncio.gather(*flushes)
        pipeline.heartbeat()
        await pipeline.finish()
        assert peer.written == sent


@pytest.mark.parametrize("level", LEVELS)
async def test_small_and_large_reads(level: str) -> None:
    peer = ProtectedNode(level)
    async with started(peer) as (client, located):
        assert await read_block(client, located, 0, len(BLOCK), is_open=False) == BLOCK
        assert peer.connections == 1
        for _ in range(3):
            assert await read_block_by_thread(client, located, 0, len(BLOCK), is_open=False) == BLOCK
        assert peer.connections == 2, "a kept connection goes on with the state of its ciphers"


def flip(number: int, sealed: bytes) -> bytes:
    return sealed[:-9] + bytes([sealed[-9] ^ 1]) + sealed[-8:] if number == 2 else sealed


def drop(number: int, sealed: bytes) -> bytes:
    return b"" if number == 2 else sealed


def repeat(number: int, sealed: bytes) -> bytes:
    return sealed * 2 if number == 2 else sealed


def announce_2_gb(number: int, sealed: bytes) -> bytes:
    return (1 << 31).to_bytes(4) + sealed if number == 2 else sealed


@pytest.mark.parametrize("fault", [flip, drop, repeat, announce_2_gb])
@pytest.mark.parametrize("level", ["integrity", "3des", "rc4"])
async def test_a_frame_that_is_changed_ends_the_connection(level: str, fault: Fault) -> None:
    async with started(ProtectedNode(level, fault)) as (client, located):
        for read in (read_block, read_block_by_thread):
            with pytest.raises(StorageUnavailable, match=r"LayerBroken\(|the datanode closed"):
                await read(client, located, 0, len(BLOCK), is_open=False)
        pipeline = await open_writer(client, located)
        flushes = []
        for _ in range(3):
            pipeline.write(b"data")
            flushes.append(pipeline.flush(sync=False))
            await asyncio.sleep(0)
        with pytest.raises(PipelineFailed, match=r"connection to \S+ lost: (a|message) "):
            await flushes[-1]


async def test_bytes_that_are_changed_under_aes_are_found_by_the_checksums() -> None:
    async with started(ProtectedNode("aes", flip)) as (client, located):
        for read in (read_block, read_block_by_thread):
            with pytest.raises(CorruptData):
                await read(client, located, 0, len(BLOCK), is_open=False)


async def test_a_pipeline_that_is_given_up_while_a_thread_seals_sends_no_more() -> None:
    peer = ProtectedNode("3des")
    async with started(peer) as (client, located):
        pipeline = await open_writer(client, located)
        pipeline.write(bytes(900_000))
        flush = pipeline.flush(sync=False)
        pipeline.abort()
        with pytest.raises(StorageError):
            await flush


async def test_a_datanode_that_does_not_know_the_key_is_tried_with_another() -> None:
    keys = [Key(id=n, pool="BP-1", nonce=b"n", key=b"k", expiry_ms=1 << 60) for n in (1, 2, 3)]
    peer = ProtectedNode("aes", unknown={user_of(keys[0])}, password=password_of(keys[0]))
    async with started(peer) as (client, located):
        asked = iter(keys)

        async def ask() -> Key:
            return next(asked)

        for read in (read_block, read_block_by_thread):
            asked = iter(keys)
            client.encryption.keys = EncryptionKeys(ask)
            assert await read(client, located, 0, len(BLOCK), is_open=False) == BLOCK
        asked = iter(keys)
        client.encryption.keys = EncryptionKeys(ask)
        await open_writer(client, located)
        assert peer.users == [user_of(keys[0]), user_of(keys[1])] * 3
        peer.unknown |= set(map(user_of, keys))
        with pytest.raises(StorageUnavailable, match="refuses the handshake: unknown key"):
            await read_block(client, located, 0, 100, is_open=False)
        assert client.suspected() == set()


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["switched on", "switched off"])
@pytest.mark.parametrize("use", [read_block, read_block_by_thread, open_writer])
@pytest.mark.parametrize("reason", ["", "DIGEST-MD5: IO error acquiring password"], ids=["closed", "privacy"])
async def test_encryption_that_is_switched_while_a_process_runs(
    use: Callable[..., object], is_encrypted: bool, reason: str
) -> None:
    """A datanode closes a connection of the former kind as a full one does: storage would seem full.

    Where ``dfs.data.transfer.protection`` has privacy, both kinds agree on the level.  The datanode then finds no
    password for the user of the former kind, as for a block token that has expired.
    """
    key = Key(id=1, pool="BP-1", nonce=b"n", key=b"k", expiry_ms=1 << 60)
    # Without keys the client proves the block token, of another user: for this datanode an unknown kind of connection.
    peer = ProtectedNode("aes", password=password_of(key), only=user_of(key), reason=reason)
    if is_encrypted:
        peer = ProtectedNode("aes", only=TOKEN_USER, reason=reason)
    async with started(peer) as (client, located):
        now_s = 0.0
        demands = is_encrypted

        async def ask() -> bool:
            return demands

        async def ask_key() -> Key | None:
            return key

        client.encryption = TransferEncryption(ask, ask_key, monotonic_s=lambda: now_s)
        await client.encryption.begin()
        demands, now_s = not is_encrypted, PAUSE_S
        if use is open_writer:
            (await open_writer(client, located)).abort()
        else:
            assert await use(client, located, 0, len(BLOCK), is_open=False) == BLOCK  # type: ignore[misc]
        assert client.suspected() == set()


async def test_a_namenode_that_gives_no_keys_any_more_has_switched_encryption_off() -> None:
    """A fence waits for the key before it contacts datanodes."""
    async with started(ProtectedNode("aes")) as (client, _):
        now_s = 0.0
        demands = True

        async def ask() -> bool:
            return demands

        async def ask_key() -> Key | None:
            return None

        client.encryption = TransferEncryption(ask, ask_key, monotonic_s=lambda: now_s)
        await client.encryption.begin()
        now_s = PAUSE_S
        with pytest.raises(StorageUnavailable, match="has no key"):
            await client.have_key()
        demands, now_s = False, 2 * PAUSE_S
        await client.have_key()
        assert client.encryption.keys is None
