"""Closed segments whose owner died before it wrote their index."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker import events as ev
from bmq.broker.files.deferred_indexes import LOOK_MS
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
        publish = c["b"].fs.rename

        async def rename(source: str, target: str) -> None:
            if target == path:
                await asyncio.Event().wait()
            await publish(source, target)

        c["b"].fs.rename = rename  # type: ignore[method-assign]
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


async def die(c: Cluster, name: str) -> None:
    c[name].kill()
    for node in c.nodes.values():
        node.view.leave(name)
    del c.nodes[name]
