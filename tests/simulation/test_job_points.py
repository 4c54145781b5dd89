"""Every call of an owner that plans and swaps for a job, in turn: it dies, hangs or loses the partition there.

The story is that of ``test_cleaning_points``, but a job outside the brokers writes the drafts, and no owner begins a
round.  After the fault the job asks the next owner for all its groups again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.core.errors import RequestError
from bmq.meta.kv import KvError
from bmq.storage.filesystem import StorageError
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.simulation.histories import seeds_wanted
from tests.simulation.judge import KEY, PATH
from tests.simulation.test_cleaning_points import (
    AFTER,
    HOWS,
    LOG,
    Story,
    is_rebuilt,
    is_rebuilt_and_merged,
    is_succeeded,
)
from tests.simulation.world import Process
from tests.unit.broker.cleanup.jobs import CleaningJob

pytestmark = pytest.mark.leaves_tasks

BLOCKS = 2
LONG_RUN = 2_000
"""Seeds from which on each of ``HOWS`` is played at each call."""
CALLS_MAX = 60
"""Calls until all groups of the story are swapped, at least."""
TRIES = 20
NEVER_DUE = replace(LOG.cleaning, min_cleanable_dirty_ratio=1.0)
REFUSALS = (RequestError, StorageError, KvError)


class JobStory(Story):
    """A story whose log is cleaned by a job."""

    def __init__(self, at: int, how: str) -> None:
        super().__init__(at, how, cleaning=NEVER_DUE)
        self.job = CleaningJob(self.world, path=PATH, key=KEY)
        self.result: SwapResult | None = None
        self.asked: asyncio.Future[None] | None = None

    async def _round(self) -> None:
        """Have the job clean the log at the first owner, until the point is met."""
        asked = self.asked = asyncio.ensure_future(self._ask_all(self.first))
        await until(lambda: self.point.is_reached or asked.done(), 20.0)

    async def _ask_all(self, owner: Process) -> None:
        """Do what is left of the round at this owner; the judge notices the groups."""
        if not self.job.groups:
            await self._try(lambda: self.job.begin(owner.broker))
            if hasattr(self.job, "plan"):
                await self.job.write()
        if self.job.groups:
            for groups in (self.job.groups[:1], self.job.groups):
                self.result = await self._try(lambda groups=groups: self.job.swap(owner.broker, groups))  # type: ignore[misc]
            await self._try(lambda: self.job.end(owner.broker))

    async def _try(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is a response; return None if all tries are refused."""
        for _ in range(TRIES):
            try:
                return await ask()
            except REFUSALS:
                await asyncio.sleep(0.5)
        return None

    async def go_on(self) -> None:
        """Let the job go on at the next owner."""
        task = asyncio.ensure_future(self._ask_all(self.heir))
        await asyncio.wait({task}, timeout=60)
        assert task.done()
        await task
        await self.look()


async def play(at: int, how: str, after: Callable[[Story], Awaitable[None]]) -> tuple[int, SwapResult | None]:
    """Play a story with its fault at call ``at``; return the number of calls, and the job's last result."""
    story = JobStory(at, how)
    await story.begin()
    first = story.result
    await after(story)
    story.heir.wiring.may_clean = lambda: True
    await story.go_on()
    await story.end()
    return story.point.count, first if at == 0 else story.result


def test_the_story_without_a_fault_swaps_all_groups() -> None:
    count, result = run(play(0, "dies after", is_succeeded))
    assert count > 30
    assert result is not None
    assert (result.swapped > 1, result.expired, result.stopped) == (True, 0, "")


def test_a_job_ends_its_round_at_the_next_owner() -> None:
    """No later misfortune: all groups are swapped, whatever the first owner had done of them."""
    for at in range(1, 60, 7):
        _, result = run(play(at, "dies after", is_succeeded), at)
        assert result is not None
        assert (result.swapped > 1, result.stopped) == (True, ""), at


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_an_owner_ends_at_every_call_for_a_job(how: str, block: int) -> None:
    """No call is a bad moment to die, to hang or to lose the partition: one of ``HOWS`` at a call in a usual run."""
    last, _ = run(play(0, how, is_succeeded))
    for at in range(1 + block, last + 1, BLOCKS):
        if seeds_wanted() < LONG_RUN and (at // BLOCKS + HOWS.index(how)) % len(HOWS):
            continue
        after = AFTER[(at // BLOCKS + HOWS.index(how) + block) % len(AFTER)]
        try:
            run(play(at, how, after), at)
        except BaseException as error:
            error.add_note(f"the owner {how} call {at}, then the log {after.__name__}")
            raise


@pytest.mark.parametrize("after", [is_rebuilt, is_rebuilt_and_merged])
def test_a_job_goes_on_after_the_loss_of_the_store(after: Callable[[Story], Awaitable[None]]) -> None:
    """The rebuilt record has no swap: a draft that the former owner took is the job's again, and gets no late name.

    All calls: a few of them are the steps of a swap.
    """
    for at in range(1, CALLS_MAX):
        try:
            run(play(at, "hangs after", after), at)
        except BaseException as error:
            error.add_note(f"the owner hangs after call {at}")
            raise
