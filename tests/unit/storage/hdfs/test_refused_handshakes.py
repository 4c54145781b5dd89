"""A block on several datanodes, some of which refuse this client's handshake or demand another protection.

Such a refusal concerns one datanode, as in a rolling change of ``dfs.data.transfer.protection``.  Only the refusals of
all datanodes concern this client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.storage.filesystem import OutOfSpace, StorageError, StorageUnavailable, Unsupported
from bmq.storage.hdfs import block_allocation, fencing, writer_stop
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import read_block, read_block_by_thread
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import OP_WRITE_BLOCK, STATUS_SUCCESS
from bmq.storage.hdfs.datanode import node_name
from bmq.storage.hdfs.encryption_keys import EncryptionKeys, Key, password_of
from bmq.storage.hdfs.handshake import Handshake, TransferSecurity
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.transfer_encryption import PAUSE_S, TransferEncryption
from tests.unit.storage.hdfs import test_fencing
from tests.unit.storage.hdfs.fakes import PlayedHdfs, datanodes
from tests.unit.storage.hdfs.test_block_tokens import CHALLENGE
from tests.unit.storage.hdfs.test_protected_transfer import BLOCK, ProtectedNode
from tests.unit.storage.hdfs.test_secure_transfer import TOKEN, SecureNode

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

KEY = Key(id=1, pool="BP-1", nonce=b"n", key=b"k", expiry_ms=1 << 60)
DENIED = "the configuration demands encryption"
REFUSAL = pb.Handshake(status=pb.Handshake.ERROR, message="no")
Peer = SecureNode | ProtectedNode
Read = Callable[..., Coroutine[Any, Any, bytes]]


def of_another_level() -> SecureNode:
    return SecureNode(challenge=CHALLENGE.replace(b'"auth"', b'"auth-conf",cipher="none"'))


FOREIGN: dict[str, Callable[[], SecureNode]] = {
    "level or cipher": of_another_level,
    "log-in": lambda: SecureNode(refuses_at=0, refusal=REFUSAL),
    "garbage": lambda: SecureNode(challenge=b"\x00\xff"),
}
foreign = pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN.keys())


@asynccontextmanager
async def cluster(*peers: Peer, levels: tuple[str, ...]) -> AsyncIterator[tuple[HdfsClient, pb.LocatedBlock]]:
    """Yield a client, and a closed block with a replica on each datanode.  Every IPC port responds."""
    async with datanodes(len(BLOCK), *[0] * len(peers)) as (client, located), contextlib.AsyncExitStack() as stack:
        client.settings = replace(client.settings, read_timeout_s=5.0, setup_timeout_s=5.0)
        client.transfer = TransferSecurity(levels)
        located.token.CopyFrom(TOKEN)
        for peer, node in zip(peers, located.nodes, strict=True):
            server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
            node.id.data_port = server.sockets[0].getsockname()[1]
            stack.push_async_callback(ended, peer)
            stack.callback(server.close)
        try:
            yield client, located
        finally:
            client.data_connections.close()


async def ended(peer: Peer) -> None:
    if isinstance(peer, ProtectedNode):
        await asyncio.wait_for(asyncio.gather(*peer.tasks, return_exceptions=True), 10)
        return
    for writer in peer.writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


# ---- reads


@foreign
@pytest.mark.parametrize("read", [read_block, read_block_by_thread])
async def test_a_read_goes_on_to_the_next_replica(read: Read, make: Callable[[], SecureNode]) -> None:
    first, second = make(), ProtectedNode("integrity")
    async with cluster(first, second, levels=("auth-int", "auth-conf")) as (client, located):
        assert await read(client, located, 0, len(BLOCK), is_open=False) == BLOCK
        assert client.suspected() == {node_name(located.nodes[0].id)}, "later reads begin at the other one"
        assert first.operations == []


@pytest.mark.parametrize("read", [read_block, read_block_by_thread])
@pytest.mark.parametrize(
    ("others", "error"),
    [
        ([of_another_level], Unsupported),
        ([lambda: SecureNode(refuses_at=0, refusal=REFUSAL)], StorageUnavailable),
        ([lambda: SecureNode(refuses_at=0)], StorageUnavailable),
    ],
    ids=["all demand it", "another refuses", "another is lost"],
)
async def test_a_block_cannot_be_read_only_if_all_replicas_demand_another_protection(
    read: Read, others: Sequence[Callable[[], SecureNode]], error: type[StorageError]
) -> None:
    async with cluster(of_another_level(), *(make() for make in others), levels=("auth-int",)) as (client, located):
        with pytest.raises(error, match=r"demands dfs\.data\.transfer\.protection=privacy") as caught:
            await read(client, located, 0, 100, is_open=False)
        assert type(caught.value) is error
        assert client.suspected() == set(), "no datanode has let this client in: the fault may be here"


# ---- fences


@pytest.fixture
def foreign_hdfs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a maker of an HDFS of three datanodes; connections to the given ones are real."""

    def make(foreign_ports: dict[int, int]) -> Any:
        hdfs: Any = test_fencing.Hdfs([test_fencing.Node() for _ in range(3)])
        transfer = TransferSecurity(("auth",))
        hdfs.datanodes.host = lambda _: "127.0.0.1"

        def pipeline(*, members: list[pb.NodeId], **others: Any) -> Any:
            if members[0].data_port not in foreign_ports:
                return hdfs.pipeline(members=members, **others)
            pipe = Pipeline(members=members, **others)
            open_at = pipe.open

            async def open_there(host: str, port: int, *rest: Any) -> pb.BlockOpResponse:
                return await open_at(host, foreign_ports[port], *rest)

            setattr(pipe, "open", open_there)  # noqa: B010
            return pipe

        async def handshakes(node: pb.NodeId, _: pb.Token) -> Callable[[], Handshake | None]:
            name = node_name(node)
            return lambda: transfer.handshake(name, 1 << 15, TOKEN) if node.data_port in foreign_ports else None

        async def file_info(_: str) -> SimpleNamespace:
            return SimpleNamespace(length=test_fencing.LENGTH)

        async def recover_lease(*_: object) -> bool:
            hdfs.lease_is_recovered = True
            return True

        hdfs.handshakes = handshakes
        hdfs.recover_lease = recover_lease
        hdfs.file_info = file_info
        hdfs.lease_is_recovered = False
        hdfs.clock = SimpleWatch()
        monkeypatch.setattr(writer_stop, "Pipeline", pipeline)
        monkeypatch.setattr(writer_stop, "read_replica", hdfs.read)
        return hdfs

    return make


