"""Work in turns of the loop (core/aio/turns.py), and the loop that measures stops (tests/harness/loop_stops.py)."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest

from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import ELEMENTS_A_TURN, StepQueue, Turns, gather_in_turns, map_in_turns, next_turn, room_in_turn
from tests.harness.loop_stops import STOP_MAX_S, TurnCounter, forget_stops, is_short, run_measured


async def test_everything_is_done_in_order() -> None:
    assert await map_in_turns(str, range(1_234), 100) == [str(each) for each in range(1_234)]
    assert await map_in_turns(str, [], 100) == []


def test_little_work_waits_for_nobody() -> None:
    work: Any = map_in_turns(str, range(100), 100)
    with pytest.raises(StopIteration) as stop:
        work.send(None)
    assert len(stop.value.value) == 100


def test_a_turn_is_over_before_what_does_not_fit() -> None:
    turns = Turns(10)
    assert [turns.is_over(each) for each in (4, 6, 1, 9, 1)] == [False, False, True, False, True]
    assert [turns.is_over(each) for each in (30, 1)] == [True, True], "one that is too large has a turn for itself"


async def test_lists_in_a_list_share_their_turns() -> None:
    """No list fills a turn; all of them together fill many."""
    counter, turns = TurnCounter(), Turns()

    def work(number: int) -> str:
        counter.count()
        return str(number)

    for count in (999, 999, 2, 0, 2_500, 1, 999):
        assert await turns.map(work, range(count)) == [str(each) for each in range(count)]
    counts = counter.take()
    assert sum(counts) == 5_500
    assert max(counts) == ELEMENTS_A_TURN
    assert len(counts) == 6, "a list begins in the turn of the list before it"


async def test_elements_counted_by_themselves_leave_a_list_its_rest_of_the_turn() -> None:
    counter, turns = TurnCounter(), Turns(10)
    assert not turns.is_over(8)
    await turns.map(counter.count, range(5))
    assert counter.take() == [2, 3]
    assert turns.is_over(30), "an element that is too large"
    await turns.map(counter.count, range(5))
    assert counter.take() == [5]


async def test_one_goes_on_in_a_turn_whoever_it_belongs_to() -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    begun: list[tuple[int, str]] = []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(begun) < 50:
            loop.call_soon(count)

    async def work(name: str) -> None:
        for _ in range(5):
            await next_turn()
            begun.append((turn, name))

    loop.call_soon(count)
    await asyncio.gather(*(work(name) for name in "abcdefghij"))
    assert len({turn for turn, _ in begun}) == 50, "two went on in one turn"
    assert [name for _, name in begun[:10]] == list("abcdefghij"), "each in its turn"


async def test_many_tasks_share_the_room_of_a_turn() -> None:
    counter = TurnCounter()

    async def work(elements: int) -> None:
        for _ in range(3):
            await room_in_turn(elements)
            for _ in range(elements):
                counter.count()

    await asyncio.gather(*(work(ELEMENTS_A_TURN // 4) for _ in range(20)), work(5), work(3 * ELEMENTS_A_TURN))
    counts = counter.take()
    assert sum(counts) == 3 * (20 * (ELEMENTS_A_TURN // 4) + 5 + 3 * ELEMENTS_A_TURN)
    assert sorted(counts)[-3:] == [3 * ELEMENTS_A_TURN] * 3, "one that is too large has a turn for itself"
    assert sorted(counts)[-4] <= ELEMENTS_A_TURN


async def test_small_pieces_do_not_pass_a_large_one_that_waits() -> None:
    loop = asyncio.get_running_loop()
    is_over, small = False, 0

    async def work() -> None:
        nonlocal small
        await room_in_turn(ELEMENTS_A_TURN // 2)
        small += 1

    def load() -> None:
        """Let small pieces come in every turn."""
        if not is_over and small < 2_000:
            tasks.extend(asyncio.ensure_future(work()) for _ in range(2))
            loop.call_soon(load)

    tasks: list[asyncio.Future[None]] = []
    load()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await room_in_turn(ELEMENTS_A_TURN)
    passed = small
    is_over = True
    await asyncio.gather(*tasks)
    assert passed < 20, "pieces that came later went first"


async def test_a_small_piece_with_room_in_the_turn_waits_behind_a_large_piece() -> None:
    begun: list[str] = []

    async def work(name: str, elements: int) -> None:
        await room_in_turn(elements)
        begun.append(name)

    await asyncio.gather(work("half", ELEMENTS_A_TURN // 2), work("large", ELEMENTS_A_TURN), work("small", 1))
    assert begun == ["half", "large", "small"]


async def test_callers_that_are_cancelled_take_no_room_and_hold_nobody_up() -> None:
    counter = TurnCounter()
    await room_in_turn(ELEMENTS_A_TURN)

    async def work(elements: int) -> None:
        await room_in_turn(elements)
        for _ in range(elements):
            counter.count()

    tasks = [asyncio.ensure_future(work(ELEMENTS_A_TURN)) for _ in range(6)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # at the head of those that wait
    tasks[2].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[1].cancel()  # woken, perhaps
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each is None for each in found][3:] == [True] * 3
    assert max(counter.take()) <= ELEMENTS_A_TURN
    await room_in_turn(ELEMENTS_A_TURN)


async def test_a_bounded_number_is_gathered_at_once() -> None:
    under_way, most = 0, 0

    async def work(item: int) -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return str(item)

    assert await gather_in_turns(work, range(250), 100) == [str(each) for each in range(250)]
    assert most == 100


async def test_who_is_cancelled_stops_nobody() -> None:
    tasks = [asyncio.create_task(next_turn()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each is None for each in found] == [False, True] * 5
    await next_turn()


@pytest.mark.slow
def test_a_stop_is_the_threads_own_processor_time() -> None:
    def compute(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    async def main(seconds: float) -> None:
        forget_stops()
        time.sleep(0.2)  # noqa: ASYNC251  (a thread that waits computes nothing)
        await asyncio.sleep(0)
        compute(seconds)

    assert is_short(run_measured(main(0.0))[1])
    assert run_measured(main(2 * STOP_MAX_S))[1] >= 2 * STOP_MAX_S


# ----------------------------------------------------------------------------------------------------- a queue of steps


def steps_of(name: str, pauses: int, done: list[str]) -> Steps[None]:
    for number in range(pauses + 1):
        if number:
            yield
        done.append(f"{name}{number}")


async def test_what_there_is_room_for_is_done_at_once() -> None:
    queue, done = StepQueue(10), list[str]()
    for name in "abc":
        queue.run(4, steps_of(name, 0, done))
    assert done == ["a0", "b0"]
    await queue.finish()
    assert done == ["a0", "b0", "c0"]
    await asyncio.sleep(0)
    queue.run(100, steps_of("d", 0, done))  # one is always done, whatever its size
    assert done[-1] == "d0"
    assert repr(queue) == "<StepQueue 0 waiting>"
    await queue.finish()


async def test_pieces_of_work_keep_their_order() -> None:
    """One that pauses holds those behind it, also what it gives the queue itself."""

    queue, done, counter = StepQueue(10), list[str](), TurnCounter()

    def outer() -> Steps[None]:
        queue.run(1, steps_of("inner", 0, done))
        done.append("outer")
        counter.count()
        yield
        counter.count()
        done.append("outer again")

    queue.run(10, outer())
    queue.run(1, steps_of("x", 0, done))
    assert done == ["outer"]
    await queue.finish()
    assert done == ["outer", "outer again", "inner0", "x0"]
    assert counter.take() == [1, 1]


async def test_a_piece_that_fails_does_not_hold_the_others() -> None:
    queue, done, errors = StepQueue(10), list[str](), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context["exception"])))

    def fails() -> Steps[None]:
        yield
        raise ValueError("broken")

    queue.run(10, fails())
    queue.run(1, steps_of("x", 0, done))
    await queue.finish()
    assert (done, errors) == (["x0"], ["broken"])


@pytest.mark.slow
def test_a_loop_that_has_ended_is_not_kept() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(next_turn())
    loop.close()
    ended = weakref.ref(loop)
    del loop
    gc.collect()
    assert ended() is None
