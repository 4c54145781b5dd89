"""The time for which several datanodes are waited for: a table of when each responds, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.storage.hdfs.patience import DOUBTED_S, wait_for_enough

SOON_S, LATE_S = 1.0, 4.0
NEVER = 100.0


class Refused(Exception):
    pass


async def respond(after_s: float, response: bool | None) -> bool:
    await asyncio.sleep(after_s)
    if response is None:
        raise Refused
    return response


@pytest.mark.parametrize(
    ("responses", "enough", "expected", "took_s"),
    [
        ([(0, True), (0, True), (0.9, True)], 2, [True, True, True], 0.9),
        ([(0, True), (0, True), (NEVER, True)], 2, [True, True, None], SOON_S),
        ([(0, True), (0, True), (0, False)], 2, [True, True, False], 0),
        ([(0, True), (2, True), (NEVER, True)], 2, [True, True, None], 2),
        ([(0, True), (2, True), (2, True)], 2, [True, True, True], 2),
        ([(0, True), (2, False), (3, True)], 2, [True, False, True], 3),
        ([(0, True), (2, False), (NEVER, True)], 2, [True, False, None], LATE_S),
        ([(0, True), (0, False), (0, False)], 2, [True, False, False], 0),
        ([(0, False), (2, False)], 2, [False, False], 2),
        ([(2, True), (3, True), (3.5, True)], 1, [True, None, None], 2),
        ([(NEVER, True)], 2, [None], LATE_S),
        ([(2, True)], 2, [True], 2),
    ],
)
async def test_all_are_waited_for_a_short_time_and_enough_of_them_longer(
    responses: Sequence[tuple[float, bool]], enough: int, expected: list[bool | None], took_s: float
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    attempts = [loop.create_task(respond(*each)) for each in responses]
    found = await wait_for_enough(attempts, lambda each: each, enough=enough, soon_s=SOON_S, late_s=LATE_S)
    assert found == expected
    assert loop.time() - began == pytest.approx(took_s)
    assert all(attempt.done() for attempt in attempts), "nothing goes on behind it"


@pytest.mark.parametrize(
    ("responses", "doubted", "expected", "took_s"),
    [
        ([(0, True), (0, True), (NEVER, True)], [2], [True, True, None], DOUBTED_S),
        ([(0.2, True), (0.2, True), (NEVER, True)], [2], [True, True, None], 0.4),
        ([(0.2, True), (0.2, True), (0.3, True)], [2], [True, True, True], 0.3),
        ([(0.2, True), (0.2, True), (0.1, True)], [2], [True, True, True], 0.2),
        ([(0.9, True), (0.9, True), (NEVER, True)], [2], [True, True, None], SOON_S),
        ([(0, True), (NEVER, True), (0.1, True)], [1, 2], [True, None, True], 0.2),
        ([(0, True), (NEVER, True), (2, True)], [1, 2], [True, None, True], 2),
        ([(0, True), (NEVER, True), (NEVER, True)], [1], [True, None, None], LATE_S),
        ([(0.1, True), (0.1, True), (NEVER, True)], [0, 1, 2], [True, True, None], SOON_S),
    ],
)
async def test_doubted_ones_get_as_much_time_again_once_enough_have_succeeded(
    responses: Sequence[tuple[float, bool]], doubted: Sequence[int], expected: list[bool | None], took_s: float
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    attempts = [loop.create_task(respond(*each)) for each in responses]
    found = await wait_for_enough(
        attempts, lambda each: each, enough=2, soon_s=SOON_S, late_s=LATE_S,
        doubted=[attempts[number] for number in doubted],
    )  # fmt: skip
    assert found == expected
    assert loop.time() - began == pytest.approx(took_s)
    assert all(attempt.done() for attempt in attempts), "nothing goes on behind it"


@pytest.mark.parametrize("after_s", [0, 0.5, 2])
async def test_what_is_raised_is_raised_at_once_and_ends_the_others(
    after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    responses = [(0, True), (after_s, None), (after_s, None), (NEVER, True)]
    attempts = [loop.create_task(respond(*each)) for each in responses]
    with pytest.raises(Refused):
        await wait_for_enough(attempts, lambda each: each, enough=2, soon_s=SOON_S, late_s=LATE_S)
    assert loop.time() - began == pytest.approx(after_s)
    assert all(attempt.done() for attempt in attempts)
    assert attempts[3].cancelled()
    assert not caplog.messages, "nobody is told of the second one"


@pytest.mark.parametrize("after_s", [0.5, 2])
async def test_who_is_cancelled_ends_the_attempts(after_s: float) -> None:
    loop = asyncio.get_running_loop()
    attempts = [loop.create_task(respond(*each)) for each in ((0, True), (NEVER, True))]
    waiting = wait_for_enough(attempts, lambda each: each, enough=2, soon_s=SOON_S, late_s=LATE_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, after_s)
    assert attempts[0].result()
    assert attempts[1].cancelled()
