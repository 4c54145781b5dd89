"""The allocation of a block: nodes without room, slow and silent ones are told apart; copies are kept if possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bmq.storage.filesystem import Lease, OutOfSpace, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import block_allocation
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.block_allocation import Exclusions, LeasedFile, _drop_responding
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.datanode import NodeUnreachable, node_name
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.refusing_nodes import RefusingNodes
from bmq.storage.hdfs.settings import HdfsSettings
from tests.unit.storage.hdfs.fakes import datanodes, played_hdfs

pytestmark = pytest.mark.loops("asyncio")


@pytest.mark.parametrize(
    ("failure", "silent", "error"),
    [
        (PipelineFailed("connection lost", ["a"]), [], OutOfSpace),  # how a datanode without room says so
        (PipelineFailed("connection lost", ["a"]), ["a"], StorageUnavailable),
        (SetupTimedOut("no answer in 5 s", ["a"]), [], StorageUnavailable),  # alive and slow: no want of room
        (SetupTimedOut("no answer in 5 s", ["a"]), ["a"], StorageUnavailable),
    ],
)
async def test_a_pipeline_that_does_not_open_is_no_room_only_if_its_datanodes_respond_in_time(
    failure: PipelineFailed, silent: list[str], error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def located(*_: Any) -> pb.LocatedBlock:
        return pb.LocatedBlock()

    async def fails(*_: Any, **__: Any) -> Pipeline:
        raise failure

    async def nothing(*_: Any) -> None: ...

    async def asked(*_: Any) -> list[str]:
        return silent

    monkeypatch.setattr(block_allocation, "_add_block", located)
    monkeypatch.setattr(block_allocation, "_abandon", nothing)
    monkeypatch.setattr(block_allocation, "_create_setup", lambda *_: None)
    monkeypatch.setattr(block_allocation, "open_pipeline", fails)
    client = HdfsClient.build((("127.0.0.1", 1),), "h", HdfsSettings(), SimpleAuthenticator("alice"))
    monkeypatch.setattr(client.datanodes, "silent", asked)
    file = LeasedFile(
        path="/f",
        lease=Lease(paths=("/f",), holder="h", file_id=1),
        block_bytes=128 << 20,
        replication=3,
        chunk_bytes=512,
        all_copies=False,
    )
    with pytest.raises(error) as caught:
        await block_allocation.open_new_block(client, file, base=0, advised=set())
    assert type(caught.value) is error
    await client.close()


@pytest.mark.slow
async def test_exclusions_that_cost_a_replica_are_dropped_except_of_silent_nodes() -> None:
    """A pipeline through a silent node would not open: fewer replicas are better."""

    async with datanodes(0, 0, None, 0, None) as (client, located):
        client.suspects.learn(located.nodes)
        names = [node_name(node.id) for node in located.nodes]
        client.suspect(names[2:])
        exclusions = Exclusions(advised=set(names[:2]), suspected=set(names[2:]))
        assert await _drop_responding(client, exclusions)
        assert (exclusions.advised, exclusions.suspected) == ({names[1]}, {names[3]})
        assert client.suspected() == {names[3]}
        assert not await _drop_responding(client, exclusions), "nothing more to drop: taken as it is"


def _cut(client: HdfsClient, cut: set[str]) -> Callable[[], int]:
    """Let no probe reach the nodes in ``cut``.  Returns a function that gives the number of probes so far."""
    visible_length, asked = client.datanodes.visible_length, 0

    async def ask(node: Any, *arguments: Any) -> int:
        nonlocal asked
        asked += 1
        if node_name(node) in cut:
            raise NodeUnreachable(f"{node_name(node)}: cut off")
        return await visible_length(node, *arguments)

    client.datanodes.visible_length = ask  # type: ignore[method-assign, assignment]
    return lambda: asked


@pytest.mark.parametrize("all_copies", [True, False])
async def test_a_file_opened_right_after_a_cut_has_all_its_copies(
    all_copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four nodes were found silent a moment ago: it was this process that was cut off.  The fourth had just
    been started, and was never suspected: it alone would have the file."""

    async with played_hdfs(monkeypatch, 0, 0, 0, 0) as hdfs:
        client, cut = hdfs._client, set(hdfs.names[:3])
        client.suspects.learn(hdfs._nodes)
        _cut(client, cut)
        nodes = [node.id for node in hdfs._nodes]
        assert await client.datanodes.silent(nodes) == hdfs.names[:3]
        client.suspect(hdfs.names[:3])
        assert await hdfs.open(all_copies=all_copies) == [3], "as long as they are silent"
        cut.clear()
        assert await hdfs.open(all_copies=all_copies) == [0, 1, 2]
        assert hdfs.blocks_held == 2, "what was asked for in vain is given back"


async def test_a_dead_node_is_not_probed_again_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        client = hdfs._client
        client.suspects.learn(hdfs._nodes)
        asked = _cut(client, {hdfs.names[0]})
        client.suspect(hdfs.names[:1])
        for _ in range(4):
            assert await hdfs.open() == [1, 2]
        assert asked() == 1


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


