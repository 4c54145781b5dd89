"""cluster.json and topic-<revision>.json: written once and whole, the highest revision wins."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.storage.cluster_files import (
    ClusterFile,
    StoredTopics,
    WrongCluster,
    check_cluster,
    raise_rebuild_count,
    read_cluster,
    read_topic,
)
from bmq.storage.filesystem import FileSystem, write_once
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

ID = uuid.UUID(int=1)
Connect = Callable[[str], FileSystem]

pytestmark = pytest.mark.loops("asyncio")


@pytest.fixture(params=["memory", "local"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Return a function that opens the root for a process, by its holder."""
    storage = MemoryStorage()
    if request.param == "memory":
        return lambda holder: MemoryFileSystem(storage, holder)
    return lambda holder: LocalFileSystem(tmp_path, holder)


@asynccontextmanager
async def root_clients(root: Connect) -> AsyncIterator[Connect]:
    """Yield ``root``; the clients that it opens are closed at the end."""
    async with AsyncExitStack() as stack:

        def connect(holder: str) -> FileSystem:
            client = root(holder)
            stack.push_async_callback(client.close)
            return client

        yield connect


async def names(fs: FileSystem, path: str) -> list[str]:
    return [each.path.rpartition("/")[2] async for each in fs.list(path)]


async def test_a_root_becomes_the_first_clusters_and_refuses_others(root: Connect) -> None:
    async with root_clients(root) as connect:
        fs = connect("a")
        assert await read_cluster(fs) is None
        assert await check_cluster(fs, "one", rebuild_count=4) == ClusterFile(cluster_id="one", rebuild_count=4)
        assert await check_cluster(connect("b"), "one") == ClusterFile(cluster_id="one", rebuild_count=4)
        with pytest.raises(WrongCluster, match="--root and --meta") as caught:
            await check_cluster(fs, "two")
        assert "one" in str(caught.value)
        assert "two" in str(caught.value)
        assert await names(fs, "/") == ["cluster.json"]


async def test_of_several_clusters_at_once_one_wins(root: Connect) -> None:
    async with root_clients(root) as connect:
        clients = [connect(f"h{n}") for n in range(4)]
        outcomes = await asyncio.gather(
            *(check_cluster(fs, f"c{n}") for n, fs in enumerate(clients)), return_exceptions=True
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, ClusterFile)]
        assert len(winners) == 1
        assert all(isinstance(outcome, ClusterFile | WrongCluster) for outcome in outcomes)
        assert await read_cluster(clients[0]) == winners[0]


async def test_topics_written_after_a_rebuild_win_over_earlier_ones(root: Connect) -> None:
    """Raise the rebuild count: one file is replaced by one with a number higher by 1, and topics written under it win
    over all that were written before."""

    async with root_clients(root) as connect:
        fs = connect("a")
        first = await check_cluster(fs, "one")
        await StoredTopics(fs).write("t", 5000, ID, 2, {}, 3)
        risen = await raise_rebuild_count(fs, first)
        assert risen == ClusterFile(cluster_id="one", rebuild_count=1) == await read_cluster(connect("b"))
        assert sorted(await names(fs, "/")) == ["cluster.json", "topics"]
        topics = StoredTopics(fs, rebuild_count=risen.rebuild_count)
        assert await topics.highest("t") == 0
        stored = await read_topic(fs, "t")
        assert stored is not None
        assert (stored.revision, stored.replication_factor) == (5000, 3)
        await topics.write("t", 7, ID, 4, {})
        assert await topics.highest("t") == 7
        stored = await read_topic(fs, "t")
        assert stored is not None
        assert (stored.partitions, stored.replication_factor) == (4, None)
        await StoredTopics(fs).write("t", 6000, ID, 1, {})  # a slow process of before the rebuild
        stored = await read_topic(fs, "t")
        assert stored is not None
        assert stored.partitions == 4
        await topics.withdraw("t", 7)
        assert await read_topic(fs, "t") is None


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", b"{}", b'{"format":3,"cluster_id":"a","incarnation":0}', b'{"format":1}', b"[" * 100_000,
        b'{"format":1,"cluster_id":7,"incarnation":0}', b'{"format":1,"cluster_id":"a","incarnation":1.5}',
        b'{"format":1,"cluster_id":"a","incarnation":-1}', b'{"format":1,"cluster_id":"a","incarnation":16384}',
        b'{"format":1,"topic_id":"00000000-0000-0000-0000-000000000001","partitions":1.5,"configs":{}}',
        b'{"format":1,"topic_id":"00000000-0000-0000-0000-000000000001","partitions":100001,"configs":{}}',
    ],
)  # fmt: skip
async def test_a_file_of_another_format_is_refused(root: Connect, data: bytes) -> None:
    async with root_clients(root) as connect:
        fs = connect("a")
        await write_once(fs, "/cluster.json", data)
        with pytest.raises(FormatError):
            await check_cluster(fs, "one")
        await write_once(fs, "/topics/t/topic-3.json", data)
        with pytest.raises(FormatError):
            await read_topic(fs, "t")


