"""The store's record of a partition is deleted while its owner is busy: the owner stops, and nothing waits for it."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import TERMINAL, PartitionState
from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.meta.kv import Delete
from bmq.storage.filesystem import Lease
from bmq.storage.layout import PartitionPath
from tests.harness.waiting import until
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.world import idempotent


def writer_of(c: Cluster, name: str, key: PartitionKey) -> PartitionDriver:
    driver = c[name].broker.get(key)
    assert driver is not None
    return driver


async def delete_record(c: Cluster, key: PartitionKey) -> None:
    done = await c["b"].kv.commit([], [Delete(ownership.partition_key("bmq", key))])
    assert done.succeeded


@pytest.mark.leaves_tasks
async def test_a_takeover_that_finds_neither_files_nor_record_ends() -> None:
    """Delete the record and the files during a takeover: the missing files are not damage then, and no successor fences
    the owner, so it has to end itself."""

    async with cluster() as c:
        topic = c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, idempotent(0))
        await asyncio.sleep(5)  # its journal contains the batch by now
        c.nodes.pop("a").kill()
        fs = c["b"].fs
        fence = fs.fence

        async def fence_and_lose_all(lease: Lease, *, sync: bool = False) -> int:
            length = await fence(lease, sync=sync)
            await fs.delete(PartitionPath("orders", str(topic.topic_id), 0).folder, recursive=True)
            await delete_record(c, key)
            return length

        fs.fence = fence_and_lose_all  # type: ignore[method-assign]
        c["b"].view.leave("a")
        c["b"].view.assign("b", key)
        await until(lambda: c["b"].broker.get(key) is not None)
        heir = writer_of(c, "b", key)
        await until(lambda: heir.machine.state in TERMINAL)
        assert heir.machine.state is PartitionState.FENCED


async def test_a_move_ends_though_a_broken_segment_cannot_be_proven_ours() -> None:
    """The takeover of the broken segment proves the ownership first; the move waits for that takeover."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, idempotent(0))
        driver = writer_of(c, "a", key)
        current = driver.machine.current
        assert current is not None
        assert c["a"].broker.context.open_files.try_enter()  # a file that is being opened: takeovers wait for it
        (segment,) = (file for file in c.storage.appenders if ".spare" in file.lease.paths[0])
        c.storage.kill_datanode(segment.nodes[0])
        lost = asyncio.ensure_future(c.write("a", key, idempotent(1)))
        await until(lambda: driver.machine.current is not current)
        await delete_record(c, key)
        await asyncio.wait_for(driver.move(), 60.0)
        assert driver.machine.state is PartitionState.FENCED
        await asyncio.gather(lost, return_exceptions=True)