async def test_nodes_that_the_namenode_knows_to_be_full_count_as_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.known_full = {2}
        assert await hdfs.open() == [0, 1], "a node that was never seen is none that could be asked"
        hdfs.known_full = set()
        assert await hdfs.open() == [0, 1, 2]
        hdfs.known_full = {2}
        with pytest.raises(OutOfSpace):
            await hdfs.open()


@pytest.mark.slow
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


async def test_a_node_that_stays_full_is_left_out_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something else has filled it.  When it takes a block again, it is waited for again."""

    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.full = {2}
        with pytest.raises(OutOfSpace):
            await hdfs.open()
        hdfs._client.refusing = RefusingNodes(hope_s=0.0)
        assert await hdfs.open() == [0, 1]


@pytest.mark.parametrize(
    ("refused", "nodes"),
    [
        ({0: 1}, [0, 1, 2]),  # with another token the same datanodes will do
        ({0: 9}, [1, 2, 3]),  # it does not have the NameNode's keys
        ({0: 1, 1: 1}, [0, 2, 3]),
    ],
)
async def test_a_datanode_that_does_not_take_a_token_is_not_suspect(
    refused: dict[int, int], nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0, 0) as hdfs:
        hdfs.tokens_refused = refused
        assert await hdfs.open() == nodes
        assert hdfs._client.suspected() == set()
        assert hdfs.blocks_held == 1


async def test_tokens_that_nobody_takes_are_no_lack_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0, 0) as hdfs:
        hdfs.tokens_refused = dict.fromkeys(range(4), 9)
        with pytest.raises(StorageUnavailable, match="another token is needed"):
            await hdfs.open(all_copies=False)
        assert hdfs._client.suspected() == set()
        assert hdfs.blocks_held == 0


# ---- the last block of a closed file, opened again


@pytest.mark.parametrize(
    ("replicas", "full", "shut", "nodes"),
    [
        (3, set(), set(), [0, 1, 2]),
        (3, set(), {0}, [1, 2]),
        (3, {0, 2}, set(), [1]),  # as a fence does, without datanodes whose replicas may be bad
        (2, {1}, set(), [0]),
        (1, set(), set(), [0]),
    ],
)
async def test_an_append_does_without_datanodes_that_are_in_the_way(
    replicas: int, full: set[int], shut: set[int], nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with played_hdfs(monkeypatch, *[0] * replicas) as hdfs:
        hdfs.full, hdfs.shut = full, shut
        assert await hdfs.append(replicas) == nodes
        assert hdfs.updated == nodes
        assert hdfs.fences == 0


@pytest.mark.parametrize(
    ("replicas", "full", "shut"), [(3, set(), {0, 1}), (3, {2}, {0}), (2, set(), {0}), (2, set(), {0, 1})]
)
async def test_an_append_leaves_no_single_copy_while_a_datanode_that_lets_nobody_in_has_one(
    replicas: int, full: set[int], shut: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the append: ``updatePipeline`` would make the NameNode delete the copies of the other datanodes."""
    async with played_hdfs(monkeypatch, *[0] * replicas) as hdfs:
        hdfs.full, hdfs.shut = full, shut
        with pytest.raises(StorageUnavailable, match=rf"of {replicas} replicas, and {hdfs.names[0]}.* live"):
            await hdfs.append(replicas)
        assert hdfs.updated is None
        assert hdfs.fences == 1, "the file is closed again"


async def test_an_append_whose_token_a_datanode_keeps_refusing_leaves_no_single_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with played_hdfs(monkeypatch, 0, 0) as hdfs:
        hdfs.tokens_refused = {0: 1}
        assert await hdfs.append(2) == [0, 1], "with another token the same datanodes will do"
        hdfs.tokens_refused, hdfs.updated = {0: 9}, None
        with pytest.raises(StorageUnavailable, match=f"1 of 2 replicas, and {hdfs.names[0]} live"):
            await hdfs.append(2)
        assert hdfs.updated is None


async def test_an_append_that_demands_all_copies_is_refused_while_datanodes_are_merely_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with played_hdfs(monkeypatch, 0, 0, 0) as hdfs:
        hdfs.full = {2}
        with pytest.raises(OutOfSpace, match=f"2 of 3 datanodes take a block; {hdfs.names[2]} live"):
            await hdfs.append(3, all_copies=True)
        assert hdfs.updated is None
        hdfs._client.refusing = RefusingNodes(hope_s=0.0)
        assert await hdfs.append(3, all_copies=True) == [0, 1], "it stays full"


@pytest.mark.slow
async def test_an_append_that_demands_all_copies_does_without_dead_datanodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with played_hdfs(monkeypatch, 0, 0, None) as hdfs:
        hdfs.full = {2}
        assert await hdfs.append(3, all_copies=True) == [0, 1]
