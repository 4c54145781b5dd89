"""Closed segments whose owner died before it wrote their index."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bmq.broker import events as ev
from bmq.broker.files.deferred_indexes import LOOK_MS
from bmq.core.model import PartitionKey
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.moves import index_of, later, names, owned, path_of, record_of
from tests.unit.broker.world import idempotent


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_that_an_owner_died_before_writing_is_written_by_the_next() -> None:
    """Without it readers scan the segment for ever, and compaction ends before it."""
    async with cluster("a", "b", "c") as c:
        key = await owned(c, 3)
        path = path_of(c).idx((await record_of(c)).segments[0].name)
        never_publish(c, "b", path)
        await die(c, "a")
        c.give("b", key)
        for sequence in (3, 4, 5):
            assert await c.write("b", key, idempotent(sequence)) == sequence
            driver = c["b"].broker.get(key)
            assert driver is not None
            driver.post(ev.StorageSlow())  # the next segment begins
            await later(LOOK_MS)
        assert path.rpartition("/")[2] not in await names(c)
        await die(c, "b")
        c.give("c", key)
        assert await c.write("c", key, idempotent(6)) == 6
        await later(2 * LOOK_MS)
        index = await index_of(c, "c")
        assert index is not None
        assert (index.segment.base, index.end_offset, index.epochs) == (0, 3, ((1, 0),))
        (producer,) = index.producers
        assert [batch.base_sequence for batch in producer.batches] == [0, 1, 2]
        assert await c.write("c", key, idempotent(7)) == 7


@pytest.mark.slow
@pytest.mark.leaves_tasks
async def test_an_index_is_written_however_many_owners_died_before() -> None:
    """A takeover does not read the segment: a later checkpoint covers it. The record names it all the same."""
    async with cluster("a", "b", "c", "d", "e") as c:
        key = await owned(c, 3)
        first = (await record_of(c)).segments[0].name
        written = 3
        never_publish(c, "b", path_of(c).idx(first))
        for former, owner in itertools.pairwise("abcd"):
            await die(c, former)
            c.give(owner, key)
            for _ in range(2):
                assert await c.write(owner, key, idempotent(written)) == written
                written += 1
                await roll(c, owner, key)
            named = [entry.name for entry in (await record_of(c)).segments]
            assert named[0] == first, f"{owner} has taken the name out"
        await die(c, "d")
        c.give("e", key)
        assert await c.write("e", key, idempotent(written)) == written
        await later(2 * LOOK_MS)
        index = await index_of(c, "e")
        assert index is not None
        assert (index.segment, index.end_offset) == (first, 3)


def never_publish(c: Cluster, name: str, path: str) -> None:
    """Let a node's index hang before it gets the name ``path``."""
    publish = c[name].fs.rename

    async def rename(source: str, target: str) -> None:
        if target == path:
            await asyncio.Event().wait()
        await publish(source, target)

    c[name].fs.rename = rename  # type: ignore[method-assign]


async def roll(c: Cluster, name: str, key: PartitionKey) -> None:
    """Have the next segment begin with the next batch."""
    driver = c[name].broker.get(key)
    assert driver is not None
    driver.post(ev.StorageSlow())
    await later(500)


async def die(c: Cluster, name: str) -> None:
    c[name].kill()
    for node in c.nodes.values():
        node.view.leave(name)
    del c.nodes[name]