async def test_the_highest_revision_wins_and_older_ones_are_deleted(root: Connect) -> None:
    async with root_clients(root) as connect:
        fs = connect("a")
        topics = StoredTopics(fs)
        assert await topics.highest("t") == 0
        assert await read_topic(fs, "t") is None
        await topics.write("t", 9, ID, 2, {"a": "1"})
        await topics.write("t", 10, ID, 3, {"a": "2"})
        await topics.write("t", 8, ID, 1, {})  # a slow process
        assert await topics.highest("t") == 10
        stored = await read_topic(fs, "t")
        assert stored is not None
        assert (stored.revision, stored.partitions, stored.configs, stored.topic_id) == (10, 3, {"a": "2"}, ID)
        await topics.write("t", 11, ID, 3, {})
        assert await names(fs, "/topics/t") == ["topic-11.json"]


async def test_writing_again_changes_nothing(root: Connect) -> None:
    async with root_clients(root) as connect:
        first, second = StoredTopics(connect("a")), StoredTopics(connect("b"))
        await asyncio.gather(*(topics.write("t", 9, ID, 2, {}) for topics in (first, second, first)))
        assert await names(connect("c"), "/topics/t") == ["topic-9.json"]


async def test_a_revision_has_one_content_in_every_root(root: Connect) -> None:
    """The process that creates the topic has its configs in the client's order, the store returns them by name."""

    async with root_clients(root) as connect:
        fs = connect("a")
        configs = {"segment.bytes": "1048576", "cleanup.policy": "compact"}
        contents = []
        for given in (configs, dict(sorted(configs.items()))):
            topics = StoredTopics(fs)
            await topics.write("t", 9, ID, 2, given, 3)
            contents.append(await fs.read("/topics/t/topic-9.json", 0, 10_000))
            await topics.withdraw("t", 9)
        assert contents[0] == contents[1]


async def test_a_torn_write_is_never_read_and_is_deleted_by_the_next_write(root: Connect) -> None:
    async with root_clients(root) as connect:
        fs = connect("a")
        torn = await fs.create("/topics/t/.topic-9.json-dead-1234")
        torn.write(b'{"for')
        await torn.flush()
        torn.abort()
        assert await read_topic(fs, "t") is None
        await StoredTopics(fs).write("t", 9, ID, 2, {})
        await StoredTopics(fs).write("t", 10, ID, 2, {})
        assert await names(fs, "/topics/t") == ["topic-10.json"]


@pytest.mark.slow
async def test_a_deleted_topics_files_are_removed_and_those_of_another_stay(root: Connect) -> None:
    async with root_clients(root) as connect:
        fs = connect("a")
        topics, other = StoredTopics(fs), uuid.UUID(int=2)
        for topic_id in (ID, other):
            for partition in range(5):
                await write_once(fs, f"/topics/t/{topic_id}/{partition}/x.log", b"x")
        await topics.write("t", 9, ID, 5, {})
        await topics.write("t", 12, other, 5, {})
        await topics.withdraw("t", 9)
        assert not await topics.remove_some("t", ID, 3)
        assert await names(fs, f"/topics/t/{ID}") == ["3", "4"]
        assert await topics.remove_some("t", ID, 3)
        assert await topics.remove_some("t", ID, 3), "it may be repeated"
        assert sorted(await names(fs, "/topics/t")) == sorted([str(other), "topic-12.json"])
        assert await names(fs, f"/topics/t/{other}") == ["0", "1", "2", "3", "4"]
        await topics.withdraw("t", 12)
        assert await topics.remove_some("t", other, 100)
        assert await names(fs, "/topics") == []


async def test_a_reader_that_misses_a_file_looks_once_more() -> None:
    """Rule 10: a newer file took its place between the listing and the read."""

    storage = MemoryStorage()
    fs = MemoryFileSystem(storage, "a")
    topics = StoredTopics(fs)
    await topics.write("t", 9, ID, 1, {})

    class Late(MemoryFileSystem):
        async def read(self, path: str, position: int, length: int) -> bytes:
            if path.endswith("topic-9.json"):
                await topics.write("t", 10, ID, 2, {})
            return await super().read(path, position, length)

    stored = await read_topic(Late(storage, "b"), "t")
    assert stored is not None
    assert stored.revision == 10


async def test_storages_failures_are_request_errors() -> None:
    storage = MemoryStorage()
    topics = StoredTopics(MemoryFileSystem(storage, "a"))
    storage.is_full = True
    with pytest.raises(RequestError) as caught:
        await topics.write("t", 9, ID, 1, {})
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
