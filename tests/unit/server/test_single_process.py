"""A single process over SQLite: a cluster of one, whose successor waits for nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.meta.cluster.keys import assignment_prefix, controller_key, members_prefix
from bmq.meta.cluster.member import Address
from bmq.meta.kv import KeyValue
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.kv_sqlite import SqliteKeyValue
from bmq.server.cluster_member import ClusterMember
from bmq.server.console_view import operations
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node
from tests.harness.waiting import now

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]
CONFIG = NodeConfig(default_replication_factor=1, meta="sqlite:///kv.db")
HTTP = Address(host="h", port=9080)
PATIENCE_S = 30.0


async def keys(kv: KeyValue, prefix: str) -> list[str]:
    return [entry.key.removeprefix(prefix) async for entry in kv.list(prefix)]


async def owned(node: Node, name: str, count: int) -> None:
    topic = node.catalog.topics[name]
    for partition in range(count):
        await node.proxy.owners.wait(PartitionKey(topic.topic_id, partition), PATIENCE_S)


async def test_a_process_elects_itself_and_assigns_itself_everything(tmp_path: Path) -> None:
    kv = await SqliteKeyValue.open(str(tmp_path / "kv.db"))
    fs = MemoryFileSystem(MemoryStorage(Random(0)), "n")
    left = asyncio.Event()
    async with single_node(CONFIG, fs, kv, on_leave=left.set) as node:
        node.joined.is_at(http=HTTP)
        await node.start()
        await node.admin.create_topic("orders", 3)
        await owned(node, "orders", 3)
        status = await operations(node).status()
        assert (status["leader"], status["is_from_leader"], status["unassigned"]) == ("n", True, 0)
        (member,) = status["members"]
        assert (member["node_id"], member["partitions"], member["internal"]) == (0, 3, "")
        assert await operations(node).balance() == 0
        assert node.joined.peers.connected == 0
        await operations(node).drain("n")
        await left.wait()
    assert await keys(kv, members_prefix("bmq")) == []
    await kv.close()


@pytest.mark.loops("virtual")
async def test_a_process_that_ends_does_not_wait_for_a_store_that_takes_no_writes() -> None:
    """End the only member while it cannot write that it drains, as on a full disk: no process would read that."""
    store = MemoryStore()
    kv, fs = MemoryKeyValue(store, random=Random(0)), MemoryFileSystem(MemoryStorage(Random(0)), "n")
    async with single_node(CONFIG, fs, kv) as node:
        node.joined.is_at(http=HTTP)
        await node.start()
        await node.admin.create_topic("orders", 3)
        await owned(node, "orders", 3)
        store.stop()
        began = now()
        await node.leave(began + 7.5, began + 10.0)
        took_s = now() - began
        store.start(now())
    assert took_s == 0.0


@pytest.mark.leaves_tasks
async def test_a_killed_process_holds_its_successor_up_by_nothing(tmp_path: Path) -> None:
    """Kill the first process: its entries with a lease go when the file is opened, its partitions move at once."""
    storage = MemoryStorage(Random(0))
    kv = await SqliteKeyValue.open(str(tmp_path / "kv.db"))
    fs = MemoryFileSystem(storage, "first")
    clock = SystemClock()
    joined = ClusterMember(CONFIG, fs, kv, clock, "first")
    await joined.join()
    first = Node(CONFIG, fs, kv, clock, joined)
    first.joined.is_at(http=HTTP)
    await first.start()
    await first.admin.create_topic("orders", 2)
    await owned(first, "orders", 2)
    fs.crash()
    await kv.close()  # the kernel takes the lock from a process that dies; nothing is revoked

    kv = await SqliteKeyValue.open(str(tmp_path / "kv.db"))
    assert await keys(kv, members_prefix("bmq")) == []
    assert await kv.get(controller_key("bmq")) is None
    assert len(await keys(kv, assignment_prefix("bmq"))) == 1, "this stays, and names a process that is gone"
    async with single_node(CONFIG, MemoryFileSystem(storage, "second"), kv, name="second") as second:
        second.joined.is_at(http=HTTP)
        await second.start()
        await owned(second, "orders", 2)
        assert (second.joined.member.node_id, list(second.view.members)) == (0, ["second"])
    await kv.close()
