"""A process's cache of blocks and indexes: what readers share, how much is kept, and how reads end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.core.model import SegmentName
from bmq.core.records.batch import Record, build_batch, build_gap
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.filesystem import NoSuchFile, StorageUnavailable, write_once
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.storage.stored_segments import (
    BLOCK,
    PATH,
    S,
    SlowFileSystem,
    batch,
    batches,
    offsets,
    put,
    read_all,
    reader,
)


async def test_all_readers_that_wait_for_a_block_share_one_read() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 50), idx=True)
    await put(fs, S(50, 1, 1), batches(50, 55))
    log = reader(fs, ahead_max=0)
    answers = await asyncio.gather(*(log.read(0, 700, 55) for _ in range(100)))
    assert set(answers) == {b"".join(batches(0, 4))}
    assert fs.log_reads == [(PATH.log(S(0, 1, 0)), 0)]
    assert fs.idx_reads == 1
    fs.log_reads.clear()
    answers = await asyncio.gather(*(log.read(50, 1, 55) for _ in range(100)))
    assert set(answers) == {batch(50)}
    assert fs.log_reads == [(PATH.log(S(50, 1, 1)), 0)]


async def test_a_block_is_read_once_and_kept_under_the_budget() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 100), idx=True)  # 17 blocks
    await put(fs, S(100, 1, 1), [])
    log = reader(fs, cache_bytes=20 * BLOCK, ahead_max=0)
    for _ in range(2):
        assert await read_all(log, 0, 100) == list(range(100))
    assert len(fs.log_reads) == len(set(fs.log_reads))
    assert log.pool.cached_bytes == 100 * len(batch(0))
    small = reader(fs, cache_bytes=4 * BLOCK, ahead_max=0)
    assert await read_all(small, 0, 100) == list(range(100))
    assert small.pool.cached_bytes <= 4 * BLOCK


def test_the_least_recently_used_block_makes_room() -> None:
    pool = BlockCache(MemoryFileSystem(MemoryStorage(), "h"), ReadConfig(block_bytes=BLOCK, cache_bytes=2 * BLOCK))
    pool.keep("a", 0, b"0" * BLOCK)
    pool.keep("a", 1, b"1" * BLOCK)
    assert pool.cached("a", 0, BLOCK) is not None
    pool.keep("a", 2, b"2" * BLOCK)
    assert pool.cached("a", 1, 1) is None
    assert pool.cached("a", 0, BLOCK) is not None
    assert pool.cached("a", 2, BLOCK) == b"2" * BLOCK
    pool.keep("a", 2, b"2")  # a shorter reading of the same block does not replace it
    assert pool.cached("a", 2, BLOCK) == b"2" * BLOCK
    pool.keep("b", 0, b"3" * (3 * BLOCK))  # larger than the whole budget
    assert pool.cached_bytes == 2 * BLOCK


async def test_rule_5_a_block_past_the_known_end_is_kept_only_up_to_it() -> None:
    """Two watermarks over one open file: what lay past the first when the block was read is read again."""

    fs = SlowFileSystem()
    appender = await fs.create(PATH.log(S(0, 1, 0)))
    appender.write(b"".join(batches(0, 3)))
    await appender.flush()
    log = reader(fs)
    size = len(batch(0))
    assert offsets(await log.read(0, 1 << 20, 2)) == [0, 1]
    assert log.pool.cached_bytes == 2 * size
    assert offsets(await log.read(0, 1 << 20, 2)) == [0, 1]
    assert len(fs.log_reads) == 1
    assert offsets(await log.read(0, 1 << 20, 3)) == [0, 1, 2]
    assert len(fs.log_reads) == 2
    assert log.pool.cached_bytes == 3 * size


async def test_readers_with_another_watermark_do_not_share_a_block_past_the_known_end() -> None:
    fs = SlowFileSystem()
    appender = await fs.create(PATH.log(S(0, 1, 0)))
    appender.write(b"".join(batches(0, 2)))
    await appender.flush()
    log = reader(fs)
    await log.segments.cover(3)
    early = asyncio.create_task(log.read(0, 1 << 20, 2))
    await asyncio.sleep(0.005)
    assert fs.log_reads  # its block is on the way
    appender.write(batch(2))
    await appender.flush()
    late = asyncio.create_task(log.read(0, 1 << 20, 3))
    await asyncio.sleep(0.001)
    assert fs.running == 2
    assert offsets(await early) == [0, 1]
    assert offsets(await late) == [0, 1, 2]


async def test_the_next_block_of_a_sequential_reader_is_read_ahead() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 100), idx=True)
    await put(fs, S(100, 1, 1), [])
    log = reader(fs)
    await log.read(0, 1, 100)
    await asyncio.sleep(1)
    path = PATH.log(S(0, 1, 0))
    assert fs.log_reads == [(path, 0), (path, BLOCK)]
    await log.read(60, 1, 100)  # not sequential
    await asyncio.sleep(1)
    assert len(fs.log_reads) == 4
    await log.read(61, 1, 100)  # goes on where the last one ended
    await asyncio.sleep(1)
    assert len(fs.log_reads) == 5
    assert log.pool.ahead == 0


class PartsFileSystem(SlowFileSystem):
    """Counts each read of a log as (position, lengths)."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[tuple[int, tuple[int, ...]]] = []

    async def read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[bytes]:
        self.runs.append((position, tuple(lengths)))
        data = await self.read(path, position, sum(lengths))
        ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
        return [data[end - length : end] for end, length in zip(ends, lengths, strict=True)]