class SimpleWatch:
    def remove(self, _: object) -> None:
        """Do nothing."""


@foreign
async def test_a_fence_does_without_a_datanode_that_lets_nobody_in(
    make: Callable[[], SecureNode], foreign_hdfs: Callable[..., Any]
) -> None:
    peer = make()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    hdfs = foreign_hdfs({2: server.sockets[0].getsockname()[1]})
    try:
        assert await fencing.fence(hdfs, (), "old holder", 9) == (test_fencing.LENGTH, True)
    finally:
        server.close()
        await ended(peer)
    assert not hdfs.lease_is_recovered
    assert hdfs.copies == 2
    assert hdfs.generation == 2, "the datanode has got no generation stamp: the others need no later one"
    assert hdfs.suspects == set()
    assert peer.operations == []


@pytest.mark.parametrize("other", ["closed", "dead"])
async def test_a_fence_leaves_no_single_copy_while_another_datanode_has_one(
    other: str, foreign_hdfs: Callable[..., Any]
) -> None:
    """Let one of three datanodes in: HDFS's own recovery needs no datanode of this client, and keeps all copies."""
    peer = of_another_level()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hdfs = foreign_hdfs({2: port, 3: port} if other == "closed" else {2: port})
    hdfs.nodes[3].is_dead = other == "dead"
    try:
        assert await fencing.fence(hdfs, (), "old holder", 9) == (test_fencing.LENGTH, True)
    finally:
        server.close()
        await ended(peer)
    assert hdfs.lease_is_recovered
    assert hdfs.final is None, "the other replica is as good as before"
    assert all(pipe.is_aborted for pipe in hdfs.pipes if not pipe._node.is_dead)


