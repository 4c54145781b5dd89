"""The rounds of work on missing indexes: a few at once, and none that a stop has dropped."""

from __future__ import annotations

import asyncio

from bmq.broker.files.index_rounds import PARALLEL, IndexRounds
from bmq.core.aio.timers import TimerHeap

AFTER_MS = 100


def now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class Rounds:
    """Rounds that last until they may end."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    def begin(self) -> asyncio.Task[None]:
        self.begun += 1
        return asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await self.may_end.wait()


async def test_a_few_rounds_run_at_once_and_a_partition_that_has_ended_takes_no_place() -> None:
    work, rounds = IndexRounds(TimerHeap(now_ms), now_ms), Rounds()
    work.later(AFTER_MS, lambda: None)
    for _ in range(PARALLEL + 2):
        work.later(AFTER_MS, rounds.begin)
    await asyncio.sleep(AFTER_MS / 2000)
    assert rounds.begun == 0
    await asyncio.sleep(AFTER_MS / 1000)
    assert rounds.begun == PARALLEL
    rounds.may_end.set()
    await asyncio.sleep(AFTER_MS / 1000)
    assert rounds.begun == PARALLEL + 2


async def test_a_round_that_waits_for_its_place_is_dropped_at_the_end() -> None:
    work, rounds = IndexRounds(TimerHeap(now_ms), now_ms), Rounds()
    for _ in range(PARALLEL + 1):
        work.later(AFTER_MS, rounds.begin)
    await asyncio.sleep(2 * AFTER_MS / 1000)
    work.abandon()
    rounds.may_end.set()
    await asyncio.sleep(AFTER_MS / 1000)
    assert rounds.begun == PARALLEL