async def sequential(log: LogReader, end: int) -> None:
    """Read from the beginning, 700 bytes at a time, and let each read ahead come to its end."""
    at = 0
    while at < end:
        at = offsets(await log.read(at, 700, end))[-1] + 1
        await asyncio.sleep(1)


async def test_a_reader_that_goes_on_gets_more_blocks_by_each_read() -> None:
    fs = PartsFileSystem()
    content = batches(0, 200)
    await put(fs, S(0, 1, 0), content, idx=True)
    await put(fs, S(200, 1, 1), [])
    log = reader(fs)
    await sequential(log, 200)
    sizes = [len(lengths) for _, lengths in fs.runs]
    assert sizes[:5] == [1, 1, 2, 4, 4], "the first block alone, then more ahead"
    assert max(sizes) == log.pool.config.run_blocks
    assert sum(sum(lengths) for _, lengths in fs.runs) == len(b"".join(content)), "each byte once"
    assert fs.runs[-1][1][-1] == len(b"".join(content)) % BLOCK, "the last block as far as it goes"


async def test_readers_that_go_on_side_by_side_get_as_much_as_one() -> None:
    """Several groups read one backlog, at the same pace."""
    fs = PartsFileSystem()
    content = batches(0, 200)
    await put(fs, S(0, 1, 0), content, idx=True)
    await put(fs, S(200, 1, 1), [])
    log = reader(fs)
    await asyncio.gather(*(sequential(log, 200) for _ in range(3)))
    assert [len(lengths) for _, lengths in fs.runs][:5] == [1, 1, 2, 4, 4]
    assert sum(sum(lengths) for _, lengths in fs.runs) == len(b"".join(content)), "each byte once"


async def test_a_reader_that_jumps_gets_one_block_at_a_time() -> None:
    fs = PartsFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 200), idx=True)
    await put(fs, S(200, 1, 1), [])
    log = reader(fs)
    for offset in (190, 100, 150, 20):
        assert offsets(await log.read(offset, 1, 200)) == [offset]
        await asyncio.sleep(1)
    assert all(len(lengths) == 1 for _, lengths in fs.runs)


async def test_readers_that_wait_for_any_block_of_a_read_share_it() -> None:
    fs = PartsFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 50), idx=True)
    path, pool = PATH.log(S(0, 1, 0)), reader(fs).pool
    waits = [asyncio.create_task(pool.certain_block(path, 0, 4 * BLOCK, 4))]
    await asyncio.sleep(0)
    waits += [asyncio.create_task(pool.certain_block(path, number, 4 * BLOCK)) for number in (3, 1, 2, 0)]
    found = await asyncio.gather(*waits)
    data = await fs.read(path, 0, 4 * BLOCK)
    assert found == [data[number * BLOCK : (number + 1) * BLOCK] for number in (0, 3, 1, 2, 0)]
    assert fs.runs == [(0, (BLOCK,) * 4)]


class DamagedFileSystem(PartsFileSystem):
    """Has lost each log from ``lost`` on."""

    lost = 1 << 60

    async def read_parts(self, path: str, position: int, lengths: Sequence[int]) -> Sequence[bytes]:
        parts = await super().read_parts(path, position, lengths)
        if position + sum(lengths) > self.lost:
            raise StorageUnavailable("no datanode has the block")
        return parts


