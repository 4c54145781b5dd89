"""The leader's queue: liveness goes first, and an event that is queued already is not queued again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product

import pytest

from bmq.controller.event_queue import PLAN_NEEDED, EventQueue, MemberNews, PlanNeeded, Urgent
from bmq.controller.failures import ConnectionBroken, ProbeAnswered, ProbeFailed, Reported, StoreAway, StoreBack


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


async def test_rule_7_the_last_event_of_the_store_that_is_taken_is_the_last_that_was_put() -> None:
    """Else a term believes for good that the store is away, and declares nobody dead, or that it is there."""
    away, back = StoreAway(), StoreBack()
    for calls in product((away, back, None), repeat=7):  # None: all are taken
        queue, put, got = EventQueue(), [], []
        for call in (*calls, None):
            if call is None:
                got += taken(queue)
            else:
                put.append(call)
                queue.put(call)
        assert got[-1:] == put[-1:], calls


@pytest.mark.parametrize(
    ("put", "kept"),
    [
        ([StoreAway(), ProbeFailed("b"), StoreBack(), StoreAway()], [StoreAway(), ProbeFailed("b")]),
        ([StoreAway(), ProbeFailed("b"), StoreBack()], [StoreAway(), ProbeFailed("b"), StoreBack()]),
        (
            [StoreBack(), MemberNews("b"), StoreAway(), ProbeFailed("b"), StoreBack()],
            [MemberNews("b"), StoreAway(), ProbeFailed("b"), StoreBack()],
        ),
    ],
)
async def test_rule_7_a_probe_that_failed_while_the_store_was_away_is_taken_as_such(
    put: Sequence[Urgent], kept: Sequence[Urgent]
) -> None:
    queue = EventQueue()
    for event in put:
        queue.put(event)
    assert taken(queue) == kept


@pytest.mark.parametrize("report", [ConnectionBroken("b"), Reported("p", "b")])
async def test_a_report_that_comes_again_after_a_response_stands_behind_it(report: Urgent) -> None:
    """The answer may be older than the second report: taken before it, the report would be lost."""
    queue = EventQueue()
    for event in (report, ProbeAnswered("b"), report):
        queue.put(event)
    assert taken(queue) == [ProbeAnswered("b"), report]


async def test_news_of_a_member_keep_their_place() -> None:
    """A report of a member that is not watched yet would have no effect before them."""
    queue = EventQueue()
    for event in (MemberNews("b"), Reported("p", "b"), MemberNews("b")):
        queue.put(event)
    assert taken(queue) == [MemberNews("b"), Reported("p", "b")]