# ---- new blocks


async def open_file(client: HdfsClient, located: pb.LocatedBlock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Open a file of three copies, all of them demanded; return the numbers of its datanodes."""
    hdfs = PlayedHdfs(client, located.nodes, located.block)
    given = hdfs.add_block

    async def add_block(*arguments: Any) -> pb.LocatedBlock:
        block = await given(*arguments)
        block.token.CopyFrom(TOKEN)
        if not block.nodes:
            hdfs.blocks_held -= 1
            raise OutOfSpace("addBlock /f: could only be written to 0 of the 1 minReplication nodes")
        return block

    monkeypatch.setattr(client.namenode, "add_block", add_block)
    opened: list[Pipeline] = []

    def appender(_: HdfsClient, pipeline: Pipeline, **__: object) -> Pipeline:
        opened.append(pipeline)
        return pipeline

    monkeypatch.setattr(block_allocation, "HdfsAppender", appender)
    try:
        return await hdfs.open()
    finally:
        for pipeline in opened:
            pipeline.abort()
        assert hdfs.blocks_held == len(opened), "all others are given back"


@foreign
async def test_a_new_file_does_without_a_datanode_that_lets_nobody_in(
    make: Callable[[], SecureNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open a file with fewer copies than demanded, as if the datanode were dead: the datanode is not full."""
    peers = [make(), SecureNode(status=STATUS_SUCCESS), SecureNode(status=STATUS_SUCCESS)]
    async with cluster(*peers, levels=("auth",)) as (client, located):
        assert await open_file(client, located, monkeypatch) == [1, 2]
        assert client.suspected() == {node_name(located.nodes[0].id)}
        assert [peer.operations for peer in peers] == [[], [OP_WRITE_BLOCK], []]


@pytest.mark.parametrize(
    ("third", "error"),
    [(of_another_level, Unsupported), (lambda: SecureNode(refuses_at=0, refusal=REFUSAL), StorageUnavailable)],
)
async def test_a_file_cannot_be_made_only_if_all_datanodes_demand_another_protection(
    third: Callable[[], SecureNode], error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = [of_another_level(), of_another_level(), third()]
    async with cluster(*peers, levels=("auth",)) as (client, located):
        with pytest.raises(error) as caught:
            await open_file(client, located, monkeypatch)
        assert type(caught.value) is error
        assert client.suspected() == set(), "no datanode has let this client in: the fault may be here"


# ---- a NameNode that demands no encryption any more, against the configuration


def closing() -> SecureNode:
    return SecureNode(refuses_at=0)


def encrypting() -> ProtectedNode:
    return ProtectedNode("aes", password=password_of(KEY))


async def denied(key: Key | None) -> TransferEncryption:
    """Return a demand that the NameNode denied a moment ago; ``key`` is the key in the client's hands."""
    now_s, is_encrypted = 0.0, True

    async def ask() -> bool:
        return is_encrypted

    async def ask_key() -> Key | None:
        return key if is_encrypted else None

    encryption = TransferEncryption(ask, ask_key, monotonic_s=lambda: now_s)
    await encryption.begin(DENIED)
    assert encryption.keys is not None
    if key is not None:
        await encryption.keys.current()
    is_encrypted, now_s = False, PAUSE_S
    return encryption


@pytest.mark.parametrize("read", [read_block, read_block_by_thread])
async def test_a_denied_demand_leaves_a_read_its_other_replicas(read: Read) -> None:
    async with cluster(closing(), encrypting(), levels=()) as (client, located):
        client.encryption = await denied(KEY)
        assert await read(client, located, 0, len(BLOCK), is_open=False) == BLOCK
        assert client.encryption.refusal == DENIED, "the NameNode was asked"
        assert client.encryption.keys is not None


@pytest.mark.parametrize("key", [KEY, None], ids=["good key", "no key"])
@pytest.mark.parametrize("read", [read_block, read_block_by_thread])
async def test_a_read_that_fails_under_a_denied_demand_names_it(read: Read, key: Key | None) -> None:
    peers = [closing(), closing()]
    async with cluster(*peers, levels=()) as (client, located):
        client.encryption = await denied(key)
        with pytest.raises(StorageUnavailable, match=DENIED):
            await read(client, located, 0, 100, is_open=False)
        assert bool(peers[0].writers) is bool(key), "nothing is sent without a key"


async def test_a_denied_demand_leaves_a_new_file_its_other_datanodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(closing(), encrypting(), encrypting(), encrypting(), levels=()) as (client, located):
        client.encryption = await denied(KEY)
        assert await open_file(client, located, monkeypatch) == [1, 2, 3]
        assert client.suspected() == {node_name(located.nodes[0].id)}


@pytest.mark.parametrize("count", [1, 3, 12])
async def test_a_file_that_cannot_be_made_under_a_denied_demand_is_no_lack_of_space(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have datanodes close encrypted connections, as full datanodes do."""
    async with cluster(*(closing() for _ in range(count)), levels=()) as (client, located):
        client.encryption = await denied(KEY)
        with pytest.raises(StorageUnavailable, match=DENIED):
            await open_file(client, located, monkeypatch)


async def test_a_denied_demand_leaves_a_fence_its_other_datanodes(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs: Any = test_fencing.Hdfs([test_fencing.DEAD, test_fencing.Node(), test_fencing.Node()])
    hdfs.encryption = await denied(KEY)
    monkeypatch.setattr(writer_stop, "Pipeline", hdfs.pipeline)
    monkeypatch.setattr(writer_stop, "read_replica", hdfs.read)
    assert await fencing.fence(hdfs, (), "old holder", 9) == (test_fencing.LENGTH, True)
    assert hdfs.encryption.refusal == DENIED, "the NameNode was asked"
    assert not hdfs.lease_is_recovered
    assert hdfs.copies == 2


# ---- a silent NameNode


@pytest.mark.parametrize("read", [read_block, read_block_by_thread])
async def test_a_namenode_without_a_key_makes_no_datanode_suspect(read: Read) -> None:
    """Ask a silent NameNode for the data encryption key: no datanode is contacted."""
    peers = [ProtectedNode("aes"), ProtectedNode("aes")]
    async with cluster(*peers, levels=("auth-conf",)) as (client, located):
        client.settings = replace(client.settings, read_timeout_s=0.1)
        client.encryption.keys, is_asked = silent_keys()
        reading = asyncio.create_task(read(client, located, 0, 100, is_open=False))
        await is_asked.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await reading
        assert client.suspected() == set()
        assert [peer.connections for peer in peers] == [0, 0]


@pytest.mark.parametrize("has_key_at_first", [False, True])
async def test_a_fence_waits_for_the_namenodes_key_and_loses_no_round(
    has_key_at_first: bool, foreign_hdfs: Callable[..., Any]
) -> None:
    """The datanodes refuse a key that the client has at first, and another is needed."""
    hdfs = foreign_hdfs({})
    hdfs.settings = replace(hdfs.settings, takeover_node_timeout_s=0.05, takeover_copies_timeout_s=0.1)
    keys, is_asked = silent_keys()
    shake = hdfs.handshakes

    async def have_key() -> None:
        if not has_key_at_first:
            await keys.current()

    async def handshakes(node: pb.NodeId, token: pb.Token) -> Any:
        await keys.current()
        return await shake(node, token)

    hdfs.have_key, hdfs.handshakes = have_key, handshakes
    fence = asyncio.create_task(fencing.fence(hdfs, (), "old holder", 9))
    await is_asked.wait()
    await asyncio.wait([fence], timeout=1.0)
    assert not fence.done()
    assert hdfs.suspects == set()
    is_asked.clear()
    keys._ask = ready
    await keys.close()
    assert await fence == (test_fencing.LENGTH, True)
    assert not hdfs.lease_is_recovered
    assert hdfs.copies == 3


def silent_keys() -> tuple[EncryptionKeys, asyncio.Event]:
    """Return keys of a NameNode that never responds, and the event of the question."""
    is_asked = asyncio.Event()

    async def ask() -> Key | None:
        is_asked.set()
        never: asyncio.Future[Key] = asyncio.get_running_loop().create_future()
        return await never

    return EncryptionKeys(ask), is_asked


async def ready() -> Key:
    return KEY
