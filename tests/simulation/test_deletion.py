"""Deletion meets takeovers: a record that lists what is gone, a log start that must stay.

Small stories with names, of what was wrong once; the seeded ones are in ``test_partition``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.storage.memory import Faults
from tests.simulation.stories import (
    HUNG,
    delete_records,
    logs,
    names,
    nodes_of,
    owner,
    record_of,
    story,
    write,
    writer_of,
)
from tests.simulation.world import SMALL_LOG, World, make, until


@pytest.mark.parametrize("by", ["delete records", "retention"])
def test_rule_10_a_deleted_segment_that_the_record_still_lists_is_not_missing(by: str) -> None:
    """The record lists a segment as open until its owner registers the next: an idle owner never does.  Its files may
    expire, and be deleted, meanwhile."""

    async def body(world: World) -> None:
        first = await owner(world)
        await write(first, range(4))
        world.storage.faults = HUNG
        world.storage.kill_datanode(nodes_of(first)[0])
        lost = writer_of(first).append(make(2, 0, pid=-1, size=10))
        await until(lambda: len(record_of(world).segments) == 2)
        await until(lambda: writer_of(first).partition.current is not None)
        first.crash()
        world.storage.faults = Faults()
        assert not lost.done()

        heir = await owner(world)
        assert [entry.is_closed for entry in record_of(world).segments] == [False, False]
        if by == "delete records":
            await delete_records(heir, 4)
        await asyncio.sleep(120)
        assert writer_of(heir).partition.log_start == 4
        assert len(logs(await names(world))) == 1, "the story needs the deletion of a file that the record lists"
        heir.crash()
        await write(await owner(world), range(4, 6))

    retention_ms = 30_000 if by == "retention" else -1
    story(body, log_config=replace(SMALL_LOG, retention_ms=retention_ms, file_delete_delay_ms=5_000))
