"""Room that tails borrow from responses and blocks: what they get, when they give it back, and that nobody lacks it."""

from __future__ import annotations

import random

import pytest

from bmq.endpoint.fetch.memory_budget import EVICTED_AT_ONCE, FetchBudget, Reservation
from bmq.endpoint.fetch.tail_cache import ENTRY_BYTES
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.block_claim import HALVED_S
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.seeds import seeds
from tests.unit.endpoint.fetch.batches import KEY, batch

LIMIT = 1 << 20
BLOCK = 8 << 10
FILE = "/log"
FILE_BLOCKS = LIMIT // BLOCK
REST = LIMIT // 2
BLOCKS_OWN = REST // 4


class Memory:
    """A budget with the tails and the blocks of one process, on a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.fs = MemoryFileSystem(MemoryStorage(), "h")
        config = ReadConfig(block_bytes=BLOCK, cache_bytes=LIMIT, ahead_max=0)
        self.pool = BlockCache(self.fs, config, monotonic=lambda: self.now_s)
        self.budget = FetchBudget(LIMIT, 0.5, self.pool)
        self.tails = self.budget.tails
        self.end = 0
        self.held: list[Reservation] = []

    async def store(self) -> None:
        """Write the file that blocks are read from: as many as fill the budget."""
        await write_once(self.fs, FILE, b"x" * (FILE_BLOCKS * BLOCK))

    def flush(self, size: int) -> None:
        self.tails.add(KEY, [batch(self.end, size)])
        self.end += 1
        self.budget.tails_changed()

    async def read(self, number: int) -> None:
        await self.pool.certain_block(FILE, number, FILE_BLOCKS * BLOCK)

    @property
    def used(self) -> int:
        blocks = self.pool.cached_bytes + self.pool.reading_bytes
        return self.tails.used + self.budget.response_bytes + blocks

    def check(self) -> None:
        """Check the bounds, which hold after every event."""
        assert self.used <= LIMIT
        assert self.tails.used <= LIMIT - BLOCKS_OWN
        assert self.pool.cache_bytes >= BLOCKS_OWN
        assert self.tails.used <= max(self.budget.tails_own, LIMIT - self.budget.response_bytes - BLOCKS_OWN)

    def fill(self, size: int = 4_000) -> None:
        """Flush until the tails hold as much as they may."""
        for _ in range(2 * LIMIT // size):
            self.flush(size)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(16, 200))
async def test_whatever_happens_the_budget_is_kept_and_each_has_its_part(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    if seed % 2:  # the headroom is hardly ever restored, as with many small batches
        monkeypatch.setattr("bmq.endpoint.fetch.memory_budget.EVICTED_AT_ONCE", 1)
    memory = Memory()
    await memory.store()
    weights = [chance.random() + 0.05 for _ in range(5)]
    reader = 0
    for _ in range(600):
        (kind,) = chance.choices(("flush", "take", "release", "read", "wait"), weights)
        if kind == "flush":
            memory.flush(chance.choice((10, 500, 5_000, 40_000)))
        elif kind == "take":
            pool = chance.choice((memory.budget.memory, memory.budget.storage))
            reservation = pool.try_take(chance.choice((100, 5_000, REST // 8, REST)))
            if reservation is not None:
                memory.held.append(reservation)
        elif kind == "release" and memory.held:
            memory.held.pop(chance.randrange(len(memory.held))).release()
        elif kind == "read":
            reader = chance.choice((reader + 1, chance.randrange(FILE_BLOCKS))) % FILE_BLOCKS
            await memory.read(reader)
        else:
            memory.now_s += chance.choice((0.1, 10.0, 100.0))
        memory.check()
    for reservation in memory.held:
        reservation.release()
    memory.now_s += 100 * HALVED_S
    memory.fill()
    memory.check()
    most = LIMIT - BLOCKS_OWN - memory.budget.headroom
    assert most - 10_000 < memory.tails.used <= most, "blocks that are idle are no bound to tails"


async def test_tails_borrow_what_nobody_uses() -> None:
    memory = Memory()
    memory.fill()
    assert memory.budget.tails_own < memory.tails.used
    assert memory.tails.used > LIMIT * 3 // 4


async def test_a_reader_that_passes_once_takes_nothing_from_the_tails() -> None:
    """The reader needs room for its reads alone, and comes to the tails next."""
    memory = Memory()
    await memory.store()
    memory.fill()
    start = memory.tails.extent(KEY)
    for number in range(FILE_BLOCKS):
        await memory.read(number)
        memory.check()
    assert memory.tails.extent(KEY) == start


@pytest.mark.slow
async def test_blocks_that_are_read_again_get_their_room_back_down_to_the_tails_own() -> None:
    memory = Memory()
    await memory.store()
    memory.fill()
    size = memory.tails.used
    for _ in range(20):
        for number in range(48):  # three times what is guaranteed
            await memory.read(number)
            memory.check()
    assert memory.tails.used < size
    read = memory.pool.read_bytes
    for number in range(48):
        await memory.read(number)
    assert memory.pool.read_bytes == read, "all of them are kept now"
    for _ in range(8):
        for number in range(FILE_BLOCKS):  # more than there can ever be room for
            await memory.read(number)
            memory.check()
    assert memory.tails.used <= memory.budget.tails_own
    assert memory.tails.used > memory.budget.tails_own - 10_000, "and no further"


async def test_a_claim_that_nothing_supports_fades() -> None:
    memory = Memory()
    await memory.store()
    memory.fill()
    size = memory.tails.used
    for _ in range(20):
        for number in range(40):
            await memory.read(number)
    claimed = memory.pool.claimed_bytes
    assert claimed > BLOCKS_OWN
    memory.now_s += HALVED_S
    assert memory.pool.claimed_bytes == claimed // 2
    memory.now_s += 20 * HALVED_S
    assert memory.pool.claimed_bytes == 0
    memory.fill()
    assert memory.tails.used > size - 10_000


@pytest.mark.slow
async def test_an_event_evicts_no_more_than_it_takes_and_a_bounded_number() -> None:
    """Small batches: a response, a read, each evicts what it needs, however many batches the tails hold."""
    memory = Memory()
    memory.budget = FetchBudget(64 * LIMIT, 0.5, memory.pool)
    memory.tails = memory.budget.tails
    size = batch(0, 100).size + ENTRY_BYTES
    memory.tails.add(KEY, [batch(number, 100) for number in range(64 * LIMIT // size)])
    memory.budget.tails_changed()
    for asked in (1 << 20, 4 << 20, 4 << 20, 4 << 20):
        count = len(memory.tails)
        reservation = memory.budget.memory.try_take(asked)
        assert reservation is not None
        assert count - len(memory.tails) <= EVICTED_AT_ONCE + reservation.size // size + 1
        assert memory.tails.used <= 64 * LIMIT - memory.budget.blocks_own - memory.budget.response_bytes