@pytest.mark.parametrize("pause_s", [0, 1], ids=["while it is read ahead", "later"])
@pytest.mark.parametrize("good", [9, 10, 11, 12])
async def test_a_block_that_cannot_be_read_fails_none_of_those_before_it(good: int, pause_s: float) -> None:
    """Wherever in a read of several blocks it lies."""
    fs = DamagedFileSystem()
    content = batches(0, 200)
    await put(fs, S(0, 1, 0), content, idx=True)
    await put(fs, S(200, 1, 1), [])
    fs.lost = good * BLOCK
    log, at = reader(fs), 0
    readable = fs.lost // len(content[0])
    while at < readable:
        at = offsets(await log.read(at, min(700, (readable - at) * len(content[0])), 200))[-1] + 1
        await asyncio.sleep(pause_s)
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await log.read(at, 700, 200)
        await asyncio.sleep(pause_s)
    fs.lost = 1 << 60
    assert offsets(await log.read(at, 700, 200))[0] == at


async def test_a_file_that_is_gone_is_not_asked_for_twice() -> None:
    fs = PartsFileSystem()
    with pytest.raises(NoSuchFile):
        await reader(fs).pool.certain_block("/x.log", 0, 4 * BLOCK, 4)
    assert len(fs.runs) == 1


async def test_the_last_reader_that_leaves_any_block_cancels_the_read() -> None:
    fs = PartsFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 50), idx=True)
    path, pool = PATH.log(S(0, 1, 0)), reader(fs).pool
    first = asyncio.create_task(pool.certain_block(path, 0, 4 * BLOCK, 4))
    await asyncio.sleep(0.001)
    other = asyncio.create_task(pool.certain_block(path, 2, 4 * BLOCK))
    await asyncio.sleep(0.001)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert fs.running == 1, "another waits for a block of it"
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await asyncio.sleep(0)
    assert fs.running == 0
    assert not pool._shared


@pytest.mark.slow
async def test_blocks_that_are_evicted_unused_make_later_reads_smaller() -> None:
    """Sixty readers go on in a cache that has room for a block or two of each."""
    fs = PartsFileSystem()
    for n in range(60):
        await put(fs, S(n * 40, 1, n), batches(n * 40, n * 40 + 40), idx=True)
    await put(fs, S(2400, 1, 60), [])
    log = reader(fs, cache_bytes=100 * BLOCK)
    for step in range(8):
        for n in range(60):
            await log.read(n * 40 + step * 4, 700, 2400)
            await asyncio.sleep(1)
    sizes = [len(lengths) for _, lengths in fs.runs]
    assert max(sizes) > 1
    assert set(sizes[-60:]) == {1}
    assert log.pool.cached_bytes <= 100 * BLOCK


async def test_what_is_read_at_once_and_ahead_is_a_share_of_the_cache() -> None:
    fs = PartsFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 100), idx=True)
    await put(fs, S(100, 1, 1), [])
    log = reader(fs, cache_bytes=20 * BLOCK)
    await sequential(log, 100)
    assert {len(lengths) for _, lengths in fs.runs} == {1}
    path = PATH.log(S(0, 1, 0))
    pool = reader(fs, cache_bytes=40 * BLOCK).pool
    for number in range(0, 16, 4):
        pool.read_ahead(path, number, 16 * BLOCK, 4)
    assert (pool.ahead, len(pool._shared)) == (4, 8), "two blocks a read are a sixteenth of the cache"
    for number in range(16, 64, 4):
        pool.read_ahead(path, number, 64 * BLOCK, 4)
    assert (pool.ahead, len(pool._shared)) == (9, 18), "with another four blocks they would take half of the cache"
    await pool.close()


async def test_more_readers_than_half_of_the_cache_has_room_for_get_one_block_each() -> None:
    fs = PartsFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 1000), idx=True)
    path, pool = PATH.log(S(0, 1, 0)), reader(fs, cache_bytes=64 * BLOCK).pool
    waits = [asyncio.create_task(pool.certain_block(path, number, 160 * BLOCK, 4)) for number in range(0, 160, 4)]
    await asyncio.sleep(0.001)
    assert [len(lengths) for _, lengths in fs.runs] == [4] * 8 + [1] * 24, "at the same time, as far as reads_max goes"
    assert pool.reading_bytes == 56 * BLOCK
    await asyncio.gather(*waits)
    assert [len(lengths) for _, lengths in fs.runs[32:]] == [1] * 8
    pool.forget(path)
    await asyncio.gather(*(pool.certain_block(path, number, 160 * BLOCK, 4) for number in range(0, 160, 4)))
    assert len(fs.runs[40][1]) > 1, "once these are over"


