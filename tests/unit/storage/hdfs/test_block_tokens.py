"""Block tokens: the identity under which a datanode is asked for a replica's length, and what a refusal means."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import KerberosAuthenticator, SimpleAuthenticator
from bmq.storage.hdfs.block_reader import read_block
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import delimited
from bmq.storage.hdfs.datanode import Datanodes, NodeUnreachable, NoReplica, ReplicaNotReady, node_name
from bmq.storage.hdfs.digest_md5 import DigestMd5, parse
from bmq.storage.hdfs.errors import RemoteError
from bmq.storage.hdfs.handshake import TokenRefused
from bmq.storage.hdfs.rpc import RpcConnection
from bmq.storage.hdfs.settings import HdfsSettings
from tests.harness.waiting import until
from tests.unit.storage.hdfs.fakes import MISSING, read_frame

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

SETTINGS = HdfsSettings(probe_timeout_s=0.2, datanode_connections_max=2)
CHALLENGE = b'realm="default",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess'
INVALID = "org.apache.hadoop.security.token.SecretManager$InvalidToken: Block token is expired."
SASL_ID = -33 & 0xFFFFFFFF
TIMEOUT_S = 5.0


def token(number: int, *, password: bytes = b"") -> pb.Token:
    identifier = b"token %d" % number
    return pb.Token(identifier=identifier, password=password or identifier, kind="HDFS_BLOCK_TOKEN", service="")


def block(number: int) -> pb.Block:
    return pb.Block(pool="pool", id=number, generation=1)


@dataclass
class TokenNode:
    """A datanode's IPC port that takes tokens whose password is their identifier, and says ``length`` of any block."""

    length: int = 7
    expired: set[bytes] = field(default_factory=set)
    error: str = ""
    login_error: str = ""
    is_silent: bool = False
    logins: list[bytes] = field(default_factory=list)
    calls: list[bytes] = field(default_factory=list)
    """Of each call the token under which it came."""
    offers: int = 0
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def node(self) -> pb.Node:
        node = pb.NodeId(ip="127.0.0.1", host="dn", uuid="u", data_port=1, info_port=1, ipc_port=self.port)
        return pb.Node(id=node)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await reader.readexactly(7) == b"hrpc\x09\x00\xdf"
            await read_frame(reader)
            if self.is_silent:
                await reader.read()
            self.offers += 1
            offer = pb.RpcSasl.Auth(
                method="TOKEN", mechanism="DIGEST-MD5", protocol="", server_id="default", challenge=CHALLENGE
            )
            send(writer, SASL_ID, pb.RpcSasl(state=pb.RpcSasl.NEGOTIATE, auths=[offer]))
            initiate = pb.RpcSasl.FromString((await read_frame(reader))[1])
            user, proof = checked(initiate.token)
            if self.login_error or user in self.expired:
                fail(writer, SASL_ID, self.login_error or INVALID, is_fatal=True)
                return
            self.logins.append(user)
            send(writer, SASL_ID, pb.RpcSasl(state=pb.RpcSasl.SUCCESS, token=proof))
            context = pb.ConnectionContext.FromString((await read_frame(reader))[1])
            assert not context.HasField("user"), "the token names the user"
            while True:
                header, *_ = await read_frame(reader)
                call_id = pb.RpcRequestHeader.FromString(header).call_id
                self.calls.append(user)
                if self.error or user in self.expired:
                    fail(writer, call_id, self.error or INVALID)
                else:
                    send(writer, call_id, pb.GetReplicaVisibleLengthResponse(length=self.length))

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def checked(response: bytes) -> tuple[bytes, bytes]:
    """Return the user of a client's response, and the proof that follows it; the password is the user."""
    directives = parse(response)
    (user,), (cnonce,), (uri,) = directives["username"], directives["cnonce"], directives["digest-uri"]
    digest = DigestMd5(user, user, uri, cnonce=cnonce)
    assert digest.evaluate(CHALLENGE) == response, "another password"
    return user.encode(), b"rspauth=" + digest._proof.encode()


