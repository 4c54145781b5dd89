"""Changes that arrive together: they are applied in turns of the loop, each revision in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bmq.meta.kv import Changes, Entry, Event, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.prefix_watch import BYTES_PER_STEP, EVENTS_PER_STEP, PrefixWatcher

PREFIX = "/bmq/things/"


class TogetherKeyValue(MemoryKeyValue):
    """A store whose watch gives all revisions that it has at once, as etcd's does with those of one message."""

    def __init__(self, revisions: list[Changes]) -> None:
        super().__init__(MemoryStore())
        self._revisions = revisions

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        for changes in self._revisions:
            yield changes
        await asyncio.get_running_loop().create_future()


def revisions_of(count: int, events: int, size: int) -> list[Changes]:
    return [
        [Event(key, Entry(key, b"v" * size, revision), revision) for key in [f"{PREFIX}{n}" for n in range(events)]]
        for revision in range(100, 100 + count)
    ]


async def turns_of(revisions: list[Changes]) -> list[list[int]]:
    """Return the revisions that were applied, by the turn of the loop in which they were."""
    turns: list[list[int]] = [[]]
    following = PrefixWatcher(
        TogetherKeyValue(revisions), PREFIX, lambda changes: turns[-1].append(changes[0].revision), what="things"
    )

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            turns.append([])

    counting = asyncio.create_task(count())
    await following.start()
    await following.wait_revision(revisions[-1][0].revision)
    counting.cancel()
    await following.close()
    return [turn for turn in turns if turn]


async def test_large_revisions_that_come_together_are_applied_in_turns() -> None:
    large = revisions_of(6, events=30, size=BYTES_PER_STEP // 30)
    assert await turns_of(large) == [[each[0].revision] for each in large]


async def test_small_ones_share_a_turn() -> None:
    small = revisions_of(EVENTS_PER_STEP + 1, events=1, size=10)
    turns = await turns_of(small)
    assert [len(turn) for turn in turns] == [EVENTS_PER_STEP, 1]


async def test_a_revision_larger_than_a_step_is_applied_in_one_piece() -> None:
    huge = revisions_of(2, events=EVENTS_PER_STEP + 1, size=10)
    assert await turns_of(huge) == [[100], [101]]


async def test_a_listing_is_applied_in_parts_of_a_step() -> None:
    kv = MemoryKeyValue(MemoryStore())
    for number in range(EVENTS_PER_STEP + 5):
        await kv.commit([], [Put(f"{PREFIX}{number:06d}", b"v")])
    await kv.commit([], [Put(f"{PREFIX}large", b"v" * 2 * BYTES_PER_STEP)])
    parts: list[int] = []
    following = PrefixWatcher(kv, PREFIX, lambda changes: parts.append(len(changes)), what="things")
    await following.start()
    await following.close()
    assert parts == [EVENTS_PER_STEP, 5, 1]