async def test_reads_in_flight_are_bounded() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 200), idx=True)
    await put(fs, S(200, 1, 1), [])
    log = reader(fs, reads_max=3)
    answers = await asyncio.gather(*(log.read(offset, 1, 200) for offset in range(200)))
    assert [offsets(response) for response in answers] == [[offset] for offset in range(200)]
    assert fs.running_max == 3


async def test_indexes_are_kept_under_their_budget() -> None:
    fs = SlowFileSystem()
    for n in range(20):
        await put(fs, S(n * 20, 1, n), batches(n * 20, n * 20 + 20), idx=True)
    log = reader(fs, index_bytes=3_000)
    assert await read_all(log, 0, 400) == list(range(400))
    assert 0 < log.pool.facts_bytes <= 3_000


async def test_a_cancelled_reader_does_not_cancel_the_read_of_the_others() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 5), idx=True)
    await put(fs, S(5, 1, 1), [])
    log = reader(fs)
    await log.read(0, 1, 5)
    log.pool._blocks.clear()
    fs.log_reads.clear()
    tasks = [asyncio.create_task(log.read(0, 1, 5)) for _ in range(3)]
    await asyncio.sleep(0.005)
    tasks[0].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [batch(0), batch(0)]
    assert len(fs.log_reads) == 1


async def test_the_last_reader_that_leaves_cancels_the_read_and_a_new_one_begins_another() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 5))
    log = reader(fs)
    await log.segments.cover(5)
    tasks = [asyncio.create_task(log.read(0, 1, 5)) for _ in range(3)]
    await asyncio.sleep(0.005)
    assert fs.running == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not log.pool._shared
    await asyncio.sleep(0)
    assert fs.running == 0
    assert await log.read(0, 1, 5) == batch(0)


async def test_a_failed_read_fails_for_all_that_share_it_and_is_not_kept() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 5), idx=True)
    log = reader(fs)
    fs.fails = True
    outcomes = await asyncio.gather(*(log.read(0, 1, 5) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageUnavailable] * 3
    fs.fails = False
    assert await log.read(0, 1, 5) == batch(0)


async def test_close_cancels_the_reads_under_way() -> None:
    fs = SlowFileSystem()
    await put(fs, S(0, 1, 0), batches(0, 5))
    log = reader(fs)
    await log.segments.cover(5)
    task = asyncio.create_task(log.read(0, 1, 5))
    await asyncio.sleep(0.001)
    await log.pool.close()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fs.running == 0


def test_a_read_config_out_of_range_names_the_setting() -> None:
    with pytest.raises(ValueError, match="block_bytes=10"):
        ReadConfig(block_bytes=10).validate()
    with pytest.raises(ValueError, match="run_blocks"):
        ReadConfig(run_blocks=0).validate()
    with pytest.raises(ValueError, match="reads_max"):
        ReadConfig(reads_max=0).validate()


async def test_a_repaired_segment_is_read_as_it_is_now() -> None:
    """`bmq segment repair` replaces a file: what is kept of the old one goes when it does not fit, and with age."""

    fs = MemoryFileSystem(MemoryStorage(), "h")
    now = 0.0
    pool = BlockCache(fs, ReadConfig(block_age_s=600), monotonic=lambda: now)
    name = SegmentName(0, 1, 0)
    old = [build_batch([Record(value=b"old" * 20)], base_offset=offset) for offset in range(40)]
    gap = next(build_gap(0, 2, 1))
    await write_once(fs, PATH.log(name), b"".join(old))
    reader = LogReader(pool, PATH)
    for offset in range(0, 40, 8):
        await reader.read(offset, 1 << 20, 40)
    await fs.delete(PATH.log(name))
    await write_once(fs, PATH.log(name), bytes(gap) + b"".join(old[2:]))
    assert (await reader.read(0, 1, 40)).startswith(old[0]), "from the cache"
    now = 601.0
    assert await reader.read(0, 1, 2) == gap
    assert await reader.read(0, 1, 40) == old[2]
    assert await reader.read(39, 1 << 20, 40) == old[39]
