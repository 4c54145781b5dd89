"""Long computations in steps: their results, their errors, and the turns of the loop between them."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.steps import Steps, batched, finish_steps, run_in_steps


def steps(count: int, *, fails: bool = False) -> Steps[str]:
    for _ in range(count):
        yield
    if fails:
        raise ValueError("the last step")
    return "done"


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [(0, 3, []), (2, 3, [[0, 1]]), (3, 3, [[0, 1, 2]]), (4, 3, [[0, 1, 2], [3]]), (2, 1, [[0], [1]])],
)
def test_items_come_in_lists_of_the_size_and_a_shorter_last_one(count: int, size: int, parts: list[list[int]]) -> None:
    assert list(batched(iter(range(count)), size)) == parts


@pytest.mark.parametrize("count", [0, 1, 5])
def test_steps_without_pauses_return_the_result(count: int) -> None:
    assert finish_steps(steps(count)) == "done"


def test_an_error_of_a_step_is_raised() -> None:
    with pytest.raises(ValueError, match="the last step"):
        finish_steps(steps(3, fails=True))


async def test_other_work_runs_between_two_steps() -> None:
    turns: list[str] = []

    def noted(name: str) -> Steps[None]:
        for _ in range(3):
            turns.append(name)
            yield

    await asyncio.gather(run_in_steps(noted("a")), run_in_steps(noted("b")))
    assert turns == ["a", "b"] * 3


async def test_work_of_one_step_takes_no_turn_of_the_loop() -> None:
    work = run_in_steps(steps(0))
    with pytest.raises(StopIteration) as end:
        work.send(None)
    assert end.value.value == "done"


async def test_a_computation_stops_at_the_pause_in_which_it_is_cancelled() -> None:
    done: list[int] = []

    def endless() -> Steps[None]:
        while True:
            done.append(len(done))
            yield

    task = asyncio.ensure_future(run_in_steps(endless()))
    for _ in range(3):
        await asyncio.sleep(0)
    count = len(done)
    assert count > 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(done) == count
