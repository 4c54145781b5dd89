"""Datanodes that live and have no room: a segment keeps its copies while closing other files may help.  They are
played."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.storage.filesystem import Lease, OutOfSpace, PipelineFailed
from bmq.storage.hdfs import block_allocation
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.block_allocation import LeasedFile, open_new_block
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import SuspectNodes, node_name
from bmq.storage.hdfs.pipeline import SetupTimedOut
from bmq.storage.hdfs.refusing_nodes import FORGET_S, RefusingNodes
from tests.unit.storage.hdfs.test_open_block import datanodes

pytestmark = pytest.mark.loops("asyncio")

HOPE_S = 30.0


class PlayedHdfs:
    """A NameNode that gives up to three of its nodes, and datanodes that refuse: by number."""

    def __init__(self, client: HdfsClient, nodes: Sequence[pb.Node], block: pb.Block) -> None:
        self.names = [node_name(node.id) for node in nodes]
        self.full: set[int] = set()
        self.slow: set[int] = set()
        self.known_full: set[int] = set()
        """The NameNode has heard of these by a heartbeat, and does not give them."""
        self.blocks_held = 0
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

    async def open_pipeline(self, client: HdfsClient, setup: object, members: Sequence[Any], **_: object) -> Any:
        for member in members:
            number = self.names.index(member.name)
            if number in self.slow:
                raise SetupTimedOut("no answer in 5 s", suspects=(member.name,))
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


@asynccontextmanager
async def played_hdfs(monkeypatch: pytest.MonkeyPatch, *answers: int | None) -> AsyncIterator[PlayedHdfs]:
    """Yield HDFS with a datanode for each of ``answers``; None: it responds to no probe."""
    async with datanodes(0, *answers) as (client, located):
        hdfs = PlayedHdfs(client, located.nodes, located.block)
        monkeypatch.setattr(block_allocation, "open_pipeline", hdfs.open_pipeline)
        monkeypatch.setattr(block_allocation, "HdfsAppender", lambda client, pipeline, **_: pipeline)
        yield hdfs


async def test_a_segment_is_refused_and_not_opened_with_fewer_copies_while_nodes_are_merely_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.full = {2}
        with pytest.raises(OutOfSpace, match=f"2 of 3 datanodes take a block; {hdfs.names[2]} live"):
            await hdfs.open()
        assert hdfs.blocks_held == 0, "what was asked for is given back"
        assert await hdfs.open(all_copies=False) == [0, 1]
        hdfs.full = {1, 2}
        with pytest.raises(OutOfSpace):
            await hdfs.open()
        hdfs.full = set()
        assert await hdfs.open() == [0, 1, 2]


async def test_a_file_finds_its_copies_on_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0, 0, 0) as hdfs:
        hdfs.full = {0, 2}
        assert await hdfs.open() == [1, 3, 4]


async def test_nodes_that_the_namenode_knows_to_be_full_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.known_full = {2}
        assert await hdfs.open() == [0, 1], "a node that was never seen is none that could be asked"
        hdfs.known_full = set()
        assert await hdfs.open() == [0, 1, 2]
        hdfs.known_full = {2}
        with pytest.raises(OutOfSpace):
            await hdfs.open()


@pytest.mark.parametrize("is_given", [True, False])
async def test_where_fewer_nodes_live_files_have_fewer_copies(is_given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of three datanodes die: files get two copies, whether or not the NameNode still offers the dead node."""

    async with played_hdfs(monkeypatch, 0, 0, None) as hdfs:
        assert await hdfs.open() == [0, 1, 2]
        (hdfs.full if is_given else hdfs.known_full).add(2)
        assert await hdfs.open() == [0, 1]


async def test_a_slow_node_is_not_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.slow = {2}
        assert await hdfs.open() == [0, 1]


async def test_what_stays_full_however_many_files_are_closed_is_written_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something else has filled it.  When it takes a block again, it is waited for again."""

    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.full = {2}
        with pytest.raises(OutOfSpace):
            await hdfs.open()
        hdfs._client.refusing = RefusingNodes(hope_s=0.0)
        assert await hdfs.open() == [0, 1]


def test_hope_ends_and_begins_again() -> None:
    nodes = RefusingNodes(HOPE_S)
    assert nodes.refused({"b", "a"}, 0.0) == ["a", "b"]
    assert nodes.refused({"a"}, HOPE_S - 1) == ["a"]
    nodes.took({"b"})
    assert nodes.refused({"b", "a"}, HOPE_S) == ["b"], "a has refused for so long, b has just taken a block"
    assert nodes.refused({"a"}, HOPE_S + 1) == []
    nodes.took({"a"})
    assert nodes.refused({"a"}, HOPE_S + 2) == ["a"]
    assert nodes.refused({"a"}, 2 * HOPE_S + 2) == []
    assert nodes.refused({"a"}, 2 * HOPE_S + 3 + FORGET_S) == ["a"], "an old refusal is another matter"
    assert repr(nodes) == "<RefusingNodes ['a']>", "and is not kept"


def test_nodes_seen_last() -> None:
    nodes = SuspectNodes(1.0)
    seen = [pb.Node(id=pb.NodeId(ip="::1", host="dn", uuid=str(n), data_port=n)) for n in range(4)]
    nodes.learn(seen)
    nodes.learn(seen[:1])
    assert nodes.latest(2, besides={"::1:3"}) == [seen[0], seen[2]]
    nodes.forget({"::1:0"})
    assert nodes.latest(9, besides=set()) == [seen[3], seen[2], seen[1]]
