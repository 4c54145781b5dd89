"""Changes that arrive together: they are applied in turns of the loop, each revision in one piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bmq.meta.kv import Changes, Entry, Event, KvUnavailable, Put
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


class BrokenWatchKeyValue(MemoryKeyValue):
    """A store that can be listed, and whose watch breaks after ``lasts_s`` seconds."""

    def __init__(self, lasts_s: float) -> None:
        super().__init__(MemoryStore())
        self._lasts_s = lasts_s
        self.began: list[float] = []

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._lasts_s)
        if prefix:  # always: without a yield behind it this would be no generator
            raise KvUnavailable("the watch broke")
        yield []


async def watches_begun(lasts_s: float, seconds: float) -> list[float]:
    """Return when the watches began, in seconds from the first, while each breaks after ``lasts_s``."""
    kv = BrokenWatchKeyValue(lasts_s)
    following = PrefixWatcher(kv, PREFIX, lambda changes: None, what="things")
    await following.start()
    await asyncio.sleep(seconds)
    await following.close()
    return [round(began - kv.began[0], 3) for began in kv.began]


async def test_watches_that_break_at_once_are_begun_anew_with_pauses_that_double() -> None:
    assert await watches_begun(0.0, seconds=7.6) == [0, 0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1]


async def test_a_watch_that_breaks_after_a_while_is_begun_anew_at_once() -> None:
    assert await watches_begun(3.0, seconds=10.0) == [0, 3, 6, 9]