def send(writer: asyncio.StreamWriter, call_id: int, message: pb.RpcSasl | pb.GetReplicaVisibleLengthResponse) -> None:
    header = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS)
    write_frame(writer, delimited(header) + delimited(message))


def fail(writer: asyncio.StreamWriter, call_id: int, error: str, *, is_fatal: bool = False) -> None:
    name, _, text = error.partition(": ")
    status = pb.RpcResponseHeader.FATAL if is_fatal else pb.RpcResponseHeader.ERROR
    header = pb.RpcResponseHeader(call_id=call_id, status=status, exception_class=name, error_message=text)
    write_frame(writer, delimited(header))


def write_frame(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(struct.pack(">I", len(body)) + body)


def user_of(number: int) -> bytes:
    return DigestMd5.by_token(token(number), "")._user.encode()


@asynccontextmanager
async def started(peer: TokenNode) -> AsyncIterator[Datanodes]:
    """Start the datanode, and yield a client of it."""
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    client = Datanodes(SETTINGS, SimpleAuthenticator("alice"))
    try:
        yield client
    finally:
        client.close()
        server.close()
        await peer.close()


async def test_a_length_is_asked_under_the_blocks_own_token() -> None:
    peer = TokenNode()
    async with started(peer) as client:
        for number in (1, 1, 2):
            assert await client.visible_length(peer.node.id, block(number), token(number), TIMEOUT_S) == 7
        assert peer.calls == [user_of(1), user_of(1), user_of(2)]
        assert peer.logins == [user_of(1), user_of(2)], "a connection for each block"


async def test_the_connections_are_bounded() -> None:
    peer = TokenNode()
    async with started(peer) as client:
        for number in range(5):
            await client.visible_length(peer.node.id, block(number), token(number), TIMEOUT_S)
        assert len(client._connections) == SETTINGS.datanode_connections_max


async def test_a_kept_connection_whose_token_has_expired_is_replaced() -> None:
    peer = TokenNode()
    async with started(peer) as client:
        await client.visible_length(peer.node.id, block(1), token(1), TIMEOUT_S)
        peer.expired.add(user_of(1))
        lengths = await asyncio.gather(
            *(client.visible_length(peer.node.id, block(1), token(2), TIMEOUT_S) for _ in range(5))
        )
        assert lengths == [7] * 5, "calls at the same time do not take one another for a silent datanode"


@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_expired_token_is_no_silence(is_kept: bool) -> None:
    peer = TokenNode()
    async with started(peer) as client:
        if is_kept:
            await client.visible_length(peer.node.id, block(1), token(1), TIMEOUT_S)
        peer.expired.add(user_of(1))
        with pytest.raises(TokenRefused, match="is expired"):
            await client.visible_length(peer.node.id, block(1), token(1), TIMEOUT_S)
        assert len(peer.logins) == is_kept


@pytest.mark.parametrize(
    ("error", "login_error", "kind"),
    [
        ("", "javax.security.sasl.SaslException: no", ReplicaNotReady),
        ("java.io.IOException: Can't continue since none or more than one BlockTokenIdentifier", "", ReplicaNotReady),
        (MISSING, "", NoReplica),
    ],
)
async def test_a_refusal_is_no_silence(error: str, login_error: str, kind: type[Exception]) -> None:
    peer = TokenNode(error=error, login_error=login_error)
    async with started(peer) as client:
        with pytest.raises(kind):
            await client.visible_length(peer.node.id, block(1), token(1), TIMEOUT_S)


async def test_a_datanode_that_says_nothing_in_a_log_in_is_silent() -> None:
    peer = TokenNode(is_silent=True)
    async with started(peer) as client:
        with pytest.raises(NodeUnreachable):
            await client.visible_length(peer.node.id, block(1), token(1), 0.2)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_probe_needs_no_credentials(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = TokenNode(is_silent=is_silent, login_error="none is taken")
    async with started(peer) as client:
        monkeypatch.setattr(client, "_authenticator", object.__new__(KerberosAuthenticator))
        silent = await client.silent([peer.node.id])
        assert silent == ([node_name(peer.node.id)] if is_silent else [])
        assert peer.logins == []
        assert not client._connections


async def test_a_reader_with_an_old_token_suspects_no_datanode() -> None:
    peer = TokenNode(expired={user_of(1)})
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    client = HdfsClient.build((("127.0.0.1", 1),), "h", SETTINGS, SimpleAuthenticator("alice"))
    located = pb.LocatedBlock(block=block(1), offset=0, corrupt=False, token=token(1), nodes=[peer.node])
    reported: list[object] = []
    client.bad_replicas.report = lambda *what: reported.append(what)  # type: ignore[method-assign]
    try:
        with pytest.raises(StorageUnavailable, match="is expired"):
            await read_block(client, located, 0, 10, is_open=True)
        assert client.suspected() == set()
        assert reported == []
    finally:
        await client.close()
        server.close()
        await peer.close()


class PendingConnection:
    """A kept connection whose calls end as the test says."""

    is_open = True

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[pb.GetReplicaVisibleLengthResponse]] = []
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        return all(call.done() for call in self.calls)

    async def call(self, *_: object, **__: object) -> pb.GetReplicaVisibleLengthResponse:
        self.calls.append(asyncio.get_running_loop().create_future())
        return await self.calls[-1]

    def close(self) -> None:
        self.is_closed = True


async def test_a_replaced_connection_is_closed_after_its_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a connection whose token has expired while another call on it is under way."""
    made = [PendingConnection(), PendingConnection()]
    rest = iter(made)

    async def connect(*_: object, **__: object) -> PendingConnection:
        return next(rest)

    monkeypatch.setattr(RpcConnection, "connect", connect)
    nodes = Datanodes(SETTINGS, SimpleAuthenticator("alice"))
    length = pb.GetReplicaVisibleLengthResponse(length=7)

    def ask() -> asyncio.Task[int]:
        return asyncio.create_task(nodes.visible_length(TokenNode().node.id, block(1), token(1), TIMEOUT_S))

    first = ask()
    await until(lambda: len(made[0].calls) == 1)
    made[0].calls[0].set_result(length)
    assert await first == 7
    callers = [ask(), ask()]
    await until(lambda: len(made[0].calls) == 3)
    made[0].calls[1].set_exception(RemoteError(INVALID.partition(": ")[0], "expired"))
    await until(lambda: len(made[1].calls) == 1)
    made[1].calls[0].set_result(length)
    assert not made[0].is_closed, "its other call goes on"
    made[0].calls[2].set_result(length)
    assert await asyncio.gather(*callers) == [7, 7]
    assert [connection.is_closed for connection in made] == [True, False]
    nodes.close()


async def test_a_new_connection_is_not_closed_before_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask more datanodes at once than connections are kept: each responds, and none counts as silent."""
    made: list[PendingConnection] = []

    async def connect(*_: object, **__: object) -> PendingConnection:
        made.append(PendingConnection())
        return made[-1]

    monkeypatch.setattr(RpcConnection, "connect", connect)
    nodes = Datanodes(SETTINGS, SimpleAuthenticator("alice"))
    most = SETTINGS.datanode_connections_max
    asked = [
        asyncio.create_task(nodes.visible_length(TokenNode().node.id, block(number), token(number), TIMEOUT_S))
        for number in range(most + 3)
    ]
    await until(lambda: len(made) == len(asked) and all(connection.calls for connection in made))
    assert not any(connection.is_closed for connection in made), "each has a call under way, or will have"
    for connection in made:
        connection.calls[0].set_result(pb.GetReplicaVisibleLengthResponse(length=7))
    assert await asyncio.gather(*asked) == [7] * len(asked)
    assert sum(not connection.is_closed for connection in made) == most
    nodes.close()
