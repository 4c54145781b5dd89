"""The number of copies that a fence leaves, and whether HDFS can add the missing ones. NameNode and datanodes are
played.

A datanode refuses a copy of a block whose replica it has open with the same generation stamp or a later one
(FsDatasetImpl.createTemporary), and the NameNode tries again only after
dfs.namenode.reconstruction.pending.timeout-sec, five minutes. So an open replica that a fence leaves behind must be of
an earlier generation than the closed ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs import fencing, writer_stop
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_reader import NotLetIn
from bmq.storage.hdfs.data_transfer import STATUS_SUCCESS
from bmq.storage.hdfs.datanode import LoginRefused, NodeUnreachable, ReplicaFailed
from bmq.storage.hdfs.handshake import TokenRefused
from bmq.storage.hdfs.pipeline import HandshakeRefused, SetupTimedOut
from bmq.storage.hdfs.settings import HdfsSettings
from tests.harness.waiting import now
from tests.unit.storage.hdfs.fakes import unencrypted

NEVER = 1e6
SOON_S = HdfsSettings().takeover_node_timeout_s
LATE_S = 1.5
LENGTH = 1000


@dataclass
class Node:
    """One datanode with a replica of the block. It carries out a request at once, and responds later."""

    stop_s: float = 0.0
    """Seconds until it answers that the old writer is stopped."""
    close_s: float = 0.0
    """Seconds until it answers that the replica is closed."""
    is_dead: bool = False
    is_unreadable: bool = False
    is_shut: bool = False
    """True if it lets nobody in, as in a rolling change of the protection."""
    length: int = LENGTH
    generation: int = 1
    is_closed: bool = False


ON_TIME = Node()
DEAD = Node(is_dead=True)


class Hdfs:
    """Datanodes by their data port, and one file with one block on all of them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = dict(enumerate(nodes, 1))
        self.generation = 1
        self.final: pb.Block | None = None
        self.members: list[int] = []
        self.settings = HdfsSettings()
        self.holder = "heir"
        self.suspects: set[str] = set()
        self.pipes: list[Pipe] = []
        self.lease_is_recovered = False
        self.clock = self.cipher_threads = None
        self.encryption = unencrypted()
        self.namenode = self
        self.datanodes = SimpleNamespace(host=lambda _: "", visible_length=self.visible_length)

    # ---- HdfsClient

    async def handshakes(self, node: pb.NodeId, token: pb.Token) -> Callable[[], None]:
        """Return a maker of nothing: these datanodes expect no handshake.  The token must be the one for writing."""
        assert token == WRITE, "the token of getBlockLocations does not allow to write"
        return lambda: None

    async def have_key(self) -> None:
        """Do nothing: no key is needed."""

    def suspect(self, names: Sequence[str]) -> None:
        self.suspects |= set(names)

    def suspected(self) -> set[str]:
        return set(self.suspects)

    async def complete(self, path: str, holder: str, file_id: int, block: pb.Block) -> bool:
        assert any(node.is_closed for node in self.nodes.values()), "no datanode has reported the block"
        return True

    # ---- the NameNode

    async def block_locations(self, path: str) -> pb.LocatedBlocks:
        block = pb.Block(pool="pool", id=7, generation=1, length=0)
        last = pb.LocatedBlock(block=block, offset=0, corrupt=False, token=READ)
        last.nodes.extend(pb.Node(id=_id(port)) for port in self.nodes)
        last.storage_types.extend([0] * len(self.nodes))
        last.storage_ids.extend(f"storage-{port}" for port in self.nodes)
        return pb.LocatedBlocks(file_length=0, under_construction=True, last_block=last, last_block_complete=False)

    async def update_block_for_pipeline(self, block: pb.Block, holder: str) -> pb.LocatedBlock:
        self.generation += 1
        fresh = pb.LocatedBlock(block=block, offset=0, corrupt=False, token=WRITE)
        fresh.block.generation = self.generation
        return fresh

    async def update_pipeline(
        self, holder: str, old: pb.Block, new: pb.Block, nodes: Sequence[pb.NodeId], storage_ids: Sequence[str]
    ) -> None:
        self.final, self.members = new, [node.data_port for node in nodes]

    async def file_info(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(length=LENGTH)

    async def recover_lease(self, path: str, holder: str) -> bool:
        self.lease_is_recovered = True
        return True

    # ---- the datanodes

    async def visible_length(self, node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
        assert token == READ, "a datanode shows the length to readers only"
        if self.nodes[node.data_port].is_dead:
            raise NodeUnreachable("connection refused")
        return self.nodes[node.data_port].length

    async def read(self, client: Any, node: pb.NodeId, block: pb.Block, token: object, start: int, size: int) -> Any:
        assert token == READ, "the token of updateBlockForPipeline does not allow to read"
        if self.nodes[node.data_port].is_unreadable:
            raise ReplicaFailed("bad checksum")
        return SimpleNamespace(data=bytes(size), chunk_bytes=512)

    def pipeline(self, *, members: list[pb.NodeId], chunk_bytes: int, **_: object) -> Pipe:
        self.pipes.append(Pipe(self, self.nodes[members[0].data_port], chunk_bytes))
        return self.pipes[-1]

    # ---- what is left

    @property
    def copies(self) -> int:
        """The number of copies that the NameNode counts."""
        assert self.final is not None
        closed = [port for port, node in self.nodes.items() if node.is_closed]
        assert all(self.nodes[port].generation == self.final.generation for port in closed)
        assert all(self.nodes[port].length == self.final.length for port in closed)
        assert set(closed) <= set(self.members)
        return len(closed)

    @property
    def refusing(self) -> list[int]:
        """Living datanodes that take no copy of the closed block."""
        assert self.final is not None
        return [
            port
            for port, node in self.nodes.items()
            if not node.is_dead and not node.is_closed and node.generation >= self.final.generation
        ]


READ = pb.Token(identifier=b"may read", password=b"", kind="", service="")
WRITE = pb.Token(identifier=b"may write", password=b"", kind="", service="")


def _id(port: int) -> pb.NodeId:
    return pb.NodeId(ip="dn", host="dn", uuid=str(port), data_port=port, info_port=1, ipc_port=1)


class Pipe:
    """``pipeline.Pipeline`` to one datanode."""

    def __init__(self, hdfs: Hdfs, node: Node, chunk_bytes: int) -> None:
        self._hdfs = hdfs
        self._node = node
        self._written = 0
        self.chunk_bytes = chunk_bytes
        self.is_aborted = False

    async def open(
        self, host: str, port: int, request: bytes, timeout_s: float, handshake: object, cipher_threads: object
    ) -> pb.BlockOpResponse:
        if self._node.is_dead:
            raise PipelineFailed("connection refused")
        if self._node.is_shut:
            raise HandshakeRefused("it demands privacy")
        self._node.generation = self._hdfs.generation
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self._node.stop_s)
        except TimeoutError:
            self.abort()
            raise SetupTimedOut("no answer") from None
        except asyncio.CancelledError:
            self.abort()
            raise
        return pb.BlockOpResponse(status=STATUS_SUCCESS)

    def start_at(self, length: int) -> None:
        self._written = length

    def write(self, data: bytes) -> None:
        self._written += len(data)

    async def flush(self, *, sync: bool) -> int:
        self._node.length = self._written
        return self._written

    async def finish(self) -> None:
        await asyncio.sleep(self._node.close_s)
        self._node.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


async def fence(
    monkeypatch: pytest.MonkeyPatch, *nodes: Node, sync: bool = False, suspects: Sequence[str] = ()
) -> tuple[Hdfs, float]:
    """Fence a file whose block is on copies of these; return what is left, and the seconds that it took."""
    hdfs = Hdfs([Node(**vars(node)) for node in nodes])
    hdfs.suspect(suspects)
    monkeypatch.setattr(writer_stop, "Pipeline", hdfs.pipeline)
    monkeypatch.setattr(writer_stop, "read_replica", hdfs.read)
    client: Any = hdfs
    began = now()
    assert await fencing.fence(client, (), "old holder", 9, sync=sync) == (LENGTH, True)
    return hdfs, now() - began


async def test_three_datanodes_that_answer_have_three_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, took_s = await fence(monkeypatch, ON_TIME, ON_TIME, ON_TIME)
    assert (hdfs.copies, hdfs.refusing, hdfs.generation) == (3, [], 2)
    assert took_s < SOON_S


@pytest.mark.parametrize("dead", [1, 2])
async def test_dead_datanodes_are_not_waited_for(dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, took_s = await fence(monkeypatch, *[DEAD] * dead, *[ON_TIME] * (3 - dead))
    assert (hdfs.copies, hdfs.refusing, hdfs.generation) == (3 - dead, [], 2), "they need no later generation"
    assert took_s < SOON_S


@pytest.mark.parametrize("sync", [False, True])
async def test_a_silent_datanode_takes_a_copy_again_when_it_comes_back(
    sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The datanode carries out the pending request as soon as it runs again: the generation that it takes is not the
    closed replicas'."""
    hdfs, took_s = await fence(monkeypatch, ON_TIME, Node(stop_s=NEVER), ON_TIME, sync=sync)
    assert (hdfs.copies, hdfs.refusing) == (2, [])
    assert SOON_S <= took_s < 2 * SOON_S, "two copies are enough to go on"
    assert hdfs.suspects == {"dn:2"}


async def test_a_silent_datanode_that_was_silent_before_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, took_s = await fence(monkeypatch, ON_TIME, Node(stop_s=NEVER), ON_TIME, suspects=["dn:2"])
    assert (hdfs.copies, hdfs.refusing) == (2, [])
    assert took_s < SOON_S


async def test_a_datanode_that_was_silent_before_and_responds_like_the_others_keeps_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hdfs, _ = await fence(monkeypatch, ON_TIME, Node(stop_s=0.04), ON_TIME, suspects=["dn:2"])
    assert (hdfs.copies, hdfs.generation) == (3, 2)


async def test_an_unreadable_replica_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a writer between data and checksum: the unreadable replica stays open and is left out."""
    hdfs, _ = await fence(monkeypatch, ON_TIME, Node(is_unreadable=True), ON_TIME)
    assert (hdfs.copies, hdfs.refusing) == (2, [])


async def test_a_token_that_ends_in_a_fence_costs_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the token while replicas are filled: the next round has another token, and both of them live."""
    refused: list[int] = []
    read = Hdfs.read

    async def read_once_refused(
        self: Hdfs, client: Any, node: Any, block: Any, token: object, start: int, size: int
    ) -> Any:
        if size == 10 and not refused:
            refused.append(start)
            raise TokenRefused("block token is expired")
        return await read(self, client, node, block, token, start, size)

    monkeypatch.setattr(Hdfs, "read", read_once_refused)
    hdfs, _ = await fence(monkeypatch, ON_TIME, Node(length=LENGTH - 10))
    assert refused == [LENGTH - 10]
    assert (hdfs.copies, hdfs.refusing) == (2, [])


async def test_a_replica_that_cannot_be_filled_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Pipe, *, sync: bool) -> int:
        raise PipelineFailed("connection reset")

    monkeypatch.setattr(Pipe, "flush", fails)
    hdfs, _ = await fence(monkeypatch, ON_TIME, Node(length=LENGTH - 10), ON_TIME)
    assert (hdfs.copies, hdfs.refusing) == (2, [])


@pytest.mark.parametrize(
    "nodes",
    [
        (ON_TIME, Node(stop_s=LATE_S), Node(stop_s=LATE_S)),
        (ON_TIME, Node(stop_s=LATE_S), DEAD),
        (ON_TIME, Node(stop_s=NEVER), Node(stop_s=LATE_S)),
        (Node(stop_s=LATE_S), Node(stop_s=LATE_S), Node(stop_s=LATE_S)),
        (ON_TIME, Node(stop_s=LATE_S)),
        (ON_TIME, Node(close_s=LATE_S), Node(close_s=LATE_S)),
        (ON_TIME, Node(close_s=LATE_S), DEAD),
    ],
)
async def test_a_single_copy_is_waited_for_no_longer_than_it_takes_to_have_two(
    nodes: tuple[Node, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datanodes, or this process, are busy for a moment: no reason to leave what was acknowledged on one disk."""
    hdfs, took_s = await fence(monkeypatch, *nodes)
    assert hdfs.copies >= 2
    assert hdfs.refusing == []
    assert took_s < 3 * LATE_S


@pytest.mark.parametrize("others", [(Node(stop_s=NEVER),) * 2, (Node(stop_s=NEVER), DEAD), (Node(close_s=NEVER),)])
async def test_one_copy_is_better_than_none(others: tuple[Node, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, took_s = await fence(monkeypatch, ON_TIME, *others)
    assert hdfs.copies == 1
    assert took_s < 2 * hdfs.settings.takeover_copies_timeout_s


async def test_a_file_with_one_replica_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs, took_s = await fence(monkeypatch, Node(stop_s=LATE_S))
    assert (hdfs.copies, hdfs.generation) == (1, 2), "not in another round"
    assert took_s < 2 * LATE_S


@pytest.mark.parametrize("node", [Node(stop_s=NEVER), Node(close_s=NEVER)])
async def test_a_fence_that_is_cancelled_leaves_no_connection_and_no_task(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs = Hdfs([Node(), node])
    monkeypatch.setattr(writer_stop, "Pipeline", hdfs.pipeline)
    monkeypatch.setattr(writer_stop, "read_replica", hdfs.read)

    client: Any = hdfs
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fencing.fence(client, (), "old holder", 9), SOON_S / 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert [pipe.is_aborted for pipe in hdfs.pipes] == [True, True]


# ---- acknowledged bytes are not left on one disk while other living datanodes have them

SHUT = Node(is_shut=True)


async def fence_again(
    monkeypatch: pytest.MonkeyPatch, hdfs: Hdfs, *, sync: bool = False
) -> tuple[fencing.FencedFile, Hdfs]:
    """Fence the file of ``hdfs``, whose parts a test has replaced."""
    monkeypatch.setattr(writer_stop, "Pipeline", hdfs.pipeline)
    monkeypatch.setattr(writer_stop, "read_replica", hdfs.read)
    client: Any = hdfs
    return await fencing.fence(client, (), "old holder", 9, sync=sync), hdfs


async def test_a_replica_that_cannot_be_filled_leaves_no_single_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the step behind the first check: the third copy is on a datanode that lets nobody in."""

    async def fails(self: Pipe, *, sync: bool) -> int:
        raise PipelineFailed("connection reset")

    monkeypatch.setattr(Pipe, "flush", fails)
    hdfs, _ = await fence(monkeypatch, ON_TIME, Node(length=LENGTH - 10), SHUT)
    assert hdfs.lease_is_recovered
    assert hdfs.final is None
    assert hdfs.generation == 1 + hdfs.settings.takeover_rounds, "a pass for a round"


async def test_a_replica_that_is_not_synced_leaves_no_single_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = Hdfs([Node(), Node(), Node(is_shut=True)])
    flush = Pipe.flush

    async def fails_once(self: Pipe, *, sync: bool) -> int:
        if self._node is hdfs.nodes[2]:
            raise PipelineFailed("no space left on device")
        return await flush(self, sync=sync)

    monkeypatch.setattr(Pipe, "flush", fails_once)
    fenced, _ = await fence_again(monkeypatch, hdfs, sync=True)
    assert hdfs.lease_is_recovered
    assert hdfs.final is None
    assert not fenced.is_synced


async def test_the_second_pass_knows_the_copies_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the token behind the stamp at one datanode: a second pass is due, and there another datanode dies."""
    hdfs = Hdfs([Node(), Node(), Node()])
    visible_length, update = hdfs.visible_length, hdfs.update_block_for_pipeline

    async def refused_at_third(node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
        if node.data_port == 3:
            raise TokenRefused("its key is not known")
        return await visible_length(node, block, token, timeout_s)

    async def second_dies(block: pb.Block, holder: str) -> pb.LocatedBlock:
        hdfs.nodes[2].is_dead = hdfs.generation == 2
        return await update(block, holder)

    monkeypatch.setattr(hdfs.datanodes, "visible_length", refused_at_third)
    monkeypatch.setattr(hdfs, "update_block_for_pipeline", second_dies)
    await fence_again(monkeypatch, hdfs)
    assert not hdfs.lease_is_recovered
    assert hdfs.members == [1, 2], "the second round: the datanode is back"
    assert hdfs.generation == 5, "two passes for each round"


@pytest.mark.parametrize("refusal", [LoginRefused("not allowed to call"), NotLetIn("another cipher")])
async def test_a_refused_log_in_behind_the_stop_leaves_no_single_copy(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the question for the length: the datanode lives, and has a copy of the acknowledged bytes."""
    hdfs = Hdfs([Node(), Node(), Node(is_dead=True)])
    visible_length = hdfs.visible_length

    async def refused_at_second(node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
        if node.data_port == 2:
            raise refusal
        return await visible_length(node, block, token, timeout_s)

    monkeypatch.setattr(hdfs.datanodes, "visible_length", refused_at_second)
    await fence_again(monkeypatch, hdfs)
    assert hdfs.lease_is_recovered
    assert hdfs.final is None


# ---- the longest replica cannot be read

SHORTER = LENGTH - 10


def fails_as_source(hdfs: Hdfs, *ports: int, dies: bool = False) -> Callable[..., Any]:
    """Return a read that fails at these datanodes, except for the end of the replica that a stop reads back."""
    read = hdfs.read

    async def fails(client: Any, node: pb.NodeId, block: pb.Block, token: object, start: int, size: int) -> Any:
        if node.data_port in ports and start + size == hdfs.nodes[node.data_port].length and start:
            hdfs.nodes[node.data_port].is_dead |= dies
            raise ReplicaFailed("bad checksum")
        return await read(client, node, block, token, start, size)

    return fails


@pytest.mark.parametrize("dies", [False, True])
async def test_a_longest_replica_that_cannot_be_read_is_left_out(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the shorter ones: they have all acknowledged bytes, since an acknowledgement needs every node."""
    hdfs = Hdfs([Node(), Node(length=SHORTER), Node(length=SHORTER)])
    monkeypatch.setattr(hdfs, "read", fails_as_source(hdfs, 1, dies=dies))
    fenced, _ = await fence_again(monkeypatch, hdfs)
    assert fenced == (SHORTER, True)
    assert hdfs.members == [2, 3]
    assert (hdfs.copies, hdfs.refusing) == (2, [])


async def test_another_replica_of_the_same_length_fills_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    hdfs = Hdfs([Node(), Node(length=SHORTER), Node()])
    monkeypatch.setattr(hdfs, "read", fails_as_source(hdfs, 1))
    fenced, _ = await fence_again(monkeypatch, hdfs)
    assert fenced == (LENGTH, True)
    assert hdfs.members == [2, 3]
    assert hdfs.copies == 2


async def test_bytes_that_the_namenode_knows_are_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store the whole length at the NameNode: it was acknowledged, and no shorter replica may become the file."""
    hdfs = Hdfs([Node(), Node(length=SHORTER), Node(length=SHORTER)])
    locations = hdfs.block_locations

    async def with_length(path: str) -> pb.LocatedBlocks:
        found = await locations(path)
        found.last_block.block.length = LENGTH
        return found

    monkeypatch.setattr(hdfs, "block_locations", with_length)
    monkeypatch.setattr(hdfs, "read", fails_as_source(hdfs, 1))
    await fence_again(monkeypatch, hdfs)
    assert hdfs.lease_is_recovered
    assert hdfs.final is None


@pytest.mark.parametrize("dies", [False, True])
async def test_a_longest_of_two_replicas_that_cannot_be_read_is_not_given_up_unless_it_is_dead(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave no single copy: recovery by HDFS cuts both replicas to the shorter one."""
    hdfs = Hdfs([Node(), Node(length=SHORTER)])
    monkeypatch.setattr(hdfs, "read", fails_as_source(hdfs, 1, dies=dies))
    await fence_again(monkeypatch, hdfs)
    assert hdfs.lease_is_recovered is not dies
    assert hdfs.members == ([2] if dies else [])
