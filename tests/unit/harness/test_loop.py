"""The virtual loop: time, order, processes that stop and die, and what a run raises (tests/harness/loop.py)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
import uuid
from typing import cast

import pytest

from tests.harness.loop import PROCESS, RESOLUTION_S, Stuck, VirtualLoop, kill, run, tasks_of


def virtual_loop() -> VirtualLoop:
    return cast(VirtualLoop, asyncio.get_running_loop())


async def test_waiting_moves_the_clock_and_takes_no_time() -> None:
    loop, begin = asyncio.get_running_loop(), time.monotonic()
    assert loop.time() == 0
    await asyncio.sleep(3600)
    assert loop.time() == 3600
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await loop.create_future()
    assert loop.time() == 3660
    assert time.monotonic() - begin < 600


async def test_timers_of_one_instant_run_in_the_order_in_which_they_were_set() -> None:
    loop = asyncio.get_running_loop()
    ran: list[object] = []
    for number in (3, 1, 2):
        loop.call_later(1.0, ran.append, number)
    loop.call_later(0.5, ran.append, "first")
    loop.call_later(0.7, ran.append, "never").cancel()
    await asyncio.sleep(1.0)
    assert ran == ["first", 3, 1, 2]


async def test_two_that_wait_for_a_deadline_within_the_resolution_do_not_spin_in_turn() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 1 + RESOLUTION_S / 2

    async def wait_until_deadline() -> None:
        while loop.time() < deadline:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await asyncio.Event().wait()

    other = asyncio.create_task(wait_until_deadline())
    await asyncio.sleep(1)
    await asyncio.sleep(0)  # one turn later than the other: one of them is always ready
    await wait_until_deadline()
    await other
    assert loop.time() == deadline


async def test_sets_of_tasks_keep_their_order() -> None:
    async def work(number: int) -> int:
        return number

    tasks = {asyncio.create_task(work(number)) for number in range(300)}
    assert [await task for task in tasks] == list(range(300))


async def test_a_thread_is_a_plain_call() -> None:
    assert await asyncio.to_thread(threading.current_thread) is threading.current_thread()
    with pytest.raises(ValueError, match="no number"):
        await asyncio.to_thread(int, "no number")


def test_one_seed_draws_the_same_numbers_again_and_the_others_are_put_back() -> None:
    async def draw() -> tuple[float, uuid.UUID]:
        return random.random(), uuid.uuid4()

    state = random.getstate()
    assert run(draw(), 5) == run(draw(), 5) != run(draw(), 6)
    assert random.getstate() == state
    assert uuid.uuid4() != uuid.uuid4()


async def test_a_stopped_process_does_later_what_came_due_meanwhile() -> None:
    loop = virtual_loop()
    ran: list[tuple[int, float]] = []

    async def count() -> None:
        for number in range(4):
            await asyncio.sleep(1.0)
            ran.append((number, loop.time()))

    token = PROCESS.set("a")
    task = asyncio.create_task(count())
    PROCESS.reset(token)
    assert tasks_of("a") == [task]
    await asyncio.sleep(1.5)
    loop.stop_process("a")
    await asyncio.sleep(10)
    assert ran == [(0, 1.0)]
    loop.resume_process("a")
    await task
    assert ran == [(0, 1.0), (1, 11.5), (2, 12.5), (3, 13.5)]


async def test_a_killed_process_ends_its_tasks_and_its_timers_and_no_others() -> None:
    loop = virtual_loop()
    ran: list[str] = []

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("nobody is there to see it")

    token = PROCESS.set("a")
    task = asyncio.create_task(fails())
    loop.call_later(1.0, ran.append, "of the dead")
    PROCESS.reset(token)
    loop.call_later(1.0, ran.append, "of another")
    await asyncio.sleep(0.5)
    kill("a")
    await asyncio.sleep(1.0)
    assert task.done()
    assert ran == ["of another"]


async def waits_for_ever() -> None:
    await asyncio.Event().wait()


async def spins() -> None:
    while True:  # noqa: ASYNC110 - a loop that spins is the matter of the test
        await asyncio.sleep(0)


async def sleeps() -> None:
    await asyncio.sleep(101)


@pytest.mark.parametrize(
    ("main", "message"),
    [(waits_for_ever, "deadlock at 0.0"), (spins, "something spins"), (sleeps, "not done after 100")],
    ids=["deadlock", "spin", "too late"],
)
def test_a_run_that_cannot_go_on_says_which_tasks_wait_where(
    main: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.harness.loop.TURNS_MAX", 10_000)
    with pytest.raises(Stuck, match=message) as stuck:
        run(main(), limit_s=100)  # type: ignore[operator]
    assert any(f"{__file__}:" in note for note in stuck.value.__notes__)


def test_what_is_left_is_cancelled_in_the_order_in_which_it_began() -> None:
    ended: list[int] = []

    async def rest(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(number)

    async def main() -> None:
        tasks = {asyncio.create_task(rest(number)) for number in range(50)}
        await asyncio.sleep(1)
        assert len(tasks) == 50

    run(main())
    assert ended == list(range(50))


def test_what_no_task_could_be_told_fails_the_run() -> None:
    async def breaks_a_callback() -> None:
        asyncio.get_running_loop().call_soon(lambda: [].pop())
        await asyncio.sleep(1)

    async def breaks_when_cancelled() -> None:
        async def rest() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError("late")

        virtual_loop().kept = asyncio.create_task(rest())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with pytest.raises(IndexError):
        run(breaks_a_callback())
    with pytest.raises(LookupError, match="late"):
        run(breaks_when_cancelled())
