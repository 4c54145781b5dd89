"""Smaller blocks where storage has no room for the usual ones (broker/files/block_ceiling.py)."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.files.block_ceiling import KEPT_MS, BlockCeiling
from bmq.storage.filesystem import CreateOptions, OutOfSpace
from tests.unit.broker.world import World, batch, world

MB = 1 << 20


def test_without_a_refusal_a_block_is_as_large_as_wanted() -> None:
    assert BlockCeiling().fit(128 * MB, 4 * MB, 0) == 128 * MB


def test_each_refusal_lowers_the_ceiling_to_a_quarter_but_no_block_below_its_least() -> None:
    ceiling, sizes = BlockCeiling(), []
    size = 128 * MB
    while size not in sizes:
        sizes.append(size)
        ceiling.refused(size, 0)
        size = ceiling.fit(128 * MB, 4 * MB, 0)
    assert [each // MB for each in sizes] == [128, 32, 8, 4]
    assert ceiling.fit(2 * MB, 4 * MB, 0) == 2 * MB, "never more than wanted"
    assert ceiling.fit(9 * MB, 9 * MB, 0) == 9 * MB, "as much as a large batch needs"


def test_a_late_refusal_of_a_large_block_does_not_raise_the_ceiling() -> None:
    """Many files are asked for at once, and answers come in any order."""
    ceiling = BlockCeiling()
    ceiling.refused(16 * MB, 0)
    ceiling.refused(128 * MB, 1)
    assert ceiling.fit(128 * MB, MB, 2) == 4 * MB


def test_a_while_after_the_last_refusal_whole_blocks_are_tried_again() -> None:
    ceiling = BlockCeiling()
    ceiling.refused(128 * MB, 0)
    ceiling.refused(32 * MB, 100)
    assert ceiling.fit(128 * MB, MB, KEPT_MS + 99) == 8 * MB
    assert ceiling.fit(128 * MB, MB, KEPT_MS + 100) == 128 * MB
    ceiling.refused(128 * MB, KEPT_MS + 100)
    assert ceiling.fit(128 * MB, MB, KEPT_MS + 100) == 32 * MB


class Small:
    """Storage as a NameNode judges: open blocks count as large as the one that is asked for."""

    def __init__(self, w: World, room: int) -> None:
        self._storage, self._plain = w.storage, w.storage.create
        self.room = room
        self.blocks: list[int] = []
        """The block of each segment that was created."""
        self.refusals = 0
        setattr(w.storage, "create", self.create)  # noqa: B010  (mypy: no plain assignment to a method)

    def create(self, path: str, holder: str, options: CreateOptions) -> object:
        if "/topics/" in path and ".idx" not in path:
            if (len(list(self._storage.open_files())) + 1) * options.block_bytes > self.room:
                self.refusals += 1
                raise OutOfSpace(f"{path}: no datanode has room")
            self.blocks.append(options.block_bytes)
        return self._plain(path, holder, options)


@pytest.mark.slow
async def test_partitions_get_smaller_blocks_before_they_take_turns() -> None:
    """Room for 30 blocks of 16 MB, by the NameNode's count, is room for 100 of 4 MB: nobody waits."""
    async with world() as w:
        storage = Small(w, 30 * 16 * MB)
        w.topic(partitions=100)
        sent = [w.produce({("orders", p): batch()}) for p in range(100)]
        assert [response.error_code for (response,) in await asyncio.gather(*sent)] == [0] * 100
        assert w.broker.open_pipelines == 100
        assert w.broker.open_pipelines_limit == w.broker_config.open_pipelines_max
        assert {each // MB for each in storage.blocks} == {16, 4}
        assert not [report for report in w.broker.reports if "no room" in report]
        assert storage.refusals <= w.broker_config.open_parallel


@pytest.mark.slow
async def test_a_segment_is_rolled_at_the_block_that_it_got() -> None:
    """A file holds no more than its block: bytes past it would break the pipeline."""
    async with world(broker=BrokerConfig(small_block_bytes=MB)) as w:
        w.topic()
        Small(w, 8 * MB)
        for _ in range(24):
            (response,) = await w.produce({("orders", 0): batch(bytes(400_000))})
            assert response.error_code == 0
        logs = [status async for status in w.fs.list(w.path().folder) if status.path.endswith(".log")]
        assert {log.block_bytes // MB for log in logs} == {4, 1}
        assert all(log.length <= log.block_bytes for log in logs)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
async def test_whole_blocks_are_asked_for_again_when_there_is_room(kept: bool) -> None:
    async with world() as w:
        storage = Small(w, 30 * 16 * MB)
        w.topic(partitions=60)
        await asyncio.gather(*(w.produce({("orders", p): batch()}) for p in range(50)))
        storage.room = 1 << 40
        await asyncio.sleep(KEPT_MS / 1000 * (0.5 if kept else 1.1))
        await w.produce({("orders", 59): batch()})
        assert storage.blocks[-1] == (4 * MB if kept else 16 * MB)
