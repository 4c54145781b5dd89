"""The leader's queue: liveness goes first, and an event that is queued already is not queued again."""

from __future__ import annotations

import asyncio

from bmq.controller.event_queue import PLAN_NEEDED, EventQueue, MemberNews, PlanNeeded, Urgent
from bmq.controller.failures import ConnectionBroken, ProbeFailed, Reported, StoreAway, StoreBack


def taken(queue: EventQueue) -> list[object]:
    """Empty the queue, and return what was in it, in its order."""
    return list(iter(queue.take, None))


async def test_events_about_liveness_overtake_the_need_of_a_plan_and_keep_their_own_order() -> None:
    queue = EventQueue()
    urgent: list[Urgent] = [
        MemberNews("b1"),
        Reported("p1", "b1"),
        ConnectionBroken("b1"),
        ProbeFailed("b1"),
        StoreAway(),
    ]
    queue.put(PLAN_NEEDED)
    assert not queue.has_urgent
    for event in urgent:
        queue.put(event)
    assert queue.has_urgent
    assert repr(queue) == "<EventQueue urgent=5 others=1>"
    assert taken(queue) == [*urgent, PLAN_NEEDED]
    assert not queue.has_urgent


async def test_an_event_is_queued_once_until_it_is_taken_however_often_it_is_reported() -> None:
    queue = EventQueue()
    for _ in range(1000):
        queue.put(Reported("p1", "b1"))
        queue.put(PlanNeeded())
    queue.put(Reported("p2", "b1"))  # another reporter is another event
    assert taken(queue) == [Reported("p1", "b1"), Reported("p2", "b1"), PLAN_NEEDED]
    queue.put(Reported("p1", "b1"))
    assert taken(queue) == [Reported("p1", "b1")]


async def test_a_wait_ends_with_an_event_or_with_its_time() -> None:
    queue, loop = EventQueue(), asyncio.get_running_loop()
    await queue.wait(30)
    assert loop.time() == 30
    loop.call_later(5, queue.put, StoreBack())
    await queue.wait(None)
    assert loop.time() == 35
    await queue.wait(30)
    assert loop.time() == 35, "it is there until it is taken"
    assert queue.take() == StoreBack()
    queue.put(PLAN_NEEDED)
    await queue.wait(30)
    assert loop.time() == 35, "one was put before the queue was found empty"
    assert taken(queue) == [PLAN_NEEDED]
    await queue.wait(30)
    assert loop.time() == 65
