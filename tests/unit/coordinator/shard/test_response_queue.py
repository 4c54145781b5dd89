"""The queue of responses to parked requests: in order, a bounded number in each turn of the loop."""

from __future__ import annotations

import asyncio

from bmq.coordinator.shard.response_queue import RESPONSES_A_TURN, ResponseQueue


def tokens(count: int) -> list[asyncio.Future[int]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


def given(waiting: list[asyncio.Future[int]]) -> int:
    """Return how many are answered, all of them before those that are not."""
    count = sum(token.done() for token in waiting)
    assert all(token.done() for token in waiting[:count])
    return count


async def test_few_responses_are_given_at_once() -> None:
    queue, waiting = ResponseQueue(), tokens(RESPONSES_A_TURN)
    for number, token in enumerate(waiting):
        queue.give(token, number)
    assert [token.result() for token in waiting] == list(range(RESPONSES_A_TURN))
    assert repr(queue) == "<ResponseQueue 0 waiting>"


async def test_many_responses_are_given_in_order_a_bounded_number_a_turn() -> None:
    queue, waiting = ResponseQueue(), tokens(3 * RESPONSES_A_TURN + 7)
    for number, token in enumerate(waiting):
        queue.give(token, number)
    counts = [given(waiting)]
    while counts[-1] < len(waiting):
        await asyncio.sleep(0)
        counts.append(given(waiting))
        assert counts[-1] - counts[-2] <= RESPONSES_A_TURN
    assert counts[:3] == [100, 200, 300]
    assert [token.result() for token in waiting] == list(range(len(waiting)))


async def test_a_response_does_not_overtake_those_that_wait() -> None:
    queue, waiting = ResponseQueue(), tokens(2 * RESPONSES_A_TURN)
    for token in waiting:
        queue.give(token, 1)
    (late,) = tokens(1)
    queue.give(late, 2)
    await asyncio.sleep(0)
    assert given(waiting) == 2 * RESPONSES_A_TURN
    assert not late.done(), "this turn has given out all that it may"
    assert await late == 2


async def test_an_emptied_queue_gives_responses_at_once_again() -> None:
    queue = ResponseQueue()
    for _ in range(3):
        waiting = tokens(RESPONSES_A_TURN)
        for token in waiting:
            queue.give(token, 1)
        assert given(waiting) == RESPONSES_A_TURN
        await asyncio.sleep(1)


async def test_a_request_that_was_cancelled_is_passed_over() -> None:
    queue, waiting = ResponseQueue(), tokens(RESPONSES_A_TURN + 2)
    waiting[0].cancel()
    for token in waiting:
        queue.give(token, 1)
    waiting[-2].cancel()
    assert await waiting[-1] == 1
    assert waiting[0].cancelled()
    assert waiting[-2].cancelled()


async def test_each_request_has_one_response() -> None:
    queue, loop = ResponseQueue(), asyncio.get_running_loop()
    tokens = [loop.create_future() for _ in range(RESPONSES_A_TURN + 3)]
    for token in tokens:
        queue.give(token, "first")
        queue.give(token, "second")
    assert [token.done() for token in tokens].count(True) < len(tokens)
    tokens[-1].cancel()
    await asyncio.sleep(0.1)
    assert {token.result() for token in tokens[:-1]} == {"first"}
    assert repr(queue) == "<ResponseQueue 0 waiting>"
    token = loop.create_future()
    queue.give(token, "at once")
    assert token.done()
