"""The writes of a rebuild: when a store counts as lost, what one commit holds, and which of two runs wins."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from bmq.broker.repair.scan import FoundPartition
from bmq.cli.rebuild.store import BYTES_MAX, WRITES_MAX, NotLost, Rebuilding, check_lost, check_nobody, mark_key
from bmq.controller.topics.deletion import deleted_prefix
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic, cluster_id_key, topic_key
from bmq.meta.cluster.keys import member_key
from bmq.meta.kv import Commit, Compare, KvUnknown, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.ownership import PartitionRecord, partition_key, partitions_prefix
from bmq.meta.root import RootRecord, read_root
from bmq.storage.cluster_files import ClusterFile
from bmq.storage.layout import PartitionPath

TOPIC_ID = uuid.UUID(int=7)
FILE = ClusterFile(cluster_id="id", rebuild_count=3)
ROOT = RootRecord(root_id="r", url="file:///r")


class CountingKeyValue(MemoryKeyValue):
    """A store that notes the size of each commit, and may lose the response to the next one."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.sizes: list[int] = []
        self.loses_response = False

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        self.sizes.append(len(writes))
        done = await super().commit(compares, writes)
        if self.loses_response:
            self.loses_response = False
            raise KvUnknown("no response")
        return done


def partition(number: int) -> FoundPartition:
    return FoundPartition(
        path=PartitionPath("orders", str(TOPIC_ID), number),
        key=PartitionKey(TOPIC_ID, number),
        record=PartitionRecord(epoch=5),
    )


async def put(kv: MemoryKeyValue, key: str) -> None:
    assert (await kv.commit([], [Put(key, b"x")])).succeeded


async def test_a_store_without_data_is_lost() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put(kv, cluster_id_key("c"))
    await put(kv, topic_key("another", "orders"))
    assert await check_lost(kv, "c") is False


async def test_a_store_with_the_mark_was_being_rebuilt() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put(kv, topic_key("c", "orders"))
    await put(kv, mark_key("c"))
    assert await check_lost(kv, "c") is True


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (topic_key("c", "orders"), "has topics already"),
        (f"{partitions_prefix('c')}x", "has partitions already"),
        (f"{deleted_prefix('c')}x", "has deleted topics already"),
        (member_key("c", "broker-1"), "broker-1 is running"),
    ],
)
async def test_a_store_with_data_or_members_is_not_lost(key: str, what: str) -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put(kv, key)
    with pytest.raises(NotLost, match=what):
        await check_lost(kv, "c")


async def begun() -> tuple[CountingKeyValue, Rebuilding]:
    kv = CountingKeyValue()
    rebuilding = Rebuilding(kv, "c", FILE, ROOT)
    await rebuilding.begin()
    kv.sizes.clear()
    return kv, rebuilding


async def test_a_commit_is_bounded_by_the_number_of_its_writes() -> None:
    kv, rebuilding = await begun()
    for number in range(2 * WRITES_MAX + 1):
        await rebuilding.put_partition(partition(number))
    assert kv.sizes == [WRITES_MAX, WRITES_MAX]
    await rebuilding.finish()
    assert kv.sizes[2:] == [1, 4], "the rest, then cluster id, root, count and mark"


async def test_a_commit_is_bounded_in_bytes() -> None:
    kv, rebuilding = await begun()
    for name in ("a", "b", "c"):
        configs = {"x": "y" * (BYTES_MAX * 2 // 5)}
        await rebuilding.put_topic(
            Topic(name=name, topic_id=TOPIC_ID, partitions=1, replication_factor=1, configs=configs)
        )
    assert kv.sizes == [2]


async def test_a_finished_rebuild_has_no_mark_and_names_cluster_and_root() -> None:
    kv = MemoryKeyValue(MemoryStore())
    rebuilding = Rebuilding(kv, "c", FILE, ROOT)
    await rebuilding.begin()
    assert await kv.get(cluster_id_key("c")) is None
    await rebuilding.put_partition(partition(0))
    assert await kv.get(partition_key("c", PartitionKey(TOPIC_ID, 0))) is None, "it waits for more"
    await rebuilding.finish()
    assert await kv.get(partition_key("c", PartitionKey(TOPIC_ID, 0))) is not None
    entry = await kv.get(cluster_id_key("c"))
    assert entry is not None
    assert (entry.value, await read_root(kv, "c"), await kv.get(mark_key("c"))) == (b"id", ROOT, None)


async def test_what_an_earlier_run_wrote_is_removed() -> None:
    kv = MemoryKeyValue(MemoryStore())
    first = Rebuilding(kv, "c", FILE, ROOT)
    await first.begin()
    for number in range(WRITES_MAX + 1):
        await first.put_partition(partition(number))
    assert [entry.key async for entry in kv.list(partitions_prefix("c"))] != []
    await Rebuilding(kv, "c", FILE, ROOT).begin()
    assert [entry.key async for entry in kv.list(partitions_prefix("c"))] == []


async def test_of_two_runs_the_later_one_wins() -> None:
    kv = MemoryKeyValue(MemoryStore())
    first, second = Rebuilding(kv, "c", FILE, ROOT), Rebuilding(kv, "c", FILE, ROOT)
    await first.begin()
    await second.begin()
    await first.put_partition(partition(0))
    with pytest.raises(NotLost, match="another `bmq cluster rebuild`"):
        await first.finish()
    assert await kv.get(mark_key("c")) is not None
    await second.finish()
    assert await kv.get(mark_key("c")) is None
    assert await kv.get(partition_key("c", PartitionKey(TOPIC_ID, 0))) is None


async def test_a_lost_response_to_the_last_commit_is_read_back() -> None:
    kv = CountingKeyValue()
    rebuilding = Rebuilding(kv, "c", FILE, ROOT)
    await rebuilding.begin()
    kv.loses_response = True
    await rebuilding.finish()
    assert await kv.get(mark_key("c")) is None


async def test_a_process_that_started_meanwhile_leaves_the_store_marked() -> None:
    kv = MemoryKeyValue(MemoryStore())
    rebuilding = Rebuilding(kv, "c", FILE, ROOT)
    await rebuilding.begin()
    await put(kv, member_key("c", "broker-1"))
    with pytest.raises(NotLost, match="broker-1 is running"):
        await rebuilding.finish()
    assert await kv.get(mark_key("c")) is not None
    with pytest.raises(NotLost):
        await check_nobody(kv, "c")
